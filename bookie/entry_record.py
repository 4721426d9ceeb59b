"""The record: what an entry log consists of, and how its runs are found again without an index.

A record begins on a page boundary and is written by one direct write:

    offset size  field
         0    4  magic            0x51 0x52 0x45 0x43 ("QREC")
         4    4  header crc       CRC32C over bytes 8 .. 48
         8    8  log id           the name of its file when it was written
        16    8  number           of the record in its log, from 0
        24    8  durable log      the last record that was known durable when this one was written: its log,
        32    8  durable number   and its number; log 0: none was known
        40    4  length           of the payload in bytes
        44    4  payload crc      CRC32C over the payload
        48       the payload, whole blocks, then zeros to a multiple of 4,096

All integers are big-endian. Valid is a record whose two checksums match and whose log id is its file's.

A log ends where no valid header with its id and a higher number follows. Where a header is missing though a
later one is there, a gap is left: damage, or part of a flush that never became durable.
"""

from __future__ import annotations

from mmap import mmap
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from quire.bookie.index import IndexRow
from quire.runtime.disk import PAGE_BYTES, File, aligned_buffer, pages_up, read_around
from quire.runtime.errors import DiskError
from quire.runtime.limits import INDEX_RUN_BYTES_MAX, INDEX_RUN_ENTRIES_MAX, MIB, UNREADABLE_PAGES_MAX
from quire.wire.block import Brief, brief
from quire.wire.block import read_header as read_block_header

MAGIC: Final = 0x51524543
HEADER_BYTES: Final = 48

_PREFIX: Final = Struct(">II")
_CHECKED: Final = Struct(">QQQQII")
_SEARCH_BYTES: Final = 1 * MIB
assert _PREFIX.size + _CHECKED.size == HEADER_BYTES


class RecordHeader(NamedTuple):
    """What a record says of itself. `durable` is a (log id, number)."""

    log_id: int
    number: int
    durable: tuple[int, int]
    length: int
    payload_crc: int


class Span(NamedTuple):
    """A record, or (`header` None) a gap where record `number` should begin and does not.

    Of a gap with a page that cannot be read (`is_unreadable`) nobody knows what is in it.
    """

    offset: int
    number: int
    header: RecordHeader | None
    is_unreadable: bool = False


def seal(view: memoryview, filled: int, log_id: int, number: int, durable: tuple[int, int]) -> int:
    """Make a record of `filled` bytes whose payload is in place; answer its size in whole pages."""
    whole = pages_up(filled)
    view[filled:whole] = bytes(whole - filled)
    payload_crc = crc32c(view[HEADER_BYTES:filled])
    _CHECKED.pack_into(view, _PREFIX.size, log_id, number, *durable, filled - HEADER_BYTES, payload_crc)
    _PREFIX.pack_into(view, 0, MAGIC, crc32c(view[_PREFIX.size : HEADER_BYTES]))
    return whole


def find_records(file: File, log_id: int) -> list[Span]:
    """The records of a log by their headers alone, and the gaps between them.

    A page that cannot be read is a gap; a disk of which much cannot be read raises `DiskError`.
    """
    return _Search(file, log_id).spans()


