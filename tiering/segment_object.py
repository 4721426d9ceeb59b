"""The segment object: one sealed segment as the bytes of one object.

    blocks      the segment's blocks (`quire.wire.block`), as they are, one after the other
    index       one row per run: whole blocks of up to 64 KiB together, or one larger block
    footer      104 bytes at the very end

    row     offset size  field
                 0    8  first entry      of the run's first block
                 8    8  first index      topic-wide index of the run's first message
                16    8  clock            of the run's first block, ms; never falls from row to row
                24    8  offset           of the run from the start of the object
                32    4  length           of the run in bytes
                36    4  crc              CRC32C over the run

    footer  offset size  field
                 0    8  magic            0x51 0x55 0x49 0x52 0x45 0x53 0x45 0x47 ("QUIRESEG")
                 8    2  version          1
                10    2  flags            0; another value is refused
                12    4  footer crc       CRC32C over bytes 16 .. 104 of the footer
                16    8  index offset     = length of all blocks in bytes
                24    4  rows             number of runs, >= 1
                28    4  index crc        CRC32C over the index
                32    8  ledger           id of the ledger
                40    8  first entry      of the segment
                48    8  last entry       of the segment
                56    8  blocks           number of blocks
                64    8  messages         number of messages
                72    8  first index      topic-wide index of the first message
                80    8  first clock      of the first block, ms
                88    8  last clock       of the last block, ms
                96    8  object bytes     length of the whole object

All integers are big-endian. Each checksum proves the next: a pointer in the metadata store holds the object's
length and its footer crc, the footer proves the index, a row proves its run, so a range read of any run can be
trusted without a look at a block's own checksums. Runs follow one another without a gap. An object that is not
exactly so is damage (`SegmentError`), which names object and offset; nothing in it is skipped.

A core: no I/O. `SegmentBuilder` makes the bytes after the blocks, `read_footer` and `Index` read them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from quire.runtime.errors import CorruptionError
from quire.runtime.limits import ARCHIVE_INDEX_RUN_BYTES
from quire.wire.block import BlockHeader, Buffer, is_blank, message_counts, verify
from quire.wire.checksum import crc32c

MAGIC: Final = b"QUIRESEG"
VERSION: Final = 1

_PREFIX: Final = Struct(">8sHHI")
_CHECKED: Final = Struct(">QIIQQQQQQQQQ")
_ROW: Final = Struct(">QQQQII")
_U64: Final = Struct(">Q")
_U32: Final = Struct(">I")
_CLOCK_OFFSET: Final = 16

ROW_BYTES: Final = _ROW.size
FOOTER_BYTES: Final = _PREFIX.size + _CHECKED.size
TAIL_GUESS_BYTES: Final = 256 * 1024
"""A first read from the end of this many bytes finds footer and index of a segment of up to 400 MiB."""

assert ROW_BYTES == 40
assert FOOTER_BYTES == 104


class SegmentError(CorruptionError):
    """Bytes that should be a segment object are not one."""


class Footer(NamedTuple):
    """What a segment object says of itself. `blocks_bytes` is also where the index begins."""

    blocks_bytes: int
    row_count: int
    index_crc: int
    ledger_id: int
    first_entry: int
    last_entry: int
    block_count: int
    message_count: int
    first_index: int
    first_clock_ms: int
    last_clock_ms: int
    object_bytes: int

    @property
    def index_bytes(self) -> int:
        return self.row_count * ROW_BYTES

    def says_the_same(self, other: Footer) -> bool:
        """Whether both tell of the same blocks, however these are cut into runs."""
        cut = {"row_count": 0, "index_crc": 0, "object_bytes": 0}
        return self._replace(**cut) == other._replace(**cut)


class Row(NamedTuple):
    """One run. `offset` is from the start of the object, `length` in bytes."""

    first_entry: int
    first_index: int
    clock_ms: int
    offset: int
    length: int
    crc: int

    @property
    def end(self) -> int:
        return self.offset + self.length


class SegmentBuilder:
    """Takes a segment's blocks in order and makes what follows them in the object.

    The caller writes the blocks themselves. `first_entry` and so on are asserted against the order of a ledger:
    blocks that do not follow one another are damage at their source and raise `SegmentError`.
    """

    def __init__(self, ledger_id: int) -> None:
        self.ledger_id = ledger_id
        self.next_entry = 0
        self.blocks_bytes = 0
        self.block_count = 0
        self.lost_messages = 0
        """Of blank blocks, which stand for what was lost and given up."""
        self._first: BlockHeader | None = None
        self._last: BlockHeader | None = None
        self._last_messages = 0
        self._rows = bytearray()
        self._run: tuple[int, int, int, int] | None = None
        self._run_bytes = 0
        self._run_crc = 0

    def add(self, block: Buffer) -> None:
        """Take the next block, after proving its header, table and entries. `BlockError`, `SegmentError`."""
        header = verify(block)
        if len(block) != header.length:
            raise SegmentError(f"a block of {header.length} bytes came in {len(block)} bytes")
        self._check_order(header)
        if self._run_bytes and self._run_bytes + header.length > ARCHIVE_INDEX_RUN_BYTES:
            self._end_run()
        if self._run is None:
            self._run = (header.first_entry, header.first_index, header.clock_ms, self.blocks_bytes)
        self._run_crc = crc32c(block, self._run_crc)
        self._run_bytes += header.length
        self.blocks_bytes += header.length
        self.block_count += 1
        self.next_entry = header.last_entry + 1
        self._first = self._first or header
        self._last = header
        self._last_messages = sum(message_counts(block, header))
        if is_blank(header):
            self.lost_messages += self._last_messages

    def finish(self) -> tuple[Footer, bytes]:
        """The footer, and index and footer as bytes. At least one block was added."""
        assert self._first is not None and self._last is not None, "an empty segment has no object"
        self._end_run()
        index = bytes(self._rows)
        first, last = self._first, self._last
        footer = Footer(
            blocks_bytes=self.blocks_bytes,
            row_count=len(index) // ROW_BYTES,
            index_crc=crc32c(index),
            ledger_id=self.ledger_id,
            first_entry=first.first_entry,
            last_entry=last.last_entry,
            block_count=self.block_count,
            message_count=last.first_index + self._last_messages - first.first_index,
            first_index=first.first_index,
            first_clock_ms=first.clock_ms,
            last_clock_ms=last.clock_ms,
            object_bytes=self.blocks_bytes + len(index) + FOOTER_BYTES,
        )
        return footer, index + encode_footer(footer)

    def _check_order(self, header: BlockHeader) -> None:
        if header.ledger_id != self.ledger_id or header.first_entry != self.next_entry:
            raise SegmentError(
                f"ledger {self.ledger_id} should go on with entry {self.next_entry}, but a block of "
                f"(ledger {header.ledger_id}, entry {header.first_entry}) came"
            )
        last = self._last
        if last is None:
            return
        index = last.first_index + self._last_messages
        if header.first_index != index or header.clock_ms < last.clock_ms:
            raise SegmentError(
                f"block (ledger {self.ledger_id}, entry {header.first_entry}) has message index "
                f"{header.first_index} and clock {header.clock_ms} after {index} and {last.clock_ms}"
            )

    def _end_run(self) -> None:
        if self._run is not None:
            self._rows += _ROW.pack(*self._run, self._run_bytes, self._run_crc)
            self._run = None
            self._run_bytes = 0
            self._run_crc = 0


def encode_footer(footer: Footer) -> bytes:
    checked = _CHECKED.pack(*footer)
    return _PREFIX.pack(MAGIC, VERSION, 0, crc32c(checked)) + checked


def footer_crc(tail: Buffer) -> int:
    """The checksum that a pointer holds, from an object's last `FOOTER_BYTES` bytes."""
    return _U32.unpack_from(tail, len(tail) - FOOTER_BYTES + 12)[0]  # type: ignore[no-any-return]


