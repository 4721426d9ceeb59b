"""From the memtable into sets: when, and what becomes of what was deleted.

    freeze → the journal has the memtable's groups → the set, the catalogue, the record (`keeper`) → it is released

A flush comes when the memtable is full, when its oldest block is old, and when it is asked for. While the store does
not answer the memtable stays, and when the other one is full, too, sockets are not read. A conflict at the record means
that somebody closes this WAL: it ends, and writes nothing more.

What a tombstone says is in a data object first, and in the catalogue as long as some object has a block of the ledger.
After ledgers were deleted, sets of which every ledger has a tombstone go, soon; for that nothing need be frozen.
Others lay tombstones here, too: brokers that own a topic now whose old ledgers this WAL has (see `tombstones`). They
are taken over into the catalogue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from quire.bookie.memtable import Memtable
from quire.bookie.write_cache import WriteCache
from quire.runtime.clock import Clock
from quire.runtime.errors import QuireError, Unavailable
from quire.runtime.tasks import Tasks
from quire.wal.keeper import Keeper
from quire.wal.object_journal import ObjectJournal
from quire.wal.set_objects import SetObjects
from quire.wal.tombstones import LaidByOthers
from quire.wal.wal_object import SetEntry
from quire.wire.bookie import Status

_log = logging.getLogger(__name__)

INTERVAL_S: Final = 300.0
"""A block is in a set after about this time: of the objects that a takeover must read there are no older ones."""

MOSTLY_DEAD_S: Final = 30.0
"""A memtable of which half is deleted is flushed when its oldest block is so old: its data objects should go."""

LOOK_S: Final = 5.0
"""How often is looked whether the memtable is old, or something was deleted. It asks nobody."""


class Flusher:
    """See `quire.bookie.neighbours.Flushing`. `ended` is called with what ends the WAL, as somebody's closing it."""

    is_awaited = False

    def __init__(
        self,
        cache: WriteCache,
        journal: ObjectJournal,
        sets: SetObjects,
        keeper: Keeper,
        laid: LaidByOthers,
        tasks: Tasks,
        clock: Clock,
        ended: Callable[[QuireError], None],
    ) -> None:
        self._cache = cache
        self._journal = journal
        self._sets = sets
        self._keeper = keeper
        self._laid = laid
        self._tasks = tasks
        self._clock = clock
        self._ended = ended
        self._flushing: asyncio.Task[None] | None = None
        self._dirty_since_s: float | None = None
        self._deleted: dict[int, int] = {}
        """Ledgers whose tombstones no catalogue has had yet, and the versions."""
        self._on_flushed: list[Callable[[], None]] = []
        self.flushes = 0

    def start(self) -> None:
        """From now on memtables are flushed by themselves."""
        self._tasks.start_every(LOOK_S, self._look, "flush in time")

    def on_flushed(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the loop whenever a memtable was released."""
        self._on_flushed.append(callback)

    # -- when --------------------------------------------------------------------------------------------
    def begin(self) -> None:
        """Freeze the memtable now, and write it."""
        assert self._flushing is None
        frozen, concerned = self._cache.freeze()
        self._note_deleted(state.ledger_id for state in concerned)
        self._dirty_since_s = None
        self._flushing = self._tasks.start(self._flush(frozen, self._journal.seal()), "flush")

    def soon(self) -> None:
        """Nobody waits for more than the journal has."""

    async def flush(self) -> None:
        """Return when everything accepted so far is in sets. Raises `Unavailable` when the WAL has ended."""
        await self._ended_flush()
        if self._cache.active.size_bytes and self._cache.frozen is None:
            self.begin()
            await self._ended_flush()
        if self._cache.frozen is not None:
            raise Unavailable(f"nothing is flushed any more: {self._journal.failure}")

    async def tidy(self) -> None:
        """Let go of what was deleted, if that frees something."""
        await self._ended_flush()
        cache = self._cache
        for ledger_id, version in self._laid.waiting.items():
            if (state := cache.state(ledger_id)).tombstone_version is None:
                state.lay_tombstone(version)
        self._note_deleted((*cache.changed, *self._laid.waiting))
        cache.changed.clear()
        if not self._deleted:
            return
        if self._is_mostly_dead():
            self.begin()  # its data objects may go
            await self._ended_flush()
        elif self._laid.waiting or self._sets.would_free(self._deleted):
            try:
                await self._change([], self._keeper.trim_seq)
            except QuireError as error:
                self._ended(error)

    def _is_mostly_dead(self) -> bool:
        """Whether the memtable has nothing alive, or has had little for a while."""
        cache = self._cache
        active = cache.active
        dead_bytes = sum(
            blocks.size_bytes for each, blocks in active.ledgers.items() if cache.ledgers[each].is_deleted
        )
        is_old = (
            self._dirty_since_s is not None and self._clock.monotonic() - self._dirty_since_s > MOSTLY_DEAD_S
        )
        return dead_bytes == active.size_bytes or (is_old and 2 * dead_bytes >= active.size_bytes)

    async def _ended_flush(self) -> None:
        if self._flushing is not None:
            await asyncio.wait([self._flushing])

    async def _look(self) -> None:
        if self._flushing is not None or self._journal.failure is not None:
            return
        now_s = self._clock.monotonic()
        if not self._cache.active.size_bytes:
            self._dirty_since_s = None
        elif self._dirty_since_s is None:
            self._dirty_since_s = now_s
        elif now_s - self._dirty_since_s > INTERVAL_S:
            self.begin()
            return
        await self.tidy()

    def _note_deleted(self, ledger_ids: Iterable[int]) -> None:
        for ledger_id in ledger_ids:
            version = self._cache.ledgers[ledger_id].tombstone_version
            if version is not None:
                self._deleted[ledger_id] = version

    # -- how ---------------------------------------------------------------------------------------------
    async def _flush(self, frozen: Memtable, last_seq: int) -> None:
        try:
            await self.durable()
            runs = [run for run in frozen.runs() if not self._cache.ledgers[run[0]].is_deleted]
            sets = [await self._keeper.write_set(runs, last_seq, self._clock.now_ms())] if runs else []
            await self._change(sets, last_seq + 1)
        except QuireError as error:
            self._ended(error)
            return
        finally:
            self._flushing = None
        self.flushes += 1
        for ledger_id, blocks in runs:
            self._cache.ledgers[ledger_id].flushed_bytes += sum(map(len, blocks))
        self._cache.release_frozen()
        for callback in self._on_flushed:
            callback()

    async def _change(self, sets: Sequence[SetEntry], trim_seq: int) -> None:
        deleted, laid = dict(self._deleted), list(self._laid.waiting)
        await self._keeper.change(sets, trim_seq, deleted, self._cache.active.ledgers)
        for ledger_id in deleted:
            self._deleted.pop(ledger_id, None)
        if laid:
            await self._laid.recorded([each for each in laid if each in deleted])

    async def durable(self) -> None:
        """Return when the journal has what was queued. Raises why it never will."""
        waiting: asyncio.Future[Status] = asyncio.get_running_loop().create_future()

        def told(statuses: Sequence[Status]) -> None:
            if not waiting.done():  # who waits may have been cut off
                waiting.set_result(statuses[0])

        self._journal.barrier(told, (Status.OK,))
        if await waiting is not Status.OK:
            raise self._journal.failure or Unavailable("the journal has ended")
