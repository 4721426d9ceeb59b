"""The coordinator of repair: one process of the cluster, elected by a lease, repairs under-replicated ledgers.

    Repair.start → wait for the lease → look every few seconds (at no cost to the store while there is no news) →
        read who the bookies are, and the queue     when their node changed
        audit all ledgers                           when the `auditor` says so
        repair what is queued                       the `replicator`, four ledgers at a time
        retire drained bookies that no ledger names

What waits in the `worklist` is looked at again when what it waits for may be there. Open ledgers are asked for again,
and nodes that others may have written to are read again, the less often the more there are.

Safety does not rest on the lease: a record changes only by version, and a copy made twice is the same copy. The lease
saves work. A coordinator in doubt begins nothing, one whose lease is lost stops and waits for it again.

Any process that changes `paths.UNDERREPLICATED` wakes it; anyone may read what it does (`repair_progress`).
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
from quire.ledger.repair_core import Pace, View
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

_AT_ONCE: Final = 4
"""Ledgers looked at or copied at the same time: enough to keep several disks busy."""


class Repair:
    """`name` says which process this is."""

    def __init__(
        self,
        store: MetadataStore,
        bookies: BookieDirectory,
        clock: Clock,
        rng: Random,
        settings: RepairSettings,
        name: str,
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
        self._copier = copier = Copier(store, bookies, clock, Pace(settings.repair_bytes_per_s))
        self._progress = Progress(store, copier, clock, name)
        deletion = Deletion(store, bookies)
        self._replicator = Replicator(store, copier, deletion, self._progress, self._worklist, rng.random)
        self._auditor = Auditor(store, clock, settings, copier, self._progress, self._worklist, rng.random)

    # -- life ------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Take part in the election, and coordinate when elected."""
        self._unwatch = self._store.watch(paths.UNDERREPLICATED, lambda _path: self.told())
        self._tasks.start(self._run(), "repair")

    async def stop(self) -> None:
        """Stop at once; what is half copied is copied again by the next coordinator."""
        if self._unwatch is not None:
            self._unwatch()
        await self._tasks.stop()
        if self._lease is not None:
            await self._lease.release()

    def status(self) -> RepairRecord:
        """What this process did as coordinator. The cluster's is at `paths.REPAIR_PROGRESS`."""
        return self._progress.record

    def metrics(self) -> Values:
        """Of the queue as its coordinator knows it: whoever is none knows nothing."""
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
        """Tell `listener` each open ledger that must be closed before it can be repaired."""
        self._replicator.on_open = listener

    def told(self) -> None:
        """The queue, or what is wanted of a bookie, may have changed: look now."""
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
                _log.info("this process coordinates repair")
                self._begin_anew()
                while lease.state is not LeaseState.LOST:
                    if lease.state is LeaseState.HELD:
                        await self._look_or_pause()
                    await self._sleep(look_s)
                _log.info("this process does not coordinate repair any more")
            except QuireError as error:
                _log.warning("repair waits: %s", error)
                await asyncio.sleep(look_s)

    def _begin_anew(self) -> None:
        """Nothing that another coordinator did meanwhile is known."""
        self._is_stale = True
        self._worklist.forget()
        self._auditor.forget()

    async def _look_or_pause(self) -> None:
        try:
            await self.look()
        except Exception as error:  # nobody else repairs while the lease is held here
            _log.warning("repair pauses: %s", error, exc_info=not isinstance(error, QuireError))
            self._is_stale = True
            self._worklist.forget()
            self._auditor.doubt()

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):  # `wait_for` may swallow a cancellation
                await self._woken.wait()
        except TimeoutError:
            pass
        self._woken.clear()

    # -- one look --------------------------------------------------------------------------------------
    async def look(self) -> None:
        """Do what is due now, and return when it is done. Costs the store nothing when nothing is."""
        available = {record.uuid: record for record in self._bookies.available()}
        if self._is_stale or not available.keys() <= self._auditor.known.keys():
            await self._read()
        view = self._auditor.look(available)
        self._worklist.tick(self._clock.monotonic())
        if self._auditor.is_due(view):
            began_s, todo = self._clock.monotonic(), await self._auditor.begin()
            await self._at_once(lambda: self._auditor.work(todo, view, self._may_begin))
            self._progress.goes_on("mending", self._worklist.count(WorkState.QUEUED))
            await self._replicate(view)
            await self._auditor.ended(view, began_s)
        elif queued := self._worklist.count(WorkState.QUEUED):
            self._progress.begin("mending", queued)
            await self._replicate(view)
        if await self._auditor.retire(view):
            self._is_stale = True

    async def _read(self) -> None:
        """Who the bookies are, what operators want, and what is queued. Raises what the store does."""
        self._is_stale = False
        try:
            await self._auditor.read()
            self._worklist.find([each async for each in underreplicated.listed(self._store)])
        except QuireError:
            self._is_stale = True
            raise
        self._worklist.has_news = True

    async def _replicate(self, view: View) -> None:
        await self._at_once(lambda: self._replicator.work(view, self._may_begin))
        worklist = self._worklist
        self._progress.note(
            state="idle",
            left=worklist.leaving(),
            open=worklist.count(WorkState.OPEN),
            unplaced=worklist.count(WorkState.UNPLACED),
            lost=tuple(sorted(view.gone_for_long)),
            absent=tuple(sorted(self._auditor.absences.absent())),
            lost_ledgers=dict(worklist.lost),
        )
        await self._progress.publish()

    async def _at_once(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        """Several workers of one kind. Raises `Unavailable` when they were told to begin no more."""
        workers = [self._tasks.start(work(), "repair ledgers") for _ in range(_AT_ONCE)]
        publishing = self._tasks.start(self._progress.publish_often(), "publish progress of repair")
        try:
            await asyncio.gather(*workers)
        finally:
            for task in (*workers, publishing):
                task.cancel()
        if not self._may_begin():
            raise Unavailable("the lease is in doubt or lost; what is left waits for the next coordinator")
