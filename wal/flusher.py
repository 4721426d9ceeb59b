"""Flusher of an open WAL: writes memtables into sets, and tombstones into the catalogue.

    freeze the memtable → wait until the journal has uploaded its blocks → write set, catalogue and record (`keeper`)
    → release the memtable

A flush begins when the memtable is full, when its oldest block is old, or on request. While the store does not answer,
the frozen memtable stays in memory. While the active memtable is full as well, the broker stops reading its sockets. A
version conflict on the record means that another process is closing this WAL; then the WAL ends. It also ends after an
unexpected exception, because otherwise the frozen memtable would stay forever without an error.

A tombstone of a deleted ledger is first written into a data object. It stays in the catalogue as long as any object
contains a block of the ledger. A set is deleted soon after all its ledgers have tombstones, without freezing the
memtable. Other brokers record tombstones as well, if they own topics whose old ledgers are in this WAL (see
`tombstones`); the flusher copies their tombstones into the catalogue.
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
from quire.wal.patience import as_quire_error
from quire.wal.set_objects import SetObjects
from quire.wal.tombstones import LaidByOthers
from quire.wal.wal_object import SetEntry
from quire.wire.bookie import Status

_log = logging.getLogger(__name__)

INTERVAL_S: Final = 300.0
"""Approximate time in seconds until a block is in a set; it bounds the data objects that a takeover must read."""

MOSTLY_DEAD_S: Final = 30.0
"""Age in seconds from which a memtable is flushed if half of its bytes are deleted, so that its data objects can be
deleted.
"""

LOOK_S: Final = 5.0
"""Interval in seconds of the checks for an old memtable or new tombstones; the checks read only memory."""


class Flusher:
    """Implementation of `quire.bookie.neighbours.Flushing`. `ended` is called with the error that ends the WAL."""

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
        """Tombstones that are in no catalogue yet: version by ledger."""
        self._on_flushed: list[Callable[[], None]] = []
        self.flushes = 0

    def start(self) -> None:
        """Begin the periodic checks."""
        self._tasks.start_every(LOOK_S, self._look, "flush in time")

    def on_flushed(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the event loop each time a memtable is released."""
        self._on_flushed.append(callback)

    # -- when --------------------------------------------------------------------------------------------
    def begin(self) -> None:
        """Freeze the active memtable, and start writing it into a set."""
        assert self._flushing is None
        frozen, concerned = self._cache.freeze()
        self._note_deleted(state.ledger_id for state in concerned)
        self._dirty_since_s = None
        self._flushing = self._tasks.start(self._flush(frozen, self._journal.seal()), "flush")

    def soon(self) -> None:
        """Do nothing: a block in the journal is durable, so the flush may wait."""

    async def flush(self) -> None:
        """Wait until all blocks accepted so far are in sets. Raises `Unavailable` if the WAL has ended."""
        await self._ended_flush()
        if self._cache.active.size_bytes and self._cache.frozen is None:
            self.begin()
            await self._ended_flush()
        if self._cache.frozen is not None:
            raise Unavailable(f"cannot flush: {self._journal.failure}")

    async def tidy(self) -> None:
        """Record new tombstones in the catalogue if they make a set or the active memtable's data objects unneeded."""
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
            self.begin()  # the memtable's data objects can be deleted after the flush
            await self._ended_flush()
        elif self._laid.waiting or self._sets.would_free(self._deleted):
            try:
                await self._change([], self._keeper.trim_seq)
            except Exception as error:
                self._ended(as_quire_error(error, "the recording of tombstones"))

    def _is_mostly_dead(self) -> bool:
        """Return whether all bytes of the active memtable belong to deleted ledgers.

        Half of the bytes are enough if the memtable is old.
        """
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
        except Exception as error:
            self._ended(as_quire_error(error, "a flush"))
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
        """Wait until the journal has uploaded all queued blocks. Raises the error that ended the journal."""
        waiting: asyncio.Future[Status] = asyncio.get_running_loop().create_future()

        def set_status(statuses: Sequence[Status]) -> None:
            if not waiting.done():  # the caller may have been cancelled
                waiting.set_result(statuses[0])

        self._journal.barrier(set_status, (Status.OK,))
        if await waiting is not Status.OK:
            raise self._journal.failure or Unavailable("the journal has ended")