def read_footer(tail: Buffer, object_bytes: int, name: str) -> Footer:
    """The footer, from an object's last bytes (`FOOTER_BYTES` at least). `SegmentError` names object and offset."""
    start = len(tail) - FOOTER_BYTES
    at = object_bytes - FOOTER_BYTES
    if start < 0 or at < 0:
        raise SegmentError("an object is too short for a segment", name, 0)
    magic, version, flags, crc = _PREFIX.unpack_from(tail, start)
    if magic != MAGIC or version != VERSION or flags:
        raise SegmentError(f"no footer of a segment of version {VERSION}", name, at)
    if crc32c(memoryview(tail)[start + _PREFIX.size :]) != crc:
        raise SegmentError("a segment's footer does not match its checksum", name, at)
    footer = Footer._make(_CHECKED.unpack_from(tail, start + _PREFIX.size))
    expected = footer.blocks_bytes + footer.index_bytes + FOOTER_BYTES
    if footer.object_bytes != object_bytes or expected != object_bytes or not footer.row_count:
        raise SegmentError(
            f"a segment's footer tells of {expected} bytes, but there are {object_bytes}", name, at
        )
    return footer


class Index:
    """A segment's footer and rows. Holds the index as its bytes: 40 for each 64 KiB of the segment.

    `tail` are the object's last bytes, the whole index among them. Raises `SegmentError`.
    """

    def __init__(self, footer: Footer, tail: Buffer, object_name: str, store_url: str = "") -> None:
        end = len(tail) - FOOTER_BYTES
        assert end >= footer.index_bytes, "the tail does not hold the whole index"
        self.footer = footer
        self.object_name = object_name
        self.place = place_of(object_name, store_url)
        """The object as errors call it."""
        self._rows = bytes(memoryview(tail)[end - footer.index_bytes : end])
        if crc32c(self._rows) != footer.index_crc:
            raise SegmentError(
                "a segment's index does not match its checksum", self.place, footer.blocks_bytes
            )

    def __len__(self) -> int:
        return self.footer.row_count

    @property
    def memory_bytes(self) -> int:
        return len(self._rows) + 512

    def row(self, number: int) -> Row:
        assert 0 <= number < self.footer.row_count
        return Row._make(_ROW.unpack_from(self._rows, number * ROW_BYTES))

    def rows(self) -> Iterator[Row]:
        return map(Row._make, _ROW.iter_unpack(self._rows))

    def last_entry(self, number: int) -> int:
        """The last entry of a run."""
        return self.row(number + 1).first_entry - 1 if number + 1 < len(self) else self.footer.last_entry

    def find_entry(self, entry: int) -> int:
        """Number of the row whose run holds `entry` (the first or last row for one outside)."""
        return max(0, bisect_right(range(len(self)), entry, key=self._first_entry) - 1)

    def find_offset(self, offset: int) -> int:
        """Number of the first row that begins at or after `offset`; `len(self)` when none does."""
        return bisect_left(range(len(self)), offset, key=self._offset)

    def find_time(self, time_ms: int) -> int:
        """Number of the row where reading must begin to miss no block with a clock of `time_ms` or later."""
        return max(0, bisect_left(range(len(self)), time_ms, key=self._clock) - 1)

    def slices(self, bytes_target: int) -> list[range]:
        """The rows cut into ranges of about `bytes_target` bytes of blocks, for readers in parallel."""
        cuts = []
        start = 0
        while start < len(self):
            end = max(start + 1, self.find_offset(self.row(start).offset + bytes_target))
            cuts.append(range(start, end))
            start = end
        return cuts

    def _first_entry(self, number: int) -> int:
        return _U64.unpack_from(self._rows, number * ROW_BYTES)[0]  # type: ignore[no-any-return]

    def _clock(self, number: int) -> int:
        return _U64.unpack_from(self._rows, number * ROW_BYTES + _CLOCK_OFFSET)[0]  # type: ignore[no-any-return]

    def _offset(self, number: int) -> int:
        return _U64.unpack_from(self._rows, number * ROW_BYTES + 24)[0]  # type: ignore[no-any-return]


def verify_run(run: Buffer, row: Row, name: str) -> None:
    """Prove the bytes of one run. `SegmentError` names object and offset."""
    if len(run) != row.length or crc32c(run) != row.crc:
        raise SegmentError("a run of blocks does not match its checksum", name, row.offset)


def place_of(object_name: str, store_url: str) -> str:
    """An object as errors call it."""
    return f"{store_url.partition('?')[0].rstrip('/')}/{object_name}" if store_url else object_name
