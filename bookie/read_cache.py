"""Reads from the entry logs, with an LRU cache of chunks. A chunk is the result of one direct read.

A read returns whole blocks of one ledger from an entry on. The index has the positions of runs. Adjacent runs in one
log (a checkpoint writes a ledger's blocks side by side) are fetched as one chunk: 256 KiB for a single read, 1 MiB and
read-ahead for a sequential reader. Every block is verified once, when its chunk is read. The returned blocks are views
into chunks, so a cached block costs no copy and no checksum.

Up to `cache_bytes` of chunks are kept; beyond that, the least recently used one is evicted. The memory of evicted
chunks is reused, because new pages cost 0.4 s of CPU per GiB, more than read and checksum together. A chunk's buffer is
reused when no view into it exists (`_is_free`).

The event loop calls `peek`, which reads only the cache. Any number of helper threads call `read`, which may read the
disk. The lock is internal and never held during a disk read; nothing here waits for the journal.

Read-ahead runs on the caller's helper thread: if `wants_ahead` is true after a response was sent, the thread calls
`read_ahead`. A separate thread would cost more in wake-ups (0.3 s of CPU per GiB) than it saves.

Errors: a block that does not match the index causes a `CorruptionError` with file and offset, a block on an unreadable
page a `DiskError`; its neighbours in the chunk stay valid. An entry that is not in the index ends the result. Only the
caller, which also has the memtable, can decide whether the entry exists.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Sequence
from contextlib import suppress
from mmap import mmap
from threading import Lock
from typing import Final

from quire.bookie.entry_log import EntryLogs, LogFreed
from quire.bookie.index import Index, IndexRow
from quire.runtime.disk import PAGE_BYTES, aligned_buffer, pages_up
from quire.runtime.errors import QuireError
from quire.runtime.limits import (
    KIB,
    READ_CACHE_BYTES,
    READ_CHUNK_BYTES_MAX,
    READ_CHUNK_BYTES_MIN,
)
from quire.wire.block import HEADER_BYTES, BlockError, Buffer, read_header, verify

_GAP_BYTES_MAX: Final = 32 * KIB
"""Maximum gap in bytes between two runs that one read covers; the gap contains other ledgers' runs, or padding."""

_ROWS: Final = (8, 128)
"""Maximum number of rows of the first lookup, and of a second lookup if all rows of the first one fit into the chunk.
"""
_READERS_MAX: Final = 10_000
"""Maximum number of readers whose next entry is remembered, to detect sequential reads."""

_SLACK_BYTES: Final = 32 * KIB
"""Additional space of a chunk for headers and padding, so that a run of 256 KiB of entries fits into one chunk."""

_BUFFER_SIZES: Final = tuple(
    size + _SLACK_BYTES + 2 * PAGE_BYTES for size in (READ_CHUNK_BYTES_MIN, READ_CHUNK_BYTES_MAX)
)
_WORTH_KEEPING: Final = READ_CHUNK_BYTES_MIN // 2
"""Minimum size in bytes of a buffer for reuse; smaller ones are cheap to allocate."""
_BUFFERS_MAX: Final = 16
"""Maximum number of released buffers of each size that are kept for reuse."""
_TRIES: Final = 4
"""Maximum number of released buffers that are tested for views before a new one is allocated."""
_RETRIES: Final = 8
"""Maximum number of lookups of a run that compaction keeps moving."""


