"""Coordinator of repair: one elected process of the cluster repairs under-replicated ledgers.

    Repair.start → wait for the lease → one pass every few seconds (without I/O while nothing has changed):
        read the bookies and the queue          if `paths.UNDERREPLICATED` changed
        audit all ledgers                       if the `auditor` requires it
        repair queued ledgers                   by the `replicator`, four ledgers at a time
        retire drained bookies                  that no ledger names any more

It is the counterpart of BookKeeper's [AutoRecovery](https://bookkeeper.apache.org/docs/admin/autorecovery). A ledger in
the `worklist` is tried again when its precondition may hold; for example, the owner of an open ledger is then notified
again. The interval between two attempts grows with the number of waiting ledgers.

Safety does not depend on the lease, which only avoids duplicate work: a record changes only by compare-and-set, and
copying is idempotent. A coordinator whose lease is in doubt begins no new work; a coordinator that lost its lease
stops, and waits for the lease again.

Any process can wake the coordinator by a change of `paths.UNDERREPLICATED`. The coordinator publishes its progress
(`repair_progress`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from random import Random
from typing import Final
from uuid import UUID

from quire.ledger.auditor import Auditor
from quire.ledger.deletion import Deletion
from quire.ledger.directory import BookieDirectory
from quire.ledger.repair_copy import Copier
from quire.ledger.repair_core import View
from quire.ledger.repair_progress import Progress
from quire.ledger.replicator import Replicator
from quire.ledger.settings import RepairSettings
from quire.ledger.worklist import Worklist, WorkState
from quire.metadata import paths, underreplicated
from quire.metadata.lease import Lease, LeaseState
from quire.metadata.records import LedgerRecord, RepairRecord
from quire.metadata.store import MetadataStore
from quire.runtime.clock import Clock
from quire.runtime.errors import QuireError, Unavailable
from quire.runtime.metrics import Values
from quire.runtime.tasks import Tasks

_log = logging.getLogger(__name__)

_WORKERS: Final = 4
"""Number of ledgers that are audited or repaired concurrently: enough to keep several disks busy."""


class Repair:
    """Coordinator of repair in one process; `name` identifies the process."""

    def __init__(
        self,
        store: MetadataStore,
        bookies: BookieDirectory,
        clock: Clock,
        rng: Random,
        settings: RepairSettings,
        name: str,
        cluster: str = "",
    ) -> None:
        self._store = store
        self._bookies = bookies
        self._clock = clock
        self._settings = settings
        self._name = f"{name}/{UUID(int=rng.getrandbits(128), version=4)}"
        self._tasks = Tasks("repair")
        self._lease: Lease | None = None
        self._woken = asyncio.Event()
        self._unwatch: Callable[[], None] | None = None
        self._is_stale = True
        self._worklist = Worklist()
        self._copier = copier = Copier(store, bookies, clock, settings.repair_bytes_per_s)
        self._progress = Progress(store, copier, clock, name)
        deletion = Deletion(store, bookies, cluster)
        self._replicator = Replicator(store, copier, deletion, self._progress, self._worklist, rng.random)
        self._auditor = Auditor(store, clock, settings, copier, self._progress, self._worklist, rng.random)

    # -- life ------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Join the election; coordinate repair while this process holds the lease."""
        self._unwatch = self._store.watch(paths.UNDERREPLICATED, lambda _path: self.wake())
        self._tasks.start(self._run(), "repair")

    async def stop(self) -> None:
        """Stop at once; the next coordinator repeats incomplete copies."""
        if self._unwatch is not None:
            self._unwatch()
        await self._tasks.stop()
        if self._lease is not None:
            await self._lease.release()

    def status(self) -> RepairRecord:
        """Return this process's progress as coordinator. The current coordinator's is at `paths.REPAIR_PROGRESS`."""
        return self._progress.record

    def metrics(self) -> Values:
        """Return metrics. Only the coordinator knows the queue; other processes report zeros for it."""
        worklist, record = self._worklist, self._progress.record
        states = tuple(WorkState) if self.is_coordinator else ()
        return {
            "quire_repair_coordinator": self.is_coordinator,
            "quire_repair_ledgers_underreplicated": worklist.count(*states),
            "quire_repair_ledgers_unplaced": record.unplaced if states else 0,
            "quire_repair_ledgers_open": record.open if states else 0,
            "quire_repair_ledgers_lost": len(worklist.lost) if states else 0,
            "quire_repair_bookies_lost": len(record.lost) if states else 0,
            "quire_repair_bookies_absent": len(record.absent) if states else 0,
            "quire_repair_copied_bytes_total": self._copier.bytes_copied,
        }

    def on_open(self, listener: Callable[[LedgerRecord], None]) -> None:
        """Call `listener` with each open ledger that must be closed before it can be repaired."""
        self._replicator.on_open = listener

    def wake(self) -> None:
        """Start a pass at once, because the queue or an operator's order may have changed."""
        self._is_stale = True
        self._woken.set()

    @property
    def is_coordinator(self) -> bool:
        return self._lease is not None and self._lease.state is LeaseState.HELD

    def _may_begin(self) -> bool:
        return self._lease is None or self._lease.state is LeaseState.HELD

    async def _run(self) -> None:
        look_s = self._settings.repair_look_ms / 1000
        lease = self._lease = Lease(self._store, paths.REPAIR_COORDINATOR, self._name.encode(), self._clock)
        while True:
            try:
                await lease.acquire()
                _log.info("repair: this process became the coordinator")
                self._reset()
                while lease.state is not LeaseState.LOST:
                    if lease.state is LeaseState.HELD:
                        await self._look_and_log_failure()
                    await self._sleep(look_s)
                _log.info("repair: this process is no longer the coordinator")
            except QuireError as error:
                _log.warning("repair: cannot acquire the coordinator's lease, trying again: %s", error)
                await asyncio.sleep(look_s)

    def _reset(self) -> None:
        """Forget all observations, because another coordinator may have changed everything."""
        self._is_stale = True
        self._worklist.reset()
        self._auditor.reset()

    async def _look_and_log_failure(self) -> None:
        try:
            await self.look()
        except Exception as error:  # no other process repairs while this one holds the lease
            _log.warning(
                "repair: a pass failed, trying again: %s", error, exc_info=not isinstance(error, QuireError)
            )
            self._is_stale = True
            self._worklist.reset()
            self._auditor.reset_after_failure()

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):  # `wait_for` may swallow a cancellation
                await self._woken.wait()
        except TimeoutError:
            pass
        self._woken.clear()

    # -- one pass --------------------------------------------------------------------------------------
    async def look(self) -> None:
        """Do all work that is due, and return when it is done; a pass without work costs no store operation."""
        available = {record.uuid: record for record in self._bookies.available()}
        if self._is_stale or not available.keys() <= self._auditor.known.keys():
            await self._read()
        view = self._auditor.observe(available)
        self._worklist.tick(self._clock.monotonic())
        if self._auditor.is_due(view):
            began_s, todo = self._clock.monotonic(), await self._auditor.begin()
            await self._run_workers(lambda: self._auditor.work(todo, view, self._may_begin))
            self._progress.goes_on("mending", self._worklist.count(WorkState.QUEUED))
            await self._replicate(view)
            await self._auditor.finish(view, began_s)
        elif queued := self._worklist.count(WorkState.QUEUED):
            self._progress.begin("mending", queued)
            await self._replicate(view)
        if await self._auditor.retire(view):
            self._is_stale = True

    async def _read(self) -> None:
        """Read the bookies' records, operators' orders and the queue. Raises the store's errors."""
        self._is_stale = False
        try:
            await self._auditor.load()
            self._worklist.enqueue([each async for each in underreplicated.listed(self._store)])
        except QuireError:
            self._is_stale = True
            raise
        self._worklist.has_news = True

    async def _replicate(self, view: View) -> None:
        await self._run_workers(lambda: self._replicator.work(view, self._may_begin))
        worklist = self._worklist
        self._progress.note(
            state="idle",
            left=worklist.leaving(),
            open=worklist.count(WorkState.OPEN),
            unplaced=worklist.count(WorkState.UNPLACED),
            lost=tuple(sorted(view.absent_too_long)),
            absent=tuple(sorted(self._auditor.absences.absent())),
            lost_ledgers=dict(worklist.lost),
        )
        await self._progress.publish()

    async def _run_workers(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        """Run several workers of one kind.

        Raises `Unavailable` if they stopped early, because the lease was in doubt.
        """
        workers = [self._tasks.start(work(), "repair ledgers") for _ in range(_WORKERS)]
        publishing = self._tasks.start(self._progress.publish_often(), "publish progress of repair")
        try:
            await asyncio.gather(*workers)
        finally:
            for task in (*workers, publishing):
                task.cancel()
        if not self._may_begin():
            raise Unavailable(
                "the coordinator's lease is in doubt or lost; the remaining ledgers wait for the next coordinator"
            )
