"""The coordinator of repair: one process of the cluster, elected by a lease, mends what lost bookies held.

    Repair.start → wait for the lease → look every few seconds (at no cost to the store) →
        a round over all ledgers    when a bookie must be left (lost, given up, drained) and no round since found its
                                    ledgers clean; a while after one came that may take copies of narrow ledgers, or
                                    ledgers were closed that may lack copies, or it was elected; and once a day
        only those that were left   while there are some, and those with a damage report

In a round each closed ledger's record is read once and judged (`repair_core`), and each of its bookies is asked where
its copy has a hole: an ack quorum was enough to confirm a block. What needs it is copied (`repair_copy`), a few
ledgers at a time, from many sources to many targets, at one limited rate. A bookie that is drained is retired, by
removing its record, when two rounds a session's time-out apart, and all between, found no ledger that names it: writers
that chose it before they heard that it is read-only have written their records by then. A deletion that a bookie missed
is finished, too.

Safety does not rest on the lease: a record changes only by version, and a copy made twice is the same copy. The lease
saves work. A coordinator in doubt begins nothing, one whose lease is lost stops and waits for it again.

Any process that is told to (`metadata.wish`) wakes it; anyone may read what it does (`RepairRecord`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from random import Random
from typing import Final
from uuid import UUID

from msgspec.structs import replace

from quire.ledger import repair_core, states
from quire.ledger.census import ledger_ids
from quire.ledger.deletion import Deletion, holders
from quire.ledger.directory import BookieDirectory
from quire.ledger.repair_copy import Copier
from quire.ledger.repair_core import Absences, Pace, View
from quire.ledger.retiring import known_bookies, retire
from quire.ledger.settings import RepairSettings
from quire.metadata import paths
from quire.metadata.damage import damage_reports
from quire.metadata.lease import Lease, LeaseState
from quire.metadata.records import (
    BookieRecord,
    LedgerRecord,
    LedgerState,
    RepairRecord,
    decode,
    encode,
)
from quire.metadata.store import MetadataStore
from quire.metadata.wish import touch
from quire.runtime.clock import Clock
from quire.runtime.errors import NotFound, QuireError, Unavailable, VersionConflict
from quire.runtime.tasks import Tasks
from quire.wire.bookie import BookieId

_log = logging.getLogger(__name__)

WISH_ALL: Final = b"all"
"""Value of the wish that asks for a round over all ledgers."""

_AT_ONCE: Final = 4
"""Ledgers looked at or copied at the same time: enough to keep several disks busy."""

_LOOKING: Final = "looking"
_TRIES: Final = 3
_FAILED_AGAIN_S: Final = 60.0
_LACKING_S: Final = 3600.0
"""Between rounds for ledgers that were closed, while others wait for a bookie: these find none again."""

_AGAIN_PER_S: Final = 50
"""Ledgers that are open are looked at again so many a second, on average."""

_PROGRESS_S: Final = 1.0
_ERROR_CHARS: Final = 500


@dataclass
class _Clean:
    """A bookie that no ledger named at `since` (monotonic, s), nor in any round after; `is_confirmed`: late enough."""

    since: float
    is_confirmed: bool = False


@dataclass
class _Left:
    """What the last look at some ledgers left: per ledger, the bookies it must leave; and why others wait."""

    bookies: dict[int, frozenset[str]] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)
    unplaced: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)

    def forget(self, ledger_id: int) -> None:
        self.bookies.pop(ledger_id, None)
        for group in (self.open, self.unplaced, self.failed):
            group.discard(ledger_id)

    def look_again(self, ledger_id: int) -> None:
        """There is news of the ledger: it need not wait until what it lacked is there."""
        self.unplaced.discard(ledger_id)
        self.failed.discard(ledger_id)

    def counts(self) -> dict[str, int]:
        return dict(Counter(uuid for uuids in self.bookies.values() for uuid in uuids))


class Repair:
    """See the top of the file. `name` says which process this is."""

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
        self._dice = rng.random
        self._settings = settings
        self._name = f"{name}/{UUID(int=rng.getrandbits(128), version=4)}"
        self._tasks = Tasks("repair")
        self._lease: Lease | None = None
        self._woken = asyncio.Event()
        self._deletion = Deletion(store, bookies)
        self._copier = Copier(store, bookies, clock, Pace(settings.repair_bytes_per_s))
        self._absences = Absences(settings.repair_delay_ms / 1000)
        self._unwatch: list[Callable[[], None]] = []
        self._settled_s = store.session_timeout_ms / 1000
        self._status = RepairRecord(coordinator=name)
        self.on_open: Callable[[LedgerRecord], None] = lambda record: None
        """Told each open ledger that must be closed before it can be repaired."""
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Nothing that another coordinator did meanwhile is known."""
        self._known: dict[str, BookieRecord] = {}
        self._damaged: dict[int, dict[str, int]] = {}  # per ledger, the version of each bookie's report
        self._news = True
        self._narrow_told = True
        self._narrow_version = -1
        self._clean: dict[str, _Clean] = {}
        self._left = _Left()
        self._takers: frozenset[str] = frozenset()
        self._incarnations: dict[str, int] = {}
        self._round_due = (
            self._clock.monotonic()
            + min(self._settings.repair_round_ms, self._settings.repair_delay_ms) / 1000
        )
        self._open_again_at = self._failed_again_at = self._round_at = 0.0
        self._wants_all = False
        self._absences.forget()

    # -- life ------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Take part in the election, and coordinate when elected."""
        self._unwatch = [
            self._store.watch(paths.REPAIR_WISH, self._on_news),
            self._store.watch(paths.REPAIR_NEWS, self._on_news),
            self._store.watch(paths.REPAIR_NARROW, self._on_narrow),
        ]
        self._tasks.start(self._run(), "repair")

    async def stop(self) -> None:
        """Stop at once; what is half copied is copied again by the next coordinator."""
        for unwatch in self._unwatch:
            unwatch()
        await self._tasks.stop()
        if self._lease is not None:
            await self._lease.release()

    def status(self) -> RepairRecord:
        """What this process did as coordinator. The cluster's is at `paths.REPAIR_PROGRESS`."""
        return self._status

    @property
    def is_coordinator(self) -> bool:
        return self._lease is not None and self._lease.state is LeaseState.HELD

    def _on_news(self, _path: str) -> None:
        self._news = True
        self._woken.set()

    def _on_narrow(self, _path: str) -> None:
        self._narrow_told = True

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
            self._news = True
            self._clean, self._left = {}, _Left()
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
        if self._news or not available.keys() <= self._known.keys():
            await self._read_news()
        if self._narrow_told:
            await self._look_at_narrow()
        now = self._clock.monotonic()
        self._absences.look(self._known, available, now)
        view = View(self._known, available, self._absences.gone_for_long(now), self._damaged)
        worries = view.worries()
        self._clean = {uuid: clean for uuid, clean in self._clean.items() if uuid in worries}
        scope = self._scope(now, self._look_who_came(view))
        if self._is_round_due(now, worries):
            await self._round(view, worries)
        elif scope:
            await self._mend(view, scope, "mending")
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
                self._wants_all = True
        return came

    def _hurry_round(self, not_before: float = 0.0) -> None:
        soon = self._clock.monotonic() + self._settings.repair_delay_ms / 1000
        self._round_due = min(self._round_due, max(soon, not_before))

    def _is_round_due(self, now: float, worries: Collection[str]) -> bool:
        """A bookie of which some ledger is left waits for that one, and is then confirmed to be clean."""
        counts = self._left.counts()
        unclean = any(self._may_be_clean(uuid, now) and uuid not in counts for uuid in worries)
        return self._wants_all or unclean or now >= self._round_due

    def _may_be_clean(self, uuid: str, now: float) -> bool:
        """Whether a round could tell more of a bookie than is known."""
        clean = self._clean.get(uuid)
        return clean is None or (not clean.is_confirmed and now >= clean.since + self._settled_s)

    def _scope(self, now: float, came: bool) -> set[int]:
        """Ledgers to look at again: what waits for others less often the more of it there is."""
        left = self._left
        scope = self._damaged.keys() - left.unplaced - left.open - left.failed
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
        self._left = _Left()
        found = {ledger_id async for ledger_id in ledger_ids(self._store)}
        await self._mend(view, found, _LOOKING)
        self._wants_all = False
        counts = self._left.counts()
        for uuid in worries:
            if uuid in counts:
                self._clean.pop(uuid, None)
            else:
                clean = self._clean.setdefault(uuid, _Clean(now))
                clean.is_confirmed = now >= clean.since + self._settled_s

    async def _mend(self, view: View, scope: Collection[int], state: str) -> None:
        self._tell(state=state, ledgers=len(scope), checked=0, repaired=0, failed=0)
        telling = self._tasks.start(self._tell_often(), "tell progress of repair")
        todo = sorted(scope, reverse=True)
        workers = [
            self._tasks.start(self._work(todo, view, state == _LOOKING), "repair ledgers")
            for _ in range(_AT_ONCE)
        ]
        try:
            await asyncio.gather(*workers)
        finally:
            for task in (*workers, telling):
                task.cancel()
        if todo:
            raise Unavailable(
                "the lease is in doubt or lost; what was not looked at waits for the next coordinator"
            )
        left = self._left
        self._tell(
            state="idle",
            left=left.counts(),
            open=len(left.open),
            unplaced=len(left.unplaced),
            lost=tuple(sorted(view.gone_for_long)),
            absent=tuple(sorted(self._absences.absent())),
        )
        await self._publish()

    async def _work(self, todo: list[int], view: View, thorough: bool) -> None:
        while todo and self._may_begin():
            ledger_id = todo.pop()
            self._left.forget(ledger_id)
            try:
                await self._mend_ledger(ledger_id, view, thorough)
            except (Unavailable, VersionConflict) as error:
                self._fail(ledger_id, error)
            except Exception as error:  # one ledger's trouble is no reason to leave the others as they are
                is_ours = not isinstance(error, QuireError)
                _log.error("ledger %d cannot be repaired: %s", ledger_id, error, exc_info=is_ours)
                self._fail(ledger_id, error)
            self._tell(checked=self._status.checked + 1)

    def _may_begin(self) -> bool:
        return self._lease is None or self._lease.state is LeaseState.HELD

    def _fail(self, ledger_id: int, error: Exception) -> None:
        self._left.failed.add(ledger_id)
        self._tell(failed=self._status.failed + 1, error=str(error)[:_ERROR_CHARS])

    async def _mend_ledger(self, ledger_id: int, view: View, thorough: bool) -> None:
        """Read, judge, repair, and look again when somebody changed it meanwhile.

        A `thorough` look asks the bookies as well whether their copies have holes.
        """
        path = paths.ledger(ledger_id)
        worries = frozenset(view.worries())
        for attempt in range(_TRIES):
            # Until the end it may be any of them that the ledger needs: what fails on the way proves nothing.
            self._left.bookies[ledger_id] = worries
            try:
                node = await self._store.get(path)
                record = decode(LedgerRecord, node.value, path)
                if record.state is LedgerState.DELETING:
                    self._left.forget(ledger_id)
                    await self._forget_damage(ledger_id)
                    await self._finish_deletion(record, view)
                    return
                self._left.bookies[ledger_id] = worries & _named(record)
                plan = repair_core.plan(record, view, self._copier.loads, self._dice)
                refused: dict[BookieId, QuireError] = {}
                if plan.fragments:
                    record, refused = await self._copier.repair(record, node.version, plan.fragments)
                if record.state is not LedgerState.IN_RECOVERY:  # it may come to name others
                    await self._forget_damage(ledger_id, plan.left | {copy.uuid for copy in refused})
                holders = repair_core.good_holders(record, view) if thorough else {}
                if await self._copier.complete(record, holders) or plan.fragments:
                    self._tell(repaired=self._status.repaired + 1)
                    _log.info("ledger %d is repaired", ledger_id)
                if refused:
                    raise next(iter(refused.values()))  # until there is another bookie for that copy
                self._note(record, plan)
                return
            except NotFound:
                self._left.forget(ledger_id)
                await self._forget_damage(ledger_id)
                return
            except VersionConflict:
                if attempt + 1 == _TRIES:
                    raise

    async def _finish_deletion(self, record: LedgerRecord, view: View) -> None:
        """Lay the tombstones that are missing; not while a bookie is away: there is a round when it is back."""
        if all(each.uuid in view.available or each.uuid not in view.known for each in holders(record)):
            await self._deletion.run(record.ledger_id)

    def _note(self, record: LedgerRecord, plan: repair_core.Plan) -> None:
        ledger_id = record.ledger_id
        self._left.forget(ledger_id)
        if plan.left:
            self._left.bookies[ledger_id] = plan.left
            if plan.is_open:
                self._left.open.add(ledger_id)
                self.on_open(record)
        if plan.is_unplaced:
            self._left.unplaced.add(ledger_id)

    # -- bookies and damage ----------------------------------------------------------------------------
    async def _read_news(self) -> None:
        self._news = False
        try:
            self._known = await known_bookies(self._store)
            before, self._damaged = self._damaged, {}
            for report, version in (await damage_reports(self._store)).items():
                self._damaged.setdefault(report.ledger_id, {})[report.bookie] = version
            for ledger_id, reports in self._damaged.items():
                if reports.items() - before.get(ledger_id, {}).items():
                    self._left.look_again(ledger_id)
            wish = await self._store.get(paths.REPAIR_WISH)
            if wish.value == WISH_ALL:
                self._wants_all = True
                await self._store.put(paths.REPAIR_WISH, b"", wish.version)
        except NotFound:
            pass  # nobody ever wished
        except QuireError:
            self._news = True
            raise

    async def _look_at_narrow(self) -> None:
        """Have a round if a ledger that may lack something was closed since the last look (`Knock`).

        A watch may call for nothing.
        """
        self._narrow_told = False
        try:
            version = (await self._store.get(paths.REPAIR_NARROW)).version
        except NotFound:
            return
        except QuireError:
            self._narrow_told = True
            raise
        if version != self._narrow_version:
            self._narrow_version = version
            # While bookies are lacking there is a knock with every ledger, and little that can be done.
            self._hurry_round(self._round_at + _LACKING_S if self._left.unplaced else 0.0)

    async def _forget_damage(self, ledger_id: int, still_damaged: Collection[str] = ()) -> None:
        """The other bookies' copies are whole, or nothing names them any more.

        One report must not outlive its damage because of another: a bookie with a new copy would have to be left.
        One that was written again meanwhile is of damage that may have come behind the mending.
        """
        reports = self._damaged.get(ledger_id, {})
        for bookie, version in sorted(reports.items()):
            uuid = bookie.rpartition(":")[0]
            if uuid not in still_damaged:
                try:
                    await self._store.delete(paths.damage(uuid, ledger_id), version)
                except VersionConflict:
                    self._news = True
                    continue
                except NotFound:
                    pass
                reports.pop(bookie)  # only now: a report that could not be removed is tried again
        if not reports:
            self._damaged.pop(ledger_id, None)

    async def _retire(self, view: View) -> None:
        """Remove the records of drained bookies that no ledger names any more."""
        for uuid in view.draining():
            if uuid in self._clean and self._clean[uuid].is_confirmed:
                self._clean.pop(uuid)
                if await retire(self._store, uuid):
                    self._known = {other: each for other, each in self._known.items() if other != uuid}
                    _log.info("bookie %s is drained and retired", uuid)
                    self._hurry_round()  # deletions may have waited for it
                else:
                    self._news = True

    # -- progress --------------------------------------------------------------------------------------
    def _tell(self, **changes: object) -> None:
        self._status = replace(
            self._status,
            bytes_copied=self._copier.bytes_copied,
            updated_ms=self._clock.now_ms(),
            **changes,
        )

    async def _tell_often(self) -> None:
        while True:
            await asyncio.sleep(_PROGRESS_S)
            self._tell()
            await self._publish()

    async def _publish(self) -> None:
        try:
            await touch(self._store, paths.REPAIR_PROGRESS, encode(self._status))
        except QuireError as error:
            _log.info("cannot tell the progress of repair: %s", error)


def _named(record: LedgerRecord) -> frozenset[str]:
    return frozenset(bookie.uuid for bookie in states.all_bookies(record))