class _Search:
    def __init__(self, file: File, log_id: int) -> None:
        self._file = file
        self._log_id = log_id
        self._end = file.size_bytes()
        self._buffer = aligned_buffer(_SEARCH_BYTES)
        self._unreadable: set[int] = set()

    def spans(self) -> list[Span]:
        spans: list[Span] = []
        offset, number = 0, 0
        while (found := self._find(number, offset)) is not None:
            at, header = found
            if at > offset or header.number > number:
                spans.append(
                    Span(offset, number, None, any(offset <= page < at for page in self._unreadable))
                )
            spans.append(Span(at, header.number, header))
            offset, number = at + pages_up(HEADER_BYTES + header.length), header.number + 1
        if any(page >= offset for page in self._unreadable):
            spans.append(Span(offset, number, None, is_unreadable=True))
        return spans

    def _find(self, number: int, offset: int) -> tuple[int, RecordHeader] | None:
        """The first record at or after `offset` that is `number` or a later one, and where it begins.

        Looks at the one page where it should be, and only when it is not there at all that follow.
        """
        window_bytes = PAGE_BYTES
        while offset < self._end:
            for at in range(0, self._read(offset, window_bytes), PAGE_BYTES):
                header = _read_header(self._buffer, at)
                if header is not None and header.log_id == self._log_id and header.number >= number:
                    return offset + at, header
            offset, window_bytes = offset + window_bytes, len(self._buffer)
        return None

    def _read(self, offset: int, size_bytes: int) -> int:
        """Fill the buffer with whole pages, zeros for those that cannot be read; answer the bytes filled."""
        view = memoryview(self._buffer)[:size_bytes]
        got, unreadable = read_around(self._file, view, offset, UNREADABLE_PAGES_MAX)
        self._unreadable.update(unreadable)
        if len(self._unreadable) > UNREADABLE_PAGES_MAX:
            raise DiskError(next(iter(unreadable.values())))
        return got // PAGE_BYTES * PAGE_BYTES


def _read_header(buffer: mmap, at: int) -> RecordHeader | None:
    magic, header_crc = _PREFIX.unpack_from(buffer, at)
    if magic != MAGIC or crc32c(memoryview(buffer)[at + _PREFIX.size : at + HEADER_BYTES]) != header_crc:
        return None
    log_id, number, durable_log, durable_number, length, payload_crc = _CHECKED.unpack_from(
        buffer, at + _PREFIX.size
    )
    return RecordHeader(log_id, number, (durable_log, durable_number), length, payload_crc)


def walk(payload: memoryview, log_id: int, offset: int, found: RunBuilder) -> None:
    """Tell `found` of each block of a payload that lies at `offset` of its log. Raises `BlockError`."""
    at = 0
    while at < len(payload):
        at += walk_one(payload, at, log_id, offset, found)


def walk_one(payload: memoryview, at: int, log_id: int, offset: int, found: RunBuilder) -> int:
    """Tell `found` of the block at `at` of the payload; its length. Raises `BlockError`."""
    block = read_block_header(payload, at)
    found.add(log_id, offset + at, block.length, brief(payload, at))
    return block.length


class RunBuilder:
    """Joins blocks that lie side by side into rows; the same whether they are written or found again."""

    def __init__(self) -> None:
        self._rows: list[IndexRow] = []
        self._ledger_id = -1
        self._first_entry = self._next_entry = 0
        self._log_id = self._offset = self._end = 0
        self._first_clock_ms = self._last_clock_ms = 0
        self._lac = -1

    def add(self, log_id: int, offset: int, length: int, block: Brief) -> None:
        """The next block. It joins the run when it continues it, in entries and in bytes, and there is room."""
        count, ledger_id, first_entry, lac, clock_ms = block
        if (
            ledger_id == self._ledger_id
            and first_entry == self._next_entry
            and offset == self._end
            and offset + length - self._offset <= INDEX_RUN_BYTES_MAX
            and first_entry + count - self._first_entry <= INDEX_RUN_ENTRIES_MAX
            and log_id == self._log_id
        ):
            if lac > self._lac:
                self._lac = lac
        else:
            self._end_run()
            self._ledger_id, self._first_entry, self._lac = ledger_id, first_entry, lac
            self._log_id, self._offset, self._first_clock_ms = log_id, offset, clock_ms
        self._next_entry = first_entry + count
        self._end = offset + length
        self._last_clock_ms = clock_ms

    def take(self) -> list[IndexRow]:
        """The rows that are complete, once each."""
        rows, self._rows = self._rows, []
        return rows

    def finish(self) -> list[IndexRow]:
        """All rows that were not taken."""
        self._end_run()
        return self.take()

    def _end_run(self) -> None:
        if self._ledger_id < 0:
            return
        self._rows.append(
            IndexRow(
                self._ledger_id,
                self._first_entry,
                self._next_entry - 1,
                self._log_id,
                self._offset,
                self._end - self._offset,
                self._first_clock_ms,
                self._last_clock_ms,
                self._lac,
            )
        )
        self._ledger_id = -1
