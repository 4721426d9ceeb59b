"""The way out of a node on object storage: memtables, then the runs of its sets.

| what is asked for is | answer |
|---|---|
| there | the blocks |
| of a ledger with a tombstone, also one laid while the store was asked | DELETED |
| not there, of a ledger with blocks or a fence | NO_SUCH_ENTRY |
| not there, of a ledger never heard of | NO_SUCH_LEDGER |
| damaged, or its object is missing | IO_ERROR; never one of absence |
| in the store, which does not answer | UNREACHABLE |
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from quire.bookie import memtable
from quire.bookie.index import find_hole
from quire.bookie.neighbours import CompareDone
from quire.bookie.write_cache import WriteCache
from quire.runtime.errors import OutcomeUnknown, QuireError, Unavailable
from quire.runtime.limits import READ_BYTES_MAX
from quire.runtime.tasks import Tasks
from quire.wal.run_index import RunIndex
from quire.wal.run_reader import RunReader
from quire.wire.block import Buffer, read_header, same_bytes
from quire.wire.bookie import (
    FindHoleRequest,
    FindTimeRequest,
    ReadRequest,
    ReadResponse,
    SimpleResponse,
    Status,
)

_log = logging.getLogger(__name__)


class Reads:
    """See `quire.bookie.neighbours.Reading`. `index` has the runs of sets."""

    def __init__(self, cache: WriteCache, index: RunIndex, runs: RunReader, tasks: Tasks) -> None:
        self._cache = cache
        self._index = index
        self._runs = runs
        self._tasks = tasks

    def forget(self, ledger_id: int) -> None:
        """What the cache of runs has of a deleted ledger goes when others need the room."""

    async def read(self, request: ReadRequest) -> ReadResponse:
        """Whole blocks from the entry on; see the table."""
        ledger_id = request.ledger_id
        state = self._cache.ledgers.get(ledger_id)
        if state is None or state.tombstone_version is not None:
            return ReadResponse(self._absent(ledger_id))
        try:
            blocks = await self._find(ledger_id, request.first_entry, min(request.bytes_max, READ_BYTES_MAX))
        except QuireError as error:
            status = self._absent(ledger_id) if self._is_deleted(ledger_id) else failed(error)
            _log.error("entry %d of ledger %d cannot be read: %s", request.first_entry, ledger_id, error)
            return ReadResponse(status, state.lac, detail=str(error))
        return ReadResponse(Status.OK if blocks else self._absent(ledger_id), state.lac, blocks)

    async def _find(self, ledger_id: int, first_entry: int, bytes_max: int) -> Sequence[Buffer]:
        kept = memtable.read(self._cache.tables, ledger_id, first_entry, bytes_max)
        return kept or await self._runs.read(ledger_id, first_entry, bytes_max)

    def _absent(self, ledger_id: int) -> Status:
        if self._is_deleted(ledger_id):
            return Status.DELETED
        return Status.NO_SUCH_ENTRY if ledger_id in self._cache.ledgers else Status.NO_SUCH_LEDGER

    def _is_deleted(self, ledger_id: int) -> bool:
        state = self._cache.ledgers.get(ledger_id)
        return state is not None and state.tombstone_version is not None

    def compare(
        self, ledger_id: int, first_entry: int, block: Buffer, recovery: bool, done: CompareDone
    ) -> None:
        """Is the block that was sent again the one that lies in a set?"""

        async def compare() -> None:
            try:
                found = await self._runs.read(ledger_id, first_entry, 1)
            except QuireError as error:
                done(failed(error))
            else:
                done(Status.OK if found and same_bytes(found[0], block) else Status.CONFLICT)

        self._tasks.start(compare(), f"compare a block of ledger {ledger_id}")

    async def find_time(self, request: FindTimeRequest) -> SimpleResponse:
        """The first entry that may be as late as the time asked for."""
        ledger_id, time_ms = request.ledger_id, request.time_ms
        state = self._cache.ledgers.get(ledger_id)
        if state is None or state.tombstone_version is not None:
            return SimpleResponse(self._absent(ledger_id))
        entry = memtable.find_time(self._cache.tables, ledger_id, time_ms, _clock_of)
        flushed = self._index.find_time(ledger_id, time_ms)
        if flushed <= self._index.last_entry(ledger_id):
            entry = flushed if entry is None else min(entry, flushed)
        return SimpleResponse(Status.OK, state.last_entry + 1 if entry is None else entry)

    async def find_hole(self, request: FindHoleRequest) -> SimpleResponse:
        """The first entry of a range that is not here."""
        ledger_id = request.ledger_id
        if ledger_id not in self._cache.ledgers or self._is_deleted(ledger_id):
            return SimpleResponse(self._absent(ledger_id))
        kept = memtable.spans(self._cache.tables, ledger_id)
        entry = find_hole(self._index, kept, ledger_id, request.first_entry, request.last_entry)
        return SimpleResponse(Status.OK, entry)


def failed(error: QuireError) -> Status:
    """The answer to a read that met `error`: damage, or a store that does not answer."""
    return Status.UNREACHABLE if isinstance(error, Unavailable | OutcomeUnknown) else Status.IO_ERROR


def _clock_of(block: Buffer) -> int:
    return read_header(block).clock_ms
