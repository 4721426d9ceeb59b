"""Reads of blocks from memory and disk, for readers, recoveries and scrubs, and the status of absent entries.

    memtables → read cache → index and one direct read on the ledger's thread

| the entry is | answer |
|---|---|
| found | the blocks |
| of a ledger with a tombstone, even one written during the read | DELETED |
| not found, and blocks may have been lost since the requested incarnation of this bookie | LIMBO |
| not found, of a ledger that this bookie knows | NO_SUCH_ENTRY |
| not found, of a ledger that this bookie does not know | NO_SUCH_LEDGER |
| unreadable | IO_ERROR, reported to `Health`; it does not count as absent |

All disk reads of one ledger run on the same thread, one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from quire.bookie import memtable, scrub
from quire.bookie.block_restore import restore_block
from quire.bookie.health import Health
from quire.bookie.identity import Identity
from quire.bookie.index import find_hole
from quire.bookie.ledger_storage import LedgerStorage
from quire.bookie.ledgers import LedgerState
from quire.bookie.neighbours import CompareDone
from quire.bookie.read_cache import BlockReader
from quire.bookie.scrub import Checked
from quire.bookie.write_cache import WriteCache
from quire.runtime.clock import Clock
from quire.runtime.disk import Worker
from quire.runtime.errors import CorruptionError, DiskError, QuireError
from quire.runtime.limits import READ_BYTES_MAX
from quire.runtime.metrics import Histogram
from quire.wire.block import Buffer, read_header, same_bytes
from quire.wire.bookie import (
    BookieId,
    FindHoleRequest,
    FindTimeRequest,
    ReadRequest,
    ReadResponse,
    SimpleResponse,
    Status,
)


class Reads:
    """Reads for requests that name this bookie. `loss` is the error text of LIMBO responses."""

    def __init__(
        self,
        cache: WriteCache,
        storage: LedgerStorage,
        threads: Sequence[Worker],
        identity: Identity,
        health: Health,
        loss: str,
        cache_bytes: int,
        clock: Clock,
    ) -> None:
        self._cache = cache
        self._storage = storage
        self._threads = threads
        self._identity = identity
        self._health = health
        self._loss = loss
        self.blocks = BlockReader(storage.index, storage.logs, cache_bytes=cache_bytes)
        self._clock = clock
        self.read_s = Histogram()
        """Duration of each read of blocks from memory or disk, in seconds."""

    def forget(self, ledger_id: int) -> None:
        """Drop a deleted ledger's blocks from memory."""
        self.blocks.forget(ledger_id)

    # -- blocks ------------------------------------------------------------------------------------------
    async def read(self, request: ReadRequest) -> ReadResponse:
        """Return the blocks from the requested entry on.

        The caller must make a requested fence durable before this call.
        """
        state = self._cache.ledgers.get(request.ledger_id)
        if state is None:
            return self._nothing(self._never_heard(request))
        if state.tombstone_version is not None:
            return ReadResponse(Status.DELETED, state.lac)
        began_s = self._clock.monotonic()
        try:
            blocks = await self._find(state, request.first_entry, min(request.bytes_max, READ_BYTES_MAX))
        except (QuireError, OSError) as error:
            if self._absent(state, request.bookie) is Status.DELETED:
                return ReadResponse(Status.DELETED, state.lac)
            self._health.read_failed(error, request.ledger_id, request.first_entry)
            return ReadResponse(Status.IO_ERROR, state.lac, detail=str(error))
        self.read_s.observe(self._clock.monotonic() - began_s)
        if blocks:
            return ReadResponse(Status.OK, state.lac, blocks)
        return self._nothing(self._absent(state, request.bookie), state.lac)

    def _nothing(self, status: Status, lac: int = -1) -> ReadResponse:
        return ReadResponse(status, lac, detail=self._loss if status is Status.LIMBO else "")

    def _never_heard(self, request: ReadRequest) -> Status:
        lossy = request.bookie.incarnation < self._identity.lossy_before
        return Status.LIMBO if lossy else Status.NO_SUCH_LEDGER

    def _absent(self, state: LedgerState, asked: BookieId) -> Status:
        if state.tombstone_version is not None:  # written while the disk was read
            return Status.DELETED
        lossy = state.is_limbo or asked.incarnation < self._identity.lossy_before
        return Status.LIMBO if lossy else Status.NO_SUCH_ENTRY

    async def _find(self, state: LedgerState, first_entry: int, bytes_max: int) -> Sequence[Buffer]:
        if first_entry > state.last_entry:
            return ()
        ledger_id = state.ledger_id
        blocks = memtable.read(self._cache.tables, ledger_id, first_entry, bytes_max)
        return blocks or await self._find_flushed(ledger_id, first_entry, bytes_max)

    async def _find_flushed(self, ledger_id: int, first_entry: int, bytes_max: int) -> list[Buffer]:
        """Read from the cache, else from the disk on the ledger's thread; then let the thread read ahead."""
        thread = self._thread_of(ledger_id)
        blocks = self.blocks.peek(ledger_id, first_entry, bytes_max)
        if not blocks:
            blocks = await thread.run(partial(self.blocks.read, ledger_id, first_entry, bytes_max))
        if self.blocks.wants_ahead(ledger_id):
            thread.submit(partial(self.blocks.read_ahead, ledger_id), lambda _, error: None)
        return blocks

    def _thread_of(self, ledger_id: int) -> Worker:
        return self._threads[ledger_id % len(self._threads)]

    # -- other requests ----------------------------------------------------------------------------------
    def compare(
        self, ledger_id: int, first_entry: int, block: Buffer, recovery: bool, done: CompareDone
    ) -> None:
        """Compare a repeated block with the flushed one, and call `done` with the status; see `intake`.

        A recovery or repair may send a block because this bookie's copy is damaged. So for such a request, the disk is
        read instead of the cache, and a damaged copy is restored.
        """
        if recovery:
            self.blocks.forget(ledger_id)

        def compared(found: list[Buffer] | None, error: BaseException | None) -> None:
            is_damaged = isinstance(error, CorruptionError | DiskError)
            if recovery and is_damaged and not self._health.is_exhausted:
                self._restore(ledger_id, first_entry, block, done)
            elif error is not None or found is None:
                self._health.read_failed(error, ledger_id, first_entry)
                done(Status.IO_ERROR)
            else:
                done(Status.OK if found and same_bytes(found[0], block) else Status.CONFLICT)

        read = partial(self.blocks.read, ledger_id, first_entry, 1)
        self._thread_of(ledger_id).submit(read, compared)

    def _restore(self, ledger_id: int, first_entry: int, block: Buffer, done: CompareDone) -> None:
        def restored(status: Status | None, error: BaseException | None) -> None:
            if error is not None or status is None:
                self._health.read_failed(error, ledger_id, first_entry)
                done(Status.IO_ERROR)
            else:
                state = self._cache.state(ledger_id)
                done(status if state.tombstone_version is None else Status.DELETED)

        self._storage.worker.submit(
            partial(restore_block, self._storage.index, self._storage.logs, block), restored
        )

    async def find_time(self, request: FindTimeRequest) -> SimpleResponse:
        """Return an entry before which no block has a clock (ms) of the requested time or later."""
        state = self._cache.ledgers.get(request.ledger_id)
        if state is None:
            return SimpleResponse(Status.NO_SUCH_LEDGER)
        if state.tombstone_version is not None:
            return SimpleResponse(Status.DELETED)
        entry = memtable.find_time(self._cache.tables, request.ledger_id, request.time_ms, _clock_of)
        find = partial(self._storage.index.find_time, request.ledger_id, request.time_ms)
        try:
            flushed = await self._thread_of(request.ledger_id).run(find)
            last_flushed = self._storage.index.last_entry(request.ledger_id)
        except QuireError as error:
            self._health.read_failed(error, request.ledger_id, 0)
            return SimpleResponse(Status.IO_ERROR, detail=str(error))
        if flushed <= last_flushed:
            entry = flushed if entry is None else min(entry, flushed)
        return SimpleResponse(Status.OK, state.last_entry + 1 if entry is None else entry)

    async def find_hole(self, request: FindHoleRequest) -> SimpleResponse:
        """Return the first entry of the requested range that this bookie lacks, for repair of incomplete copies."""
        ledger_id = request.ledger_id
        state = self._cache.ledgers.get(ledger_id)
        if state is None:
            return SimpleResponse(Status.NO_SUCH_LEDGER)
        kept = memtable.spans(self._cache.tables, ledger_id)
        find = partial(
            find_hole, self._storage.index, kept, ledger_id, request.first_entry, request.last_entry
        )
        try:
            entry = await self._thread_of(ledger_id).run(find)
        except QuireError as error:
            self._health.read_failed(error, ledger_id, request.first_entry)
            return SimpleResponse(Status.IO_ERROR, detail=str(error))
        absent = self._absent(state, request.bookie)
        if absent is Status.DELETED:
            return SimpleResponse(absent)
        # For a ledger in limbo, a recovery must not treat the hole as an absent entry; repair may fill it.
        return SimpleResponse(
            absent if absent is Status.LIMBO and entry <= request.last_entry else Status.OK, entry
        )

    async def check_run(self, ledger_id: int, entry: int) -> Checked:
        """Read the flushed run that contains `entry`, or the next run, from disk, and verify it."""
        check = partial(scrub.check_run, self._storage.index, self._storage.logs, ledger_id, entry)
        checked = await self._thread_of(ledger_id).run(check)
        if checked.damage is not None:
            self._health.read_failed(checked.damage, ledger_id, checked.damaged_entry)
        return checked


def _clock_of(block: Buffer) -> int:
    return read_header(block).clock_ms
