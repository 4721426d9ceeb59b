"""The auditor finds under-replicated ledgers that nobody reported, and puts them into the queue.

An audit reads the record of every ledger, judges it (`repair_core`), and asks its bookies for holes. There is one

    when a bookie must be left (lost, given up, drained)      until one found that no ledger names it any more
    a while after a bookie came that may take copies          who closed a ledger narrow may have died before it told
    when a bookie lost its state, and on an operator's word   at once
    once a day, and a while after the coordinator's election

A drained bookie is retired, by removing its record, when two audits a session's time-out apart, and all between, found
no ledger that names it: writers that chose it before they heard that it is read-only have written their records then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from quire.ledger import repair_core
from quire.ledger.orphans import ledger_ids
from quire.ledger.repair_copy import Copier
from quire.ledger.repair_core import Absences, View
from quire.ledger.repair_progress import Progress
from quire.ledger.retiring import known_bookies, retire
from quire.ledger.settings import RepairSettings
from quire.ledger.worklist import Worklist, WorkState
from quire.metadata import paths, underreplicated
from quire.metadata.records import BookieRecord, LedgerRecord, LedgerState, decode
from quire.metadata.store import MetadataStore
from quire.runtime.clock import Clock
from quire.runtime.errors import NotFound, QuireError, VersionConflict

_log = logging.getLogger(__name__)


@dataclass
class _Clean:
    """A bookie that no ledger named at `since` (monotonic, s), nor in any audit after; `is_confirmed`: late enough."""

    since: float
    is_confirmed: bool = False


class Auditor:
    """What it finds goes into the queue, and into `worklist`."""

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        settings: RepairSettings,
        copier: Copier,
        progress: Progress,
        worklist: Worklist,
        random: Callable[[], float],
    ) -> None:
        self._store = store
        self._clock = clock
        self._settings = settings
        self._copier = copier
        self._progress = progress
        self._worklist = worklist
        self._random = random
        self.absences = Absences(settings.repair_delay_ms / 1000)
        self.forget()

    def forget(self) -> None:
        """Know nothing: another coordinator may have changed all of it, and nobody looked for a while."""
        self.known: dict[str, BookieRecord] = {}
        """Every bookie that was not retired, by UUID."""
        self.is_wanted = False
        """A bookie lost its state, or an operator asked, and there was no audit since."""
        self._asked_version: int | None = None
        """Of the node by which an operator asked."""
        self.absences.forget()
        self._clean: dict[str, _Clean] = {}
        self._takers: frozenset[str] = frozenset()
        self._incarnations: dict[str, int] = {}
        settings = self._settings
        first_ms = min(settings.repair_round_ms, settings.repair_delay_ms)
        self._audit_at = self._clock.monotonic() + first_ms / 1000

    async def read(self) -> None:
        """Who the bookies are, and whether an operator wants an audit. Raises what the store does."""
        self.known = await known_bookies(self._store)
        try:
            self._asked_version = (await self._store.get(paths.UNDERREPLICATED_ALL)).version
        except NotFound:
            self._asked_version = None

    def look(self, available: dict[str, BookieRecord]) -> View:
        """Who is there, who came, and who is gone for long."""
        known = self.known
        now = self._clock.monotonic()
        self.absences.look(known, available, now)
        view = View(known, available, self.absences.gone_for_long(now), {})
        takers = frozenset(record.uuid for record in view.takers())
        if takers - self._takers:
            self._worklist.due(WorkState.UNPLACED, WorkState.AWAY, WorkState.FAILED)
            self.audit_soon()
        self._takers = takers
        for uuid, record in available.items():
            if self._incarnations.setdefault(uuid, record.incarnation) != record.incarnation:
                self._incarnations[uuid] = record.incarnation
                self.is_wanted = True
        worries = view.worries()
        self._clean = {uuid: clean for uuid, clean in self._clean.items() if uuid in worries}
        return view

    def audit_soon(self) -> None:
        """Not at once: a bookie that restarts need not cost an audit."""
        soon = self._clock.monotonic() + self._settings.repair_delay_ms / 1000
        self._audit_at = min(self._audit_at, soon)

    def doubt(self) -> None:
        """A look failed: what it was about is found again. But who is missed has been missed since before.

        Else a bookie that is lost would never be replaced while the store has a hiccup now and then.
        """
        self._clean.clear()
        self.audit_soon()

    def is_due(self, view: View) -> bool:
        """A bookie of which some ledger is left waits for that one, and is then confirmed to be clean."""
        now, leaving = self._clock.monotonic(), self._worklist.leaving()
        unclean = any(self._may_be_clean(uuid, now) and uuid not in leaving for uuid in view.worries())
        return self.is_wanted or self._asked_version is not None or unclean or now >= self._audit_at

    def _may_be_clean(self, uuid: str, now: float) -> bool:
        """Whether an audit could tell more of a bookie than is known."""
        clean = self._clean.get(uuid)
        return clean is None or (not clean.is_confirmed and now >= clean.since + self._settled_s)

    @property
    def _settled_s(self) -> float:
        return self._store.session_timeout_ms / 1000

    async def begin(self) -> list[int]:
        """The ids of all ledgers, greatest first; of what waits all is due again. Raises what the store does."""
        self._audit_at = self._clock.monotonic() + self._settings.repair_round_ms / 1000
        await underreplicated.take_over_damage(self._store)
        self._worklist.find([each async for each in underreplicated.listed(self._store)])
        self._worklist.due_again()
        todo = sorted([each async for each in ledger_ids(self._store)], reverse=True)
        self._progress.begin("looking", len(todo))
        return todo

    async def work(self, todo: list[int], view: View, may_begin: Callable[[], bool]) -> None:
        """Judge one ledger of `todo` after the other, the last one first. Raises what the store does."""
        while todo and may_begin():
            ledger_id = todo.pop()
            if reason := await self._why_queued(ledger_id, view):
                await underreplicated.put(self._store, ledger_id, reason)
                self._worklist.find([ledger_id])
            self._progress.checked()

    async def _why_queued(self, ledger_id: int, view: View) -> str:
        """Empty when the ledger needs nothing. What cannot be judged is for the replicator to tell."""
        path = paths.ledger(ledger_id)
        try:
            record = decode(LedgerRecord, (await self._store.get(path)).value, path)
            if record.state is LedgerState.DELETING:
                return "its deletion is not over"
            plan = repair_core.plan(record, view, self._copier.loads, self._random)
            if plan.fragments or plan.left or plan.is_unplaced:
                return "a bookie is lost, drains or is lacking"
            holed = await self._copier.has_holes(record, repair_core.good_holders(record, view))
            return "a copy lacks blocks" if holed else ""
        except NotFound:
            return ""
        except Exception as error:
            if isinstance(error, QuireError):
                _log.info("ledger %d cannot be judged: %s", ledger_id, error)
            return f"it could not be judged: {error}"

    async def ended(self, view: View, began_s: float) -> None:
        """An audit that began then is over, and what it found repaired as far as could be."""
        self.is_wanted = False
        if self._asked_version is not None:
            try:
                await self._store.delete(paths.UNDERREPLICATED_ALL, self._asked_version)
            except (NotFound, VersionConflict):
                pass  # an operator asked again
            self._asked_version = None
        leaving = self._worklist.leaving()
        for uuid in view.worries():
            if uuid in leaving:
                self._clean.pop(uuid, None)
            else:
                clean = self._clean.setdefault(uuid, _Clean(began_s))
                clean.is_confirmed = began_s >= clean.since + self._settled_s

    async def retire(self, view: View) -> bool:
        """Remove the records of drained bookies that no ledger names any more; False when there is none."""
        tried = {uuid for uuid in view.draining() if uuid in self._clean and self._clean[uuid].is_confirmed}
        for uuid in sorted(tried):
            self._clean.pop(uuid)
            if await retire(self._store, uuid):
                _log.info("bookie %s is drained and retired", uuid)
        if tried:
            self._worklist.due(WorkState.AWAY)  # deletions may have waited for it
        return bool(tried)
