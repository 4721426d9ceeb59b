"""The coordinator of repair: one process of the cluster, elected by a lease, mends what lost bookies held.

    Repair.start → wait for the lease → look every few seconds (at no cost to the store) →
        a round over all ledgers    when a bookie must be left (lost, given up, drained) and no round since found its
                                    ledgers clean; a while after one came that may take copies of narrow ledgers, or
                                    ledgers were closed that may lack copies, or it was elected; and once a day
        only those that were left   while there are some, and those with a damage report

What it hears from the store is in `repair_news`, what is done about a ledger in `repair_mend`; here is when. A drained
bookie is retired, by removing its record, when two rounds a session's time-out apart, and all between, found no ledger
that names it: writers that chose it before they heard that it is read-only have written their records by then.

Safety does not rest on the lease: a record changes only by version, and a copy made twice is the same copy. The lease
saves work. A coordinator in doubt begins nothing, one whose lease is lost stops and waits for it again.

Any process that is told to (`metadata.wish`) wakes it; anyone may read what it does (`repair_progress`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from random import Random
from typing import Final
from uuid import UUID

from quire.ledger.census import ledger_ids
from quire.ledger.deletion import Deletion
from quire.ledger.directory import BookieDirectory
from quire.ledger.repair_copy import Copier
from quire.ledger.repair_core import Absences, Pace, View
from quire.ledger.repair_mend import Left, Mender
from quire.ledger.repair_news import News
from quire.ledger.repair_progress import Progress
from quire.ledger.retiring import retire
from quire.ledger.settings import RepairSettings
from quire.metadata import paths
from quire.metadata.lease import Lease, LeaseState
from quire.metadata.records import LedgerRecord, RepairRecord
from quire.metadata.store import MetadataStore
from quire.runtime.clock import Clock
from quire.runtime.errors import QuireError
from quire.runtime.tasks import Tasks

_log = logging.getLogger(__name__)

_FAILED_AGAIN_S: Final = 60.0
_LACKING_S: Final = 3600.0
"""Between rounds for ledgers that were closed, while others wait for a bookie: these find none again."""

_AGAIN_PER_S: Final = 50
"""Ledgers that are open are looked at again so many a second, on average."""


@dataclass
class _Clean:
    """A bookie that no ledger named at `since` (monotonic, s), nor in any round after; `is_confirmed`: late enough."""

    since: float
    is_confirmed: bool = False


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
        self._news = News(store)
        self._copier = Copier(store, bookies, clock, Pace(settings.repair_bytes_per_s))
        self._progress = Progress(store, self._copier, clock, name)
        deletion = Deletion(store, bookies)
        self._mender = Mender(
            store,
            self._copier,
            deletion,
            self._news,
            self._progress,
            self._tasks,
            rng.random,
            self._may_begin,
        )
        self._absences = Absences(settings.repair_delay_ms / 1000)
        self._settled_s = store.session_timeout_ms / 1000
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Nothing that another coordinator did meanwhile is known."""
        self._news.forget()
        self._mender.left = Left()
        self._clean: dict[str, _Clean] = {}
        self._takers: frozenset[str] = frozenset()
        self._incarnations: dict[str, int] = {}
        self._round_due = (
            self._clock.monotonic()
            + min(self._settings.repair_round_ms, self._settings.repair_delay_ms) / 1000
        )
        self._open_again_at = self._failed_again_at = self._round_at = 0.0
        self._absences.forget()

    # -- life ------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Take part in the election, and coordinate when elected."""
        self._news.watch(self._woken.set)
        self._tasks.start(self._run(), "repair")

    async def stop(self) -> None:
        """Stop at once; what is half copied is copied again by the next coordinator."""
        self._news.unwatch()
        await self._tasks.stop()
        if self._lease is not None:
            await self._lease.release()

    def status(self) -> RepairRecord:
        """What this process did as coordinator. The cluster's is at `paths.REPAIR_PROGRESS`."""
        return self._progress.record

    def on_open(self, listener: Callable[[LedgerRecord], None]) -> None:
        """Tell `listener` each open ledger that must be closed before it can be repaired."""
        self._mender.on_open = listener

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

    async def _look_or_pause(self) -> None:
        """What a look that fails was about is found again; but a bookie that is missed has been missed since before.

        Else one that is lost would never be replaced while the store has a hiccup now and then.
        """
        try:
            await self.look()
        except Exception as error:  # nobody else repairs while the lease is held here
            _log.warning("repair pauses: %s", error, exc_info=not isinstance(error, QuireError))
            self._news.told()
            self._clean, self._mender.left = {}, Left()
            self._hurry_round()

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
        news, left = self._news, self._mender.left
        if news.is_stale or not available.keys() <= news.known.keys():
            for ledger_id in await news.read():
                left.look_again(ledger_id)
        if await news.read_knock():
            # While bookies are lacking there is a knock with every ledger, and little that can be done.
            self._hurry_round(self._round_at + _LACKING_S if left.unplaced else 0.0)
        now = self._clock.monotonic()
        self._absences.look(news.known, available, now)
        view = View(news.known, available, self._absences.gone_for_long(now), news.damaged)
        worries = view.worries()
        self._clean = {uuid: clean for uuid, clean in self._clean.items() if uuid in worries}
        scope = self._scope(now, self._look_who_came(view))
        if self._is_round_due(now, worries):
            await self._round(view, worries)
        elif scope:
            await self._mend(view, scope, thorough=False)
        await self._retire(view)

    def _look_who_came(self, view: View) -> bool:
        """Whether a bookie that takes copies is there that was not at the last look.

        Ledgers that became narrow for want of it are found by a round, which waits a while: a bookie that restarts
        need not cost one. One that lost state does, at once.
        """
        takers = frozenset(record.uuid for record in view.takers())
        came, self._takers = bool(takers - self._takers), takers
        if came:
            self._hurry_round()
        for uuid, record in view.available.items():
            if self._incarnations.setdefault(uuid, record.incarnation) != record.incarnation:
                self._incarnations[uuid] = record.incarnation
                self._news.wants_all = True
        return came

    def _hurry_round(self, not_before: float = 0.0) -> None:
        soon = self._clock.monotonic() + self._settings.repair_delay_ms / 1000
        self._round_due = min(self._round_due, max(soon, not_before))

    def _is_round_due(self, now: float, worries: Collection[str]) -> bool:
        """A bookie of which some ledger is left waits for that one, and is then confirmed to be clean."""
        counts = self._mender.left.counts()
        unclean = any(self._may_be_clean(uuid, now) and uuid not in counts for uuid in worries)
        return self._news.wants_all or unclean or now >= self._round_due

    def _may_be_clean(self, uuid: str, now: float) -> bool:
        """Whether a round could tell more of a bookie than is known."""
        clean = self._clean.get(uuid)
        return clean is None or (not clean.is_confirmed and now >= clean.since + self._settled_s)

    def _scope(self, now: float, came: bool) -> set[int]:
        """Ledgers to look at again: what waits for others less often the more of it there is."""
        left = self._mender.left
        scope = self._news.damaged.keys() - left.unplaced - left.open - left.failed
        if came:
            scope |= left.unplaced | left.failed
        if now >= self._open_again_at:
            scope |= left.open
            self._open_again_at = now + len(left.open) / _AGAIN_PER_S
        if now >= self._failed_again_at:
            scope |= left.failed
            self._failed_again_at = now + _FAILED_AGAIN_S
        return scope

    async def _round(self, view: View, worries: Collection[str]) -> None:
        now = self._round_at = self._clock.monotonic()
        self._round_due = now + self._settings.repair_round_ms / 1000
        self._mender.left = Left()
        found = {ledger_id async for ledger_id in ledger_ids(self._store)}
        await self._mend(view, found, thorough=True)
        self._news.wants_all = False
        counts = self._mender.left.counts()
        for uuid in worries:
            if uuid in counts:
                self._clean.pop(uuid, None)
            else:
                clean = self._clean.setdefault(uuid, _Clean(now))
                clean.is_confirmed = now >= clean.since + self._settled_s

    async def _mend(self, view: View, scope: Collection[int], *, thorough: bool) -> None:
        await self._mender.mend(view, scope, thorough=thorough)
        left = self._mender.left
        self._progress.note(
            state="idle",
            left=left.counts(),
            open=len(left.open),
            unplaced=len(left.unplaced),
            lost=tuple(sorted(view.gone_for_long)),
            absent=tuple(sorted(self._absences.absent())),
            lost_ledgers=dict(left.lost),
        )
        await self._progress.publish()

    async def _retire(self, view: View) -> None:
        """Remove the records of drained bookies that no ledger names any more."""
        for uuid in sorted(view.draining()):
            if uuid in self._clean and self._clean[uuid].is_confirmed:
                self._clean.pop(uuid)
                if await retire(self._store, uuid):
                    self._news.retired(uuid)
                    _log.info("bookie %s is drained and retired", uuid)
                    self._hurry_round()  # deletions may have waited for it
                else:
                    self._news.told()