class BlockReader:
    """Reader of blocks in the entry logs, with a cache."""

    def __init__(self, index: Index, logs: EntryLogs, *, cache_bytes: int = READ_CACHE_BYTES) -> None:
        self._index = index
        self._logs = logs
        self._cache_bytes = cache_bytes
        self._lock = Lock()
        self._chunks: dict[int, list[Chunk]] = {}
        self._recent: OrderedDict[Chunk, None] = OrderedDict()
        self._bytes = 0
        self.buffers = _Buffers()
        self._expected: OrderedDict[tuple[int, int], None] = OrderedDict()
        self._ahead: OrderedDict[int, int] = OrderedDict()
        self.hits = self.misses = 0

    def read(self, ledger_id: int, first_entry: int, bytes_max: int) -> list[Buffer]:
        """Return whole verified blocks in order, from the one that contains `first_entry`. May block.

        At least one block is returned, then as many as fit into `bytes_max`. The result ends before the first entry
        that is not in the index, so it is empty if `first_entry` is not in the index.
        """
        sequential = self._is_sequential(ledger_id, first_entry)
        chunk_bytes = READ_CHUNK_BYTES_MAX if sequential else READ_CHUNK_BYTES_MIN
        answer = _Answer(first_entry, bytes_max)
        while not answer.is_full:
            chunk = self._cached(ledger_id, answer.next_entry)
            if chunk is None:
                try:
                    chunk = self._fetch(ledger_id, answer.next_entry, chunk_bytes)
                except QuireError:
                    if answer.blocks:
                        break  # the blocks read so far are valid; the next read reports the damage
                    raise
            if chunk is None:
                break
            answer.take(chunk)
        self._finish(ledger_id, answer, sequential)
        return answer.blocks

    def peek(self, ledger_id: int, first_entry: int, bytes_max: int) -> list[Buffer]:
        """Read like `read`, from the cache only; empty if it does not contain the first block. Never blocks."""
        answer = _Answer(first_entry, bytes_max)
        while not answer.is_full and (chunk := self._cached(ledger_id, answer.next_entry)) is not None:
            answer.take(chunk)
        self._finish(ledger_id, answer, self._is_sequential(ledger_id, first_entry))
        return answer.blocks

    def forget(self, ledger_id: int) -> None:
        """Evict the chunks of a deleted ledger."""
        with self._lock:
            self._ahead.pop(ledger_id, None)
            for chunk in list(self._chunks.get(ledger_id, ())):
                self._drop(chunk)

    def wants_ahead(self, ledger_id: int) -> bool:
        """Return whether a sequential reader of the ledger will soon need a chunk that is not cached."""
        return ledger_id in self._ahead

    def read_ahead(self, ledger_id: int) -> None:
        """Fetch the chunk that the ledger's sequential reader needs next. May block.

        Errors are ignored here, because a later `read` raises them.
        """
        entry = self._ahead.pop(ledger_id, None)
        if entry is not None and self._cached(ledger_id, entry) is None:
            with suppress(QuireError):
                self._fetch(ledger_id, entry, READ_CHUNK_BYTES_MAX)

    @property
    def cached_bytes(self) -> int:
        """Memory of cached chunks."""
        return self._bytes

    # -- sequential readers ------------------------------------------------------------------------------

    def _is_sequential(self, ledger_id: int, first_entry: int) -> bool:
        return (ledger_id, first_entry) in self._expected

    def _finish(self, ledger_id: int, answer: _Answer, sequential: bool) -> None:
        """Record the reader's next entry, and the entry at which read-ahead begins for a sequential reader."""
        if not answer.blocks:
            return
        with self._lock:
            self._expected.pop((ledger_id, answer.first_entry), None)
            self._expected[ledger_id, answer.next_entry] = None
            if len(self._expected) > _READERS_MAX:
                self._expected.popitem(last=False)
            if sequential:
                chunk = self._find(ledger_id, answer.next_entry)
                entry = answer.next_entry if chunk is None else chunk.last_entry + 1
                if self._find(ledger_id, entry) is None:
                    self._ahead[ledger_id] = entry
                    if len(self._ahead) > _READERS_MAX:
                        self._ahead.popitem(last=False)

    # -- the cache ---------------------------------------------------------------------------------------

    def _cached(self, ledger_id: int, entry: int) -> Chunk | None:
        with self._lock:
            chunk = self._find(ledger_id, entry)
            if chunk is None:
                self.misses += 1
            else:
                self.hits += 1
                self._recent.move_to_end(chunk)
            return chunk

    def _find(self, ledger_id: int, entry: int) -> Chunk | None:
        chunks = self._chunks.get(ledger_id)
        if not chunks:
            return None
        place = bisect_right(chunks, entry, key=Chunk.first_entry) - 1
        return chunks[place] if place >= 0 and chunks[place].last_entry >= entry else None

    def _keep(self, chunk: Chunk) -> None:
        with self._lock:
            chunks = self._chunks.setdefault(chunk.ledger_id, [])
            place = bisect_right(chunks, chunk.first_entry(), key=Chunk.first_entry)
            chunks.insert(place, chunk)
            if place and chunks[place - 1].first_entry() == chunk.first_entry():
                self._drop(chunks[place - 1])
            self._recent[chunk] = None
            self._bytes += chunk.size_bytes
            while self._bytes > self._cache_bytes:
                self._drop(next(iter(self._recent)))

    def _drop(self, chunk: Chunk) -> None:
        del self._recent[chunk]
        self._bytes -= chunk.size_bytes
        assert self._bytes >= 0
        chunks = self._chunks[chunk.ledger_id]
        chunks.remove(chunk)
        if not chunks:
            del self._chunks[chunk.ledger_id]
        self.buffers.give(chunk.buffer)

    # -- reading -----------------------------------------------------------------------------------------

    def _fetch(self, ledger_id: int, entry: int, chunk_bytes: int) -> Chunk | None:
        """Read the chunk that begins with the run of `entry`, and cache it."""
        chunk = self._load(ledger_id, entry, chunk_bytes)
        if chunk is not None:
            self._keep(chunk)
        return chunk

    def _load(self, ledger_id: int, entry: int, chunk_bytes: int) -> Chunk | None:
        for _ in range(_RETRIES):
            rows = self._look_up(ledger_id, entry, chunk_bytes)
            if not rows:
                return None
            try:
                return self._read_rows(rows, entry)
            except LogFreed:
                continue  # compacted between lookup and read: the index has the new position
        raise LogFreed(f"the entry logs of ledger {ledger_id} change faster than they can be read; try again")

    def _look_up(self, ledger_id: int, entry: int, chunk_bytes: int) -> list[IndexRow]:
        """Return the rows of the chunk that begins with the run of `entry`; a second lookup finds more small rows."""
        for limit in _ROWS:
            rows = _side_by_side(self._index.rows(ledger_id, entry, limit), entry, chunk_bytes)
            if len(rows) < limit:
                break
        return rows

    def _read_rows(self, rows: list[IndexRow], entry: int) -> Chunk:
        """Read all rows by one direct read, and verify their blocks."""
        start, log_id = rows[0].offset, rows[0].log_id
        length = rows[-1].offset + rows[-1].length - start
        chunk = Chunk(rows[0].ledger_id, self.buffers.take(pages_up(start % PAGE_BYTES + length)))
        found = self._logs.salvage_into(chunk.buffer, log_id, start, length)
        for row in rows:
            try:
                _add_blocks(chunk, found.run[row.offset - start :][: row.length], row, entry)
            except _Damage as damage:
                if chunk.last_entry >= entry:
                    break  # the blocks before the damaged one are valid; a read of the damaged one raises the error
                begin = row.offset - start + damage.offset
                end = begin + damage.length
                raise found.error(str(damage), self._logs.file_name(log_id), begin, end) from damage
        return chunk


