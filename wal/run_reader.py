"""Reading the blocks of a WAL's ledgers from its objects: one range read a run, proven by its row's checksum.

Runs are kept in a cache that all WALs of a process share; two readers that want the same run make one fetch, and a
reader that goes on where it stopped has the next runs fetched ahead. A small data object was read whole when its rows
were (see `view`): its runs, of many ledgers, are cut from what the cache has under its name. An object that is gone may
have been replaced by another since the index was read (`NotFound`): who asks looks at the index again.
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
RUNS_AHEAD: Final = 4
READERS_MAX: Final = 10_000
"""Ledgers of which it is remembered where the last read ended; of others nothing is fetched ahead."""


def run_cache(bytes_max: int) -> RunCache:
    return Fetched(bytes_max, len)


class RunReader:
    """All methods on the loop."""

    def __init__(self, store: ObjectStore, index: RunIndex, cache: RunCache) -> None:
        self._store = store
        self._index = index
        self._cache = cache
        self._next_entries: dict[int, int] = {}

    async def read(self, ledger_id: int, first_entry: int, bytes_max: int) -> list[Buffer]:
        """Whole, proven blocks, the first holds `first_entry`, up to the first gap or `bytes_max`; one at least.

        [] when the index has none. Raises `CorruptionError` with object and offset, `NotFound`, `Unavailable`.
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
                    break  # who goes on reading there is told
                raise
            found = first_blocks(content[skip_to_entry(content, 0, entry) :], max(left, 1))
            blocks += found
            left -= sum(map(len, found))
            entry = peek(found[-1]).last_entry + 1
        self._remember(ledger_id, entry)
        return blocks

    def _kept(self, row: Run) -> memoryview | None:
        """The run, if the cache has it, or the whole object. What does not prove itself there is read again."""
        whole = self._cache.get(row.object_name)
        if whole is not None:
            run = whole[row.offset : row.offset + row.length]
            if crc32c(run) == row.crc:
                return run
        return self._cache.get(row)

    async def _load(self, row: Run) -> memoryview:
        return await self._store.run(lambda: self.load(row))

    def load(self, row: Run) -> memoryview:
        """Read a run and prove it; blocks."""
        content = self._store.blocking.get_range(row.object_name, row.offset, row.length)
        return _proven(memoryview(content), row.crc, f"{self._store.url}/{row.object_name}", row.offset)

    def _remember(self, ledger_id: int, next_entry: int) -> None:
        if len(self._next_entries) >= READERS_MAX and ledger_id not in self._next_entries:
            self._next_entries.clear()
        self._next_entries[ledger_id] = next_entry


def _wanted(rows: Sequence[Run], first_entry: int, bytes_max: int) -> int:
    """How many of `rows` a read of `bytes_max` wants: without a gap, from the one that holds `first_entry`."""
    count, size = 0, 0
    for row in rows[:RUNS_AT_ONCE]:
        if row.first_entry > first_entry or (count and size + row.length > bytes_max):
            break
        count += 1
        size += row.length
        first_entry = row.last_entry + 1
    return count


def read_data_object(store: BlockingStore, wal: str, seq: int) -> list[Buffer]:
    """All blocks of a data object, proven by its rows; blocks. `CorruptionError`, `NotFound`, `Unavailable`."""
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
