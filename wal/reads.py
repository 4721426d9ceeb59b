"""Read path of an open WAL: searches the memtables, then the runs of its sets.

| the requested entry | answer |
|---|---|
| exists | the blocks |
| is of a ledger with a tombstone, even one written during the read | DELETED |
| does not exist in a ledger with blocks or a fence | NO_SUCH_ENTRY |
| is of an unknown ledger | NO_SUCH_LEDGER |
| is damaged: its checksum is wrong, or its object is missing from the verified store | IO_ERROR |
| cannot be read now: no answer, access denied, no file descriptor, a bad sector | UNREACHABLE |
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

from quire.bookie import memtable
from quire.bookie.index import find_hole
from quire.bookie.neighbours import CompareDone
from quire.bookie.write_cache import WriteCache
from quire.runtime.errors import CorruptionError, QuireError
from quire.runtime.limits import READ_BYTES_MAX
from quire.runtime.tasks import Tasks
from quire.wal.patience import as_quire_error
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
    """Implementation of `quire.bookie.neighbours.Reading`.

    `index` contains the runs of the sets; `prove` is `proof.prove_missing` for this WAL.
    """

    def __init__(
        self,
        cache: WriteCache,
        index: RunIndex,
        runs: RunReader,
        tasks: Tasks,
        prove: Callable[[QuireError], Awaitable[QuireError]],
    ) -> None:
        self._cache = cache
        self._index = index
        self._runs = runs
        self._tasks = tasks
        self._prove = prove

    def forget(self, ledger_id: int) -> None:
        """Do nothing: runs of a deleted ledger leave the cache by eviction."""

    async def read(self, request: ReadRequest) -> ReadResponse:
        """Return whole blocks from the requested entry on, or a status from the module's table."""
        ledger_id = request.ledger_id
        state = self._cache.ledgers.get(ledger_id)
        if state is None or state.tombstone_version is not None:
            return ReadResponse(self._absent(ledger_id))
        try:
            blocks = await self._find(ledger_id, request.first_entry, min(request.bytes_max, READ_BYTES_MAX))
        except QuireError as error:
            why = await self._prove(error)
            status = self._absent(ledger_id) if self._is_deleted(ledger_id) else failed(why)
            _log.error("cannot read entry %d of ledger %d: %s", request.first_entry, ledger_id, why)
            return ReadResponse(status, state.lac, detail=str(why))
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
        """Compare a block that is added again with the stored block, and call `done` with the status."""

        async def compare() -> None:
            try:
                found = await self._runs.read(ledger_id, first_entry, 1)
            except Exception as error:
                done(failed(as_quire_error(error, f"the comparison of a block of ledger {ledger_id}")))
            else:
                done(Status.OK if found and same_bytes(found[0], block) else Status.CONFLICT)

        self._tasks.start(compare(), f"compare a block of ledger {ledger_id}")

    async def find_time(self, request: FindTimeRequest) -> SimpleResponse:
        """Return an entry such that no block with a clock (ms) of the requested time or later lies before it."""
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
        """Return the first entry of the requested range that this WAL does not store."""
        ledger_id = request.ledger_id
        if ledger_id not in self._cache.ledgers or self._is_deleted(ledger_id):
            return SimpleResponse(self._absent(ledger_id))
        kept = memtable.spans(self._cache.tables, ledger_id)
        entry = find_hole(self._index, kept, ledger_id, request.first_entry, request.last_entry)
        return SimpleResponse(Status.OK, entry)


def failed(error: Exception) -> Status:
    """Return IO_ERROR for damage, which callers treat as a lost copy, and UNREACHABLE for all other errors.

    Denied access, a time-out or a lack of file descriptors does not show that the bytes are damaged.
    """
    return Status.IO_ERROR if isinstance(error, CorruptionError) else Status.UNREACHABLE


def _clock_of(block: Buffer) -> int:
    return read_header(block).clock_ms
