"""Format of a record, the unit of an entry log, and the search for records without an index.

A record begins on a page boundary and is written by one direct write:

    offset size  field
         0    4  magic            0x51 0x52 0x45 0x43 ("QREC")
         4    4  header crc       CRC32C over bytes 8 .. 48
         8    8  log id           the number in the file's name when the record was written
        16    8  number           of the record in its log, from 0
        24    8  durable log      log id of the last record that was known to be durable when this one was written;
                                  0 if none was known
        32    8  durable number   number of that record
        40    4  length           of the payload in bytes
        44    4  payload crc      CRC32C over the payload
        48       the payload, whole blocks, then zeros to a multiple of 4,096

All integers are big-endian. A record is valid if both checksums match and its log id is the number in its file's name.

A log ends where no valid header with its id and a higher number follows. A missing header before a later valid one is
a gap: damage, or part of a flush that never became durable.
"""

from __future__ import annotations

from mmap import mmap
from struct import Struct
from typing import Final, NamedTuple

from quire.bookie.index import IndexRow
from quire.runtime.disk import PAGE_BYTES, File, aligned_buffer, pages_up, read_around
from quire.runtime.errors import DiskError
from quire.runtime.limits import INDEX_RUN_BYTES_MAX, INDEX_RUN_ENTRIES_MAX, MIB, UNREADABLE_PAGES_MAX
from quire.wire.block import Brief, brief
from quire.wire.block import read_header as read_block_header
from quire.wire.checksum import crc32c

MAGIC: Final = 0x51524543
HEADER_BYTES: Final = 48

_PREFIX: Final = Struct(">II")
_CHECKED: Final = Struct(">QQQQII")
_SEARCH_BYTES: Final = 1 * MIB
assert _PREFIX.size + _CHECKED.size == HEADER_BYTES


class RecordHeader(NamedTuple):
    """Header of a record. `durable` is (log id, number) of the last record that was known to be durable."""

    log_id: int
    number: int
    durable: tuple[int, int]
    length: int
    payload_crc: int


class Span(NamedTuple):
    """Record at `offset`, or a gap (`header` is None) where record `number` should begin.

    The content of a gap with an unreadable page (`is_unreadable`) is unknown.
    """

    offset: int
    number: int
    header: RecordHeader | None
    is_unreadable: bool = False


def seal(view: memoryview, filled: int, log_id: int, number: int, durable: tuple[int, int]) -> int:
    """Complete a record of `filled` bytes whose payload is in place; return its size in whole pages."""
    whole = pages_up(filled)
    view[filled:whole] = bytes(whole - filled)
    payload_crc = crc32c(view[HEADER_BYTES:filled])
    _CHECKED.pack_into(view, _PREFIX.size, log_id, number, *durable, filled - HEADER_BYTES, payload_crc)
    _PREFIX.pack_into(view, 0, MAGIC, crc32c(view[_PREFIX.size : HEADER_BYTES]))
    return whole


def find_records(file: File, log_id: int) -> list[Span]:
    """Return the records of a log and the gaps between them; only the records' headers are checked.

    An unreadable page is a gap. Raises `DiskError` if there are too many unreadable pages.
    """
    return _Search(file, log_id).spans()


class _Search:
    """Search of one log for record headers."""

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
        """Return the offset and header of the first record from `offset` on whose number is at least `number`.

        Only the page at `offset` is read first, because the record is usually there.
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
        """Read whole pages into the buffer, with zeros for unreadable ones; return the number of bytes."""
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
    """Add each block of a payload, which begins at `offset` of its log, to `found`. Raises `BlockError`."""
    at = 0
    while at < len(payload):
        at += walk_one(payload, at, log_id, offset, found)


def walk_one(payload: memoryview, at: int, log_id: int, offset: int, found: RunBuilder) -> int:
    """Add the block at `at` of the payload to `found`; return its length. Raises `BlockError`."""
    block = read_block_header(payload, at)
    found.add(log_id, offset + at, block.length, brief(payload, at))
    return block.length


class RunBuilder:
    """Builder of index rows, which joins adjacent blocks into runs; used by writes and by scans."""

    def __init__(self) -> None:
        self._rows: list[IndexRow] = []
        self._ledger_id = -1
        self._first_entry = self._next_entry = 0
        self._log_id = self._offset = self._end = 0
        self._first_clock_ms = self._last_clock_ms = 0
        self._lac = -1

    def add(self, log_id: int, offset: int, length: int, block: Brief) -> None:
        """Add the next block; it joins the current run if it is adjacent and the run stays within its limits."""
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
        """Return the completed rows, and forget them."""
        rows, self._rows = self._rows, []
        return rows

    def finish(self) -> list[IndexRow]:
        """Return all remaining rows."""
        self._end_run()
        return self.take()

    def _end_run(self) -> None:
        if self._ledger_id < 0:
            return
        assert self._first_entry < self._next_entry and self._offset < self._end
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
