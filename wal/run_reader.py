"""Reader of the blocks of a WAL's ledgers: one range read per run, verified by the checksum in the run's row.

All WALs of a process share a cache of runs. Two readers of the same run share one fetch, and the next runs of a
sequential reader are prefetched. `view` reads small data objects whole, together with their rows, and caches them, so
their runs need no further read. If an object is missing (`NotFound`), a set may have replaced it since the index was
read: the caller refreshes the index and tries again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from quire.objects.fetched import Fetched
from quire.objects.store import BlockingStore, ObjectStore
from quire.runtime.errors import CorruptionError, QuireError
from quire.wal import wal_object
from quire.wal.run_index import Run, RunIndex
from quire.wire.block import Buffer, peek
from quire.wire.block_runs import first_blocks, skip_to_entry, split
from quire.wire.checksum import crc32c

RunCache = Fetched[memoryview]
RUNS_AT_ONCE: Final = 16
"""Maximum number of runs from which one read returns blocks."""
RUNS_AHEAD: Final = 4
"""Number of runs that are prefetched for a sequential reader."""
READERS_MAX: Final = 10_000
"""Maximum number of ledgers whose next entry is remembered, to detect sequential readers."""


def run_cache(bytes_max: int) -> RunCache:
    """Create a cache of at most `bytes_max` bytes of runs."""
    return Fetched(bytes_max, len)


class RunReader:
    """Reader of one WAL's runs. All methods run on the loop, except `load`."""

    def __init__(self, store: ObjectStore, index: RunIndex, cache: RunCache) -> None:
        self._store = store
        self._index = index
        self._cache = cache
        self._next_entries: dict[int, int] = {}

    async def read(self, ledger_id: int, first_entry: int, bytes_max: int) -> list[Buffer]:
        """Return whole, verified blocks; the first contains `first_entry`.

        The blocks end at the first gap or after `bytes_max`. At least one block is returned, or [] if the index does
        not contain `first_entry`. Raises `CorruptionError` with object and offset, `NotFound`, `Unavailable`.
        """
        is_sequential = self._next_entries.get(ledger_id) == first_entry
        rows = self._index.rows(ledger_id, first_entry, RUNS_AT_ONCE + RUNS_AHEAD)
        wanted = _wanted(rows, first_entry, bytes_max)
        for row in rows[1 : wanted + RUNS_AHEAD * is_sequential]:
            if row not in self._cache and row.object_name not in self._cache:
                self._cache.fetch_ahead(row, partial(self._load, row))
        blocks: list[Buffer] = []
        left, entry = bytes_max, first_entry
        for row in rows[:wanted]:
            try:
                content = self._kept(row) or await self._cache.fetch(row, partial(self._load, row))
            except QuireError:
                if blocks:
                    break  # the next read, from this entry on, raises the error
                raise
            found = first_blocks(content[skip_to_entry(content, 0, entry) :], max(left, 1))
            blocks += found
            left -= sum(map(len, found))
            entry = peek(found[-1]).last_entry + 1
        self._remember(ledger_id, entry)
        return blocks

    def _kept(self, row: Run) -> memoryview | None:
        """Return the run from the cache, or from a cached whole object; None if it must be read from the store."""
        whole = self._cache.get(row.object_name)
        if whole is not None:
            run = whole[row.offset : row.offset + row.length]
            if crc32c(run) == row.crc:
                return run
        return self._cache.get(row)

    async def _load(self, row: Run) -> memoryview:
        return await self._store.run(lambda: self.load(row))

    def load(self, row: Run) -> memoryview:
        """Read a run from the store and verify it. This call blocks its thread."""
        content = self._store.blocking.get_range(row.object_name, row.offset, row.length)
        return _proven(memoryview(content), row.crc, f"{self._store.url}/{row.object_name}", row.offset)

    def _remember(self, ledger_id: int, next_entry: int) -> None:
        if len(self._next_entries) >= READERS_MAX and ledger_id not in self._next_entries:
            self._next_entries.clear()
        self._next_entries[ledger_id] = next_entry


def _wanted(rows: Sequence[Run], first_entry: int, bytes_max: int) -> int:
    """Return how many of `rows` a read of `bytes_max` needs: contiguous runs from `first_entry` on."""
    count, size = 0, 0
    for row in rows[:RUNS_AT_ONCE]:
        if row.first_entry > first_entry or (count and size + row.length > bytes_max):
            break
        count += 1
        size += row.length
        first_entry = row.last_entry + 1
    return count


def read_data_object(store: BlockingStore, wal: str, seq: int) -> list[Buffer]:
    """Read all blocks of a data object, and verify them by the checksums in its rows. This call blocks its thread.

    Raises `CorruptionError`, `NotFound`, `Unavailable`.
    """
    name = wal_object.data_name(wal, seq)
    header = wal_object.header_of(store.get_range(name, 0, wal_object.HEADER_BYTES), wal, seq)
    content = memoryview(store.get_range(name, 0, header.object_bytes))
    rows, _ = wal_object.read_data_tail(header, content[header.tail_offset :], name)
    found: list[Buffer] = []
    for _, _, _, offset, length, crc in wal_object.ROW.iter_unpack(rows):
        found += split(_proven(content[offset : offset + length], crc, name, offset))
    return found


def _proven(run: memoryview, crc: int, place: str, offset: int) -> memoryview:
    if crc32c(run) != crc:
        raise CorruptionError("a run of blocks does not match its checksum", place, offset)
    return run
