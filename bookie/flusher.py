"""Flusher: schedules checkpoints (see `checkpoint`) and the garbage collection after them, on the event loop.

    idle        → freeze the memtable, wait until its journal groups are durable → writing
    writing     → success: release the memtable, recycle journal segments, admit waiting blocks, collect → idle
    writing     → disk full: free deleted ledgers after a delay, and try again; keep the memtable
    writing     → any other error: no checkpoint until the next start; keep the memtable and the journal

If the journal itself waits for a segment that the checkpoint would free, the memtable is written at once, and the mark
moves only to the last durable journal group (rule 21). A replay skips blocks that are already in the index.

A checkpoint begins when the active memtable is full, when the interval has passed, soon after a caller asked whether a
ledger is flushed, and on request. Only one runs at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from quire.bookie.checkpoint import Checkpoint, free_deleted, perform
from quire.bookie.collector import Collector
from quire.bookie.health import Health
from quire.bookie.journal import OK, Journal
from quire.bookie.ledger_storage import LedgerStorage
from quire.bookie.write_cache import WriteCache
from quire.runtime.errors import DiskError, DiskFull, QuireError
from quire.wire.bookie import Status

log = logging.getLogger(__name__)

_SOON_S: Final = 0.5
"""Delay of a requested checkpoint in seconds, so that several requests share one checkpoint."""
_LOOK_S: Final = 1.0
"""Interval in seconds at which free disk space is checked, because other processes may use the disks as well."""

_RETRY_S: Final = 5.0
"""Delay in seconds before a checkpoint is retried after the disk was full."""


class Flusher:
    """Scheduler of checkpoints. `mark` is the current mark in the index."""

    is_awaited = True
    """True, because a ledger counts as flushed only after its checkpoint; see `neighbours.Flushing`."""

    def __init__(
        self,
        cache: WriteCache,
        journal: Journal,
        storage: LedgerStorage,
        collector: Collector,
        health: Health,
        mark: int,
        interval_ms: int,
    ) -> None:
        self._cache = cache
        self._journal = journal
        self._storage = storage
        self._collector = collector
        self._health = health
        self._interval_s = interval_ms / 1000
        self._flushing: asyncio.Future[None] | None = None
        self._before_journal: Checkpoint | None = None
        """Checkpoint that waits until the journal groups of its blocks are durable."""
        self._error: QuireError | None = None
        self._stopping = False
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._mark = mark
        """Last journal group up to which everything is in the entry log and the index."""
        self._flushed_to = mark
        """Last journal group whose blocks are in the entry log. It exceeds the mark after a checkpoint that did not
        wait for the journal.
        """
        self.checkpoints = 0
        self._on_flushed: list[Callable[[], None]] = []

    def on_flushed(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the loop after each checkpoint."""
        self._on_flushed.append(callback)

    def start(self) -> None:
        """Start scheduled checkpoints, on the running event loop."""
        self._at("interval", self._interval_s, self._tick)
        self._at("look", _LOOK_S, self._look)
        self._check_space()
        if self._cache.size_bytes:
            self.soon()

    async def flush(self) -> None:
        """Wait until everything accepted so far is in the entry log. Raises the error that prevents it."""
        if self._flushing is not None:
            await asyncio.shield(self._flushing)
        if self._flushing is None and self._cache.frozen is not None:
            raise self._error or DiskError("the last checkpoint failed")
        if self._flushing is None and self._is_dirty:
            self.begin()
        if self._flushing is not None:
            await asyncio.shield(self._flushing)

    async def stop(self) -> None:
        """Make a last checkpoint, if possible, then stop checkpoints and garbage collection."""
        self._stopping = True
        retrying = "retry" in self._timers
        for timer in self._timers.values():
            timer.cancel()
        if retrying:
            self._end(DiskFull("the disk has no room for the memtable"))
        try:
            await self.flush()
        except QuireError as error:
            log.warning("stopping without a last checkpoint: %s", error)

    def soon(self) -> None:
        """Schedule a checkpoint after `_SOON_S`; several calls share it."""
        if "soon" not in self._timers and not self._stopping:
            self._at("soon", _SOON_S, self._begin_if_idle)

    def begin(self) -> None:
        """Freeze the memtable, and write it as soon as its journal groups are durable."""
        self._flushing = asyncio.get_running_loop().create_future()
        self._flushing.add_done_callback(
            lambda future: future.exception()
        )  # retrieve the exception, even if no caller waits
        checkpoint = self._before_journal = Checkpoint.of(*self._cache.freeze(), self._journal.seal())

        def durable(statuses: Sequence[Status]) -> None:
            if self._before_journal is not checkpoint:
                return  # the checkpoint was written without waiting
            self._before_journal = None
            if statuses[0] is Status.OK:
                self._write(checkpoint)
            else:
                self._end(self._journal.failure)

        self._journal.barrier(durable, OK)
        self._give_journal_room()

    def journal_full(self, is_full: bool) -> None:
        """Handle `on_full` of `SegmentPool.open`. If the journal is full, schedule a checkpoint to free a segment."""
        self._health.journal_full(is_full)
        if is_full:
            self._give_journal_room()
            self.soon()

    def _give_journal_room(self) -> None:
        checkpoint = self._before_journal
        if checkpoint is not None and self._journal.waits_for_checkpoint:
            self._before_journal = None
            self._flushed_to = checkpoint.mark
            checkpoint.mark = min(checkpoint.mark, self._journal.durable_number)
            self._write(checkpoint)

    @property
    def _is_dirty(self) -> bool:
        return bool(self._cache.active.size_bytes or self._cache.changed or self._mark < self._flushed_to)

    def _begin_if_idle(self) -> None:
        broken = self._cache.frozen is not None or self._journal.failure is not None
        if self._flushing is None and self._is_dirty and not broken:
            self.begin()

    def _write(self, checkpoint: Checkpoint) -> None:
        def written(_: None, error: BaseException | None) -> None:
            if error is None:
                self._written(checkpoint)
            else:
                self._failed(checkpoint, error)

        storage = self._storage
        storage.worker.submit(partial(perform, checkpoint, storage.logs, storage.index), written)

    def _write_again(self, checkpoint: Checkpoint) -> None:
        concerned = self._cache.changed | {state.ledger_id for state in checkpoint.changed}
        states = [self._cache.ledgers[ledger_id] for ledger_id in sorted(concerned)]
        deleted = [state for state in states if state.tombstone_version is not None]

        def tried(_: None, error: BaseException | None) -> None:
            if error is not None:
                log.warning("cannot free space on the full disk: %s", error)
            self._write(checkpoint)

        storage = self._storage
        storage.worker.submit(
            partial(free_deleted, deleted, storage.logs, storage.index, self._collector), tried
        )

    def _written(self, checkpoint: Checkpoint) -> None:
        assert checkpoint.mark <= self._journal.durable_number, "the mark passes only durable groups"
        self._mark = checkpoint.mark
        self.checkpoints += 1
        self._cache.release_frozen()
        self._journal.recycle(checkpoint.mark)
        self._end(None)
        self._health.flushed()
        self._check_space()
        for callback in self._on_flushed:
            callback()
        self._collect()

    def _failed(self, checkpoint: Checkpoint, error: BaseException) -> None:
        reason = error if isinstance(error, QuireError) else DiskError(f"a checkpoint failed: {error!r}")
        if isinstance(error, DiskFull) and not self._stopping:
            self._at("retry", _RETRY_S, lambda: self._write_again(checkpoint))
        else:
            self._end(reason)
        self._health.flush_failed(reason)

    def _end(self, error: QuireError | None) -> None:
        flushing, self._flushing, self._error = self._flushing, None, error
        assert flushing is not None
        if error is None:
            flushing.set_result(None)
        else:
            flushing.set_exception(error)

    def _collect(self) -> None:
        """Run the collector until no step is left; each step is a separate job, after the delay that it requested."""
        timer = self._timers.pop("collect", None)
        if timer is not None:
            timer.cancel()

        def collected(wait_s: float | None, error: BaseException | None) -> None:
            if error is not None:
                log.warning("garbage collection of entry logs failed: %s", error)
            elif wait_s is not None and "collect" not in self._timers:
                self._at("collect", wait_s, self._collect)

        if not self._stopping:
            self._storage.worker.submit(self._collector.run, collected)

    def _tick(self) -> None:
        self._at("interval", self._interval_s, self._tick)
        if self._is_dirty:
            self._begin_if_idle()
        else:
            self._collect()

    def _look(self) -> None:
        self._at("look", _LOOK_S, self._look)
        try:
            self._check_space()
            self._journal.look_for_room()
        except QuireError as error:
            log.warning("cannot read the free space of the disks: %s", error)

    def _check_space(self) -> None:
        """Check the free space of the disk.

        If it became short, schedule a checkpoint or start the collector, to free deleted ledgers and spares.
        """
        if self._health.check_space():
            self.soon() if self._is_dirty else self._collect()

    def _at(self, name: str, delay_s: float, act: Callable[[], None]) -> None:
        def fire() -> None:
            del self._timers[name]
            act()

        if not self._stopping:
            self._timers[name] = asyncio.get_running_loop().call_later(delay_s, fire)
