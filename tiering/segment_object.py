"""Segment object: one sealed segment as one object in the archive.

    blocks      the segment's blocks (`quire.wire.block`), unchanged, one after the other
    index       one row per run: whole blocks of up to 64 KiB together, or one larger block
    footer      104 bytes at the very end

    row     offset size  field
                 0    8  first entry      of the run's first block
                 8    8  first index      topic-wide index of the run's first message
                16    8  clock            of the run's first block, ms; never decreases from row to row
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

All integers are big-endian. Each checksum covers the next: a pointer in the metadata store contains the object's length
and footer crc, the footer contains the index's checksum, and a row contains its run's. So a range read of any run needs
no check of the blocks' own checksums. Runs follow one another without a gap. An object that deviates from this layout
is damaged; the `SegmentError` contains object and offset. Readers skip no part of an object.

Performs no I/O. `SegmentBuilder` builds the bytes after the blocks, `read_footer` and `Index` read them.
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
"""Bytes of the first read, from the end: it contains footer and index of a segment of up to 400 MiB."""

assert ROW_BYTES == 40
assert FOOTER_BYTES == 104


class SegmentError(CorruptionError):
    """Raised for a damaged segment object, or for damaged blocks that should form one."""


class Footer(NamedTuple):
    """Footer of a segment object. `blocks_bytes` is also the offset of the index."""

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
        """Return whether both footers describe the same blocks, even if the blocks are divided into other runs."""
        cut = {"row_count": 0, "index_crc": 0, "object_bytes": 0}
        return self._replace(**cut) == other._replace(**cut)


class Row(NamedTuple):
    """Index row of one run. `offset` is from the start of the object, `length` in bytes."""

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
    """Builder of a segment object's index and footer from its blocks, in order; the caller writes the blocks.

    Blocks that are not consecutive in their ledger are damage at their source and raise `SegmentError`.
    """

    def __init__(self, ledger_id: int) -> None:
        self.ledger_id = ledger_id
        self.next_entry = 0
        self.blocks_bytes = 0
        self.block_count = 0
        self.lost_messages = 0
        """Number of messages in blank blocks, which replace lost entries that were given up."""
        self._first: BlockHeader | None = None
        self._last: BlockHeader | None = None
        self._last_messages = 0
        self._rows = bytearray()
        self._run: tuple[int, int, int, int] | None = None
        self._run_bytes = 0
        self._run_crc = 0

    def add(self, block: Buffer) -> None:
        """Verify the next block, and add it to the index. Raises `BlockError`, `SegmentError`."""
        header = verify(block)
        if len(block) != header.length:
            raise SegmentError(f"a block of {header.length} bytes has {len(block)} bytes")
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
        """Return the footer, and the encoded index and footer. At least one block must have been added."""
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
                f"ledger {self.ledger_id} must continue with entry {self.next_entry}, but the next block has "
                f"(ledger {header.ledger_id}, entry {header.first_entry})"
            )
        last = self._last
        if last is None:
            return
        index = last.first_index + self._last_messages
        if header.first_index != index or header.clock_ms < last.clock_ms:
            raise SegmentError(
                f"block (ledger {self.ledger_id}, entry {header.first_entry}) has message index {header.first_index} "
                f"and clock {header.clock_ms} ms; expected {index} and at least {last.clock_ms} ms"
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
    """Return the footer's checksum, which a pointer contains. `tail` ends with the whole footer."""
    return _U32.unpack_from(tail, len(tail) - FOOTER_BYTES + 12)[0]  # type: ignore[no-any-return]


def read_footer(tail: Buffer, object_bytes: int, name: str) -> Footer:
    """Decode the footer from an object's last bytes, at least `FOOTER_BYTES`. Raises `SegmentError`."""
    start = len(tail) - FOOTER_BYTES
    at = object_bytes - FOOTER_BYTES
    if start < 0 or at < 0:
        raise SegmentError("an object is too short for a segment object", name, 0)
    magic, version, flags, crc = _PREFIX.unpack_from(tail, start)
    if magic != MAGIC or version != VERSION or flags:
        raise SegmentError(f"no valid footer of a segment object of version {VERSION}", name, at)
    if crc32c(memoryview(tail)[start + _PREFIX.size :]) != crc:
        raise SegmentError("a segment's footer does not match its checksum", name, at)
    footer = Footer._make(_CHECKED.unpack_from(tail, start + _PREFIX.size))
    expected = footer.blocks_bytes + footer.index_bytes + FOOTER_BYTES
    if footer.object_bytes != object_bytes or expected != object_bytes or not footer.row_count:
        raise SegmentError(
            f"a segment's footer describes {expected} bytes, but the object has {object_bytes}", name, at
        )
    return footer


class Index:
    """Footer and index of a segment object. The index stays encoded: 40 bytes for each 64 KiB of the segment.

    `tail` contains the object's last bytes, including the whole index. Raises `SegmentError`.
    """

    def __init__(self, footer: Footer, tail: Buffer, object_name: str, store_url: str = "") -> None:
        end = len(tail) - FOOTER_BYTES
        assert end >= footer.index_bytes, "the tail contains the whole index"
        self.footer = footer
        self.object_name = object_name
        self.place = place_of(object_name, store_url)
        """URL of the store and name of the object, for errors."""
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
        """Return the last entry of run `number`."""
        return self.row(number + 1).first_entry - 1 if number + 1 < len(self) else self.footer.last_entry

    def find_entry(self, entry: int) -> int:
        """Return the number of the row whose run contains `entry`; the first or last row if no run does."""
        return max(0, bisect_right(range(len(self)), entry, key=self._first_entry) - 1)

    def find_offset(self, offset: int) -> int:
        """Return the number of the first row that begins at or after `offset`; `len(self)` if there is none."""
        return bisect_left(range(len(self)), offset, key=self._offset)

    def find_time(self, time_ms: int) -> int:
        """Return the number of the row to read from, so that no block with a clock of `time_ms` or later is missed."""
        return max(0, bisect_left(range(len(self)), time_ms, key=self._clock) - 1)

    def slices(self, bytes_target: int) -> list[range]:
        """Divide the rows into ranges of about `bytes_target` bytes of blocks, for parallel readers."""
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
    """Verify the bytes of one run. Raises `SegmentError` with object and offset."""
    if len(run) != row.length or crc32c(run) != row.crc:
        raise SegmentError("a run of blocks does not match its checksum", name, row.offset)


def place_of(object_name: str, store_url: str) -> str:
    """Return the URL of the store and the name of the object, for errors."""
    return f"{store_url.partition('?')[0].rstrip('/')}/{object_name}" if store_url else object_name