class Chunk:
    """Verified blocks of one ledger, without a gap, and the buffer that contains them."""

    __slots__ = ("blocks", "buffer", "first_entries", "last_entry", "ledger_id", "size_bytes")

    def __init__(self, ledger_id: int, buffer: mmap) -> None:
        self.ledger_id = ledger_id
        self.buffer = buffer
        self.size_bytes = len(buffer)
        self.blocks: list[Buffer] = []
        self.first_entries: list[int] = []
        self.last_entry = -1

    def first_entry(self) -> int:
        return self.first_entries[0]


class _Answer:
    """Blocks collected for one read, and the entry after them."""

    def __init__(self, first_entry: int, bytes_max: int) -> None:
        self.blocks: list[Buffer] = []
        self.first_entry = self.next_entry = first_entry
        self.is_full = False
        self._bytes_left = bytes_max

    def take(self, chunk: Chunk) -> None:
        """Add the chunk's blocks, from the one that contains `next_entry`, while they fit into `bytes_max`."""
        for place in range(bisect_right(chunk.first_entries, self.next_entry) - 1, len(chunk.blocks)):
            block = chunk.blocks[place]
            self._bytes_left -= len(block)
            if self._bytes_left < 0 and self.blocks:
                self.is_full = True
                self.next_entry = chunk.first_entries[place]
                return
            self.blocks.append(block)
        self.next_entry = chunk.last_entry + 1
        self.is_full = self._bytes_left <= 0


