"""Auditor: finds under-replicated ledgers that were not reported, and queues them for repair.

An audit reads the record of every ledger, plans its repair (`repair_core`), and asks its bookies whether their copies
have holes (missing entries). BookKeeper's [Auditor](https://bookkeeper.apache.org/docs/admin/autorecovery) has the same
role. An audit runs

    while a bookie is lost, given up or draining            until an audit finds no ledger that names it
    when a bookie joins that accepts copies                 after a delay: the writer that closed a ledger narrow may
                                                            have died before it reported the ledger
    when a bookie lost its state, or an operator requests   at once
    otherwise                                               daily, and a while after the coordinator's election

A drained bookie is retired (its record is removed) when two audits at least a session time-out apart, and all audits
between them, found no ledger that names it. By then, every writer that chose the bookie before it became read-only has
written its ledger's record, so the audit found that record.
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
    """Bookie that no ledger's record named in the audit that began at `since` (monotonic, s), nor in any later one.

    `is_confirmed` is set by an audit at least a session time-out after `since`.
    """

    since: float
    is_confirmed: bool = False


class Auditor:
    """Auditor of one coordinator. It queues each ledger that needs repair in the metadata store and in `worklist`."""

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
        self.reset()

    def reset(self) -> None:
        """Forget all observations, because another coordinator may have changed everything since."""
        self.known: dict[str, BookieRecord] = {}
        """Identity record of every bookie that was not retired, by UUID."""
        self.is_wanted = False
        """Set when a bookie came back with a new incarnation (it lost state) since the last audit."""
        self._asked_version: int | None = None
        """Version of the node `paths.UNDERREPLICATED_ALL`, by which an operator requests an audit; None without it."""
        self.absences.reset()
        self._clean: dict[str, _Clean] = {}
        self._takers: frozenset[str] = frozenset()
        self._incarnations: dict[str, int] = {}
        settings = self._settings
        first_ms = min(settings.repair_round_ms, settings.repair_delay_ms)
        self._audit_at = self._clock.monotonic() + first_ms / 1000

    async def load(self) -> None:
        """Read the bookies' records, and whether an operator requested an audit. Raises the store's errors."""
        self.known = await known_bookies(self._store)
        try:
            self._asked_version = (await self._store.get(paths.UNDERREPLICATED_ALL)).version
        except NotFound:
            self._asked_version = None

    def observe(self, available: dict[str, BookieRecord]) -> View:
        """Compare the running bookies (`available`, by UUID) with earlier observations; schedule audits accordingly.

        Return the coordinator's view of the cluster.
        """
        known = self.known
        now = self._clock.monotonic()
        self.absences.update(known, available, now)
        view = View(known, available, self.absences.absent_too_long(now), {})
        takers = frozenset(record.uuid for record in view.takers())
        if takers - self._takers:
            self._worklist.requeue(WorkState.UNPLACED, WorkState.AWAY, WorkState.FAILED)
            self.audit_soon()
        self._takers = takers
        for uuid, record in available.items():
            if self._incarnations.setdefault(uuid, record.incarnation) != record.incarnation:
                self._incarnations[uuid] = record.incarnation
                self.is_wanted = True
        bookies_to_leave = view.bookies_to_leave()
        self._clean = {uuid: clean for uuid, clean in self._clean.items() if uuid in bookies_to_leave}
        return view

    def audit_soon(self) -> None:
        """Schedule an audit after the repair delay, not at once, so that a bookie that only restarts triggers none."""
        soon = self._clock.monotonic() + self._settings.repair_delay_ms / 1000
        self._audit_at = min(self._audit_at, soon)

    def reset_after_failure(self) -> None:
        """Forget which bookies no ledger names, and schedule an audit; keep the times of absences.

        If absences were also forgotten, a store that fails now and then would prevent any bookie from counting as lost.
        """
        self._clean.clear()
        self.audit_soon()

    def is_due(self, view: View) -> bool:
        """Return whether an audit is due.

        A lost or draining bookie makes no audit due while a queued ledger still has to leave it.
        """
        now, leaving = self._clock.monotonic(), self._worklist.leaving()
        unclean = any(
            self._needs_audit(uuid, now) and uuid not in leaving for uuid in view.bookies_to_leave()
        )
        return self.is_wanted or self._asked_version is not None or unclean or now >= self._audit_at

    def _needs_audit(self, uuid: str, now: float) -> bool:
        """Return whether another audit could confirm that no ledger names the bookie."""
        clean = self._clean.get(uuid)
        return clean is None or (not clean.is_confirmed and now >= clean.since + self._settled_s)

    @property
    def _settled_s(self) -> float:
        return self._store.session_timeout_ms / 1000

    async def begin(self) -> list[int]:
        """Begin an audit: queue the waiting ledgers again, and return the ids of all ledgers, greatest first.

        Raises the store's errors.
        """
        self._audit_at = self._clock.monotonic() + self._settings.repair_round_ms / 1000
        await underreplicated.take_over_damage(self._store)
        self._worklist.enqueue([each async for each in underreplicated.listed(self._store)])
        self._worklist.requeue_waiting()
        todo = sorted([each async for each in ledger_ids(self._store)], reverse=True)
        self._progress.begin("looking", len(todo))
        return todo

    async def work(self, todo: list[int], view: View, may_begin: Callable[[], bool]) -> None:
        """Remove ledgers from the end of `todo` and check each, while `may_begin` returns true.

        Ledgers that need repair are queued. Raises the store's errors.
        """
        while todo and may_begin():
            ledger_id = todo.pop()
            if reason := await self._why_queued(ledger_id, view):
                await underreplicated.put(self._store, ledger_id, reason)
                self._worklist.enqueue([ledger_id])
            self._progress.checked()

    async def _why_queued(self, ledger_id: int, view: View) -> str:
        """Return why a ledger must be queued for repair; "" if it needs no repair.

        If the check itself fails, the ledger is queued too, so that the replicator reports the error.
        """
        path = paths.ledger(ledger_id)
        try:
            record = decode(LedgerRecord, (await self._store.get(path)).value, path)
            if record.state is LedgerState.DELETING:
                return "its deletion is not complete"
            plan = repair_core.plan(record, view, self._copier.loads, self._random)
            if plan.fragments or plan.left or plan.is_unplaced:
                return "a bookie is lost, draining or missing"
            holed = await self._copier.has_holes(record, repair_core.good_holders(record, view))
            return "a copy lacks blocks" if holed else ""
        except NotFound:
            return ""
        except Exception as error:
            if isinstance(error, QuireError):
                _log.info("audit: cannot check ledger %d: %s", ledger_id, error)
            return f"its check failed: {error}"

    async def finish(self, view: View, began_s: float) -> None:
        """Complete an audit that began at `began_s` (monotonic, s), after the ledgers that it queued were processed."""
        self.is_wanted = False
        if self._asked_version is not None:
            try:
                await self._store.delete(paths.UNDERREPLICATED_ALL, self._asked_version)
            except (NotFound, VersionConflict):
                pass  # an operator requested another audit meanwhile
            self._asked_version = None
        leaving = self._worklist.leaving()
        for uuid in view.bookies_to_leave():
            if uuid in leaving:
                self._clean.pop(uuid, None)
            else:
                clean = self._clean.setdefault(uuid, _Clean(began_s))
                clean.is_confirmed = began_s >= clean.since + self._settled_s

    async def retire(self, view: View) -> bool:
        """Retire drained bookies that no ledger names any more; return whether any retirement was attempted."""
        tried = {uuid for uuid in view.draining() if uuid in self._clean and self._clean[uuid].is_confirmed}
        for uuid in sorted(tried):
            self._clean.pop(uuid)
            if await retire(self._store, uuid):
                _log.info("retired the drained bookie %s", uuid)
        if tried:
            self._worklist.requeue(WorkState.AWAY)  # deletions may have waited for this bookie
        return bool(tried)
