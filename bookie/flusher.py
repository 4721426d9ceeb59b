"""When a checkpoint is made, and what follows it: the loop's side of `checkpoint`.

    nothing     → freeze, wait until the journal has the memtable's groups → writing
    writing     → done: release it, recycle journal segments, let waiting blocks in, collect → nothing
    writing     → disk full: after a while make room of what was deleted, and the same again; the memtable stays
    writing     → any other error: broken until the next start; the memtable and the journal stay

A journal that itself waits for a segment that the checkpoint would free is not waited for: the memtable is written at
once, and the mark comes as far as the journal is (rule 21). A replay leaves out what the index knows already.

A checkpoint is made when the active memtable is full, when the interval is over, soon after somebody asked whether
a ledger is flushed, and when it is asked for. There is one at a time.
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
_LOOK_S: Final = 1.0
"""How often the disks' room is looked at: others write there, too, and somebody may have made some."""

_RETRY_S: Final = 5.0
"""After the disk was full."""


class Flusher:
    """`mark` is the one that the index has."""

    is_awaited = True
    """See `Flushing`."""

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
        """Waits until the journal has its groups."""
        self._error: QuireError | None = None
        self._stopping = False
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._mark = mark
        """The last journal group that the entry log and the index hold wholly."""
        self._flushed_to = mark
        """The last group that was flushed; the mark is behind it when the journal was not waited for."""
        self.checkpoints = 0
        self._on_flushed: list[Callable[[], None]] = []

    def on_flushed(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the loop whenever a checkpoint was made."""
        self._on_flushed.append(callback)

    def start(self) -> None:
        """From now on checkpoints are made by themselves, on the running loop."""
        self._at("interval", self._interval_s, self._tick)
        self._at("look", _LOOK_S, self._look)
        self._check_space()
        if self._cache.size_bytes:
            self.soon()

    async def flush(self) -> None:
        """Return when everything accepted so far is in the entry log. Raises what prevents it."""
        if self._flushing is not None:
            await asyncio.shield(self._flushing)
        if self._flushing is None and self._cache.frozen is not None:
            raise self._error or DiskError("the last checkpoint failed")
        if self._flushing is None and self._is_dirty:
            self.begin()
        if self._flushing is not None:
            await asyncio.shield(self._flushing)

    async def stop(self) -> None:
        """A last checkpoint, if one is possible; then no more."""
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
        """Somebody waits for what is in the memtable to be flushed."""
        if "soon" not in self._timers and not self._stopping:
            self._at("soon", _SOON_S, self._begin_if_idle)

    def begin(self) -> None:
        """Freeze the memtable, and write it as soon as its journal groups are durable."""
        self._flushing = asyncio.get_running_loop().create_future()
        self._flushing.add_done_callback(lambda future: future.exception())  # waited for or not
        checkpoint = self._before_journal = Checkpoint.of(*self._cache.freeze(), self._journal.seal())

        def durable(statuses: Sequence[Status]) -> None:
            if self._before_journal is not checkpoint:
                return  # it did not wait
            self._before_journal = None
            if statuses[0] is Status.OK:
                self._write(checkpoint)
            else:
                self._end(self._journal.failure)

        self._journal.barrier(durable, OK)
        self._give_journal_room()

    def journal_full(self, is_full: bool) -> None:
        """See `SegmentPool.open`. A checkpoint may give it a segment back."""
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
                log.warning("no room could be made on a full disk: %s", error)
            self._write(checkpoint)

        storage = self._storage
        storage.worker.submit(
            partial(free_deleted, deleted, storage.logs, storage.index, self._collector), tried
        )

    def _written(self, checkpoint: Checkpoint) -> None:
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
        """One step of the collector after another, each a work of its own, at its own pace, until all is done."""
        timer = self._timers.pop("collect", None)
        if timer is not None:
            timer.cancel()

        def collected(wait_s: float | None, error: BaseException | None) -> None:
            if error is not None:
                log.warning("the collector could not go on: %s", error)
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
            log.warning("cannot tell what room the disks have: %s", error)

    def _check_space(self) -> None:
        """When room became short, what was deleted, and spare files, are to go now."""
        if self._health.check_space():
            self.soon() if self._is_dirty else self._collect()

    def _at(self, name: str, delay_s: float, act: Callable[[], None]) -> None:
        def fire() -> None:
            del self._timers[name]
            act()

        if not self._stopping:
            self._timers[name] = asyncio.get_running_loop().call_later(delay_s, fire)