class _Damage(Exception):
    """Raised for an invalid block; `offset` counts from the start of its run. Internal to this file."""

    def __init__(self, what: str, offset: int, length: int = HEADER_BYTES) -> None:
        super().__init__(what)
        self.offset = offset
        self.length = length


class _Buffers:
    """Pool of aligned buffers for chunks. A buffer is reused when no view into it exists any more."""

    def __init__(self) -> None:
        self._given = {size: deque[mmap](maxlen=_BUFFERS_MAX) for size in _BUFFER_SIZES}
        self.made = 0

    def take(self, size_bytes: int) -> mmap:
        """Return an aligned buffer of at least this size, reused if possible. Its content is arbitrary."""
        used = None
        for size in _BUFFER_SIZES:
            if _WORTH_KEEPING <= size_bytes <= size:
                used, size_bytes = self._used(size), size
                break
        if used is not None:
            return used
        self.made += 1
        return aligned_buffer(size_bytes)

    def give(self, buffer: mmap) -> None:
        """Release a buffer; views into it may still exist."""
        given = self._given.get(len(buffer))
        if given is not None:
            given.append(buffer)

    def _used(self, size: int) -> mmap | None:
        given = self._given[size]
        for _ in range(min(len(given), _TRIES)):
            try:
                buffer = given.popleft()
            except IndexError:  # another thread was faster
                return None
            if _is_free(buffer):
                return buffer
            given.append(buffer)
        return None


def _is_free(buffer: mmap) -> bool:
    """Return whether no view into the buffer exists.

    mmap refuses to resize a buffer that has views, so this function tries to resize it to its current size.
    """
    try:
        buffer.resize(len(buffer))
    except (BufferError, SystemError, OSError):
        return False
    return True


def _side_by_side(rows: Sequence[IndexRow], entry: int, chunk_bytes: int) -> list[IndexRow]:
    """Return the leading rows that one read of `chunk_bytes` can fetch; [] if the first row lacks `entry`."""
    if not rows or rows[0].first_entry > entry:
        return []
    first = last = rows[0]
    chosen = [first]
    for row in rows[1:]:
        gap = row.offset - (last.offset + last.length)
        if (
            row.first_entry != last.last_entry + 1
            or row.log_id != first.log_id
            or not 0 <= gap <= _GAP_BYTES_MAX
            or row.offset + row.length - first.offset > chunk_bytes + _SLACK_BYTES
        ):
            break
        chosen.append(row)
        last = row
    return chosen


def _add_blocks(chunk: Chunk, run: memoryview, row: IndexRow, entry: int) -> None:
    """Verify the blocks of one run, and add them to the chunk. Raises `_Damage` at the first invalid block.

    A damaged block before the block that contains `entry` is skipped if its header is valid.
    """
    at, expected = 0, row.first_entry
    while at < row.length:
        try:
            header = verify(run, at)
            good = True
        except BlockError as error:
            try:
                header = read_header(run, at)
            except BlockError:
                raise _Damage(str(error), at) from error
            if header.last_entry >= entry:
                raise _Damage(str(error), at, header.length) from error
            good = False
        if header.ledger_id != row.ledger_id or header.first_entry != expected:
            raise _Damage(f"ledger {row.ledger_id}, entry {expected} is not at the position in the index", at)
        if good:
            chunk.blocks.append(run[at : at + header.length])
            chunk.first_entries.append(header.first_entry)
        else:
            chunk.blocks.clear()
            chunk.first_entries.clear()
        at += header.length
        expected = header.last_entry + 1
        chunk.last_entry = header.last_entry
    if expected != row.last_entry + 1:
        raise _Damage(f"ledger {row.ledger_id} ends at entry {expected - 1}, not at {row.last_entry}", at)
