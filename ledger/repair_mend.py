"""Mends the ledgers of one look, a few at a time, and remembers what could not be done.

Each ledger's record is read once and judged (`repair_core`); what needs it is copied (`repair_copy`). A `thorough` look
asks the bookies as well whether their copies have holes: an ack quorum was enough to confirm a block. Reports of damage
that is mended are removed (`repair_news`), and a deletion that a bookie missed is finished (`deletion`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from quire.ledger import repair_core, states
from quire.ledger.deletion import Deletion
from quire.ledger.repair_copy import Copier
from quire.ledger.repair_core import View
from quire.ledger.repair_news import News
from quire.ledger.repair_progress import Progress
from quire.metadata import paths
from quire.metadata.records import LedgerRecord, LedgerState, decode
from quire.metadata.store import MetadataStore
from quire.runtime.errors import LostForGood, NotFound, QuireError, Unavailable, VersionConflict
from quire.runtime.tasks import Tasks
from quire.wire.bookie import BookieId

_log = logging.getLogger(__name__)

_AT_ONCE: Final = 4
"""Ledgers looked at or copied at the same time: enough to keep several disks busy."""

_TRIES: Final = 3
_LOST_MAX: Final = 100
"""Lost ledgers that are told to operators: a record of the metadata store has to hold them."""


@dataclass
class Left:
    """What the last look at some ledgers left: per ledger, the bookies it must leave; and why others wait."""

    bookies: dict[int, frozenset[str]] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)
    unplaced: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    lost: dict[int, str] = field(default_factory=dict)
    """Those of `failed` of which nobody has an entry any more."""

    def forget(self, ledger_id: int) -> None:
        self.bookies.pop(ledger_id, None)
        self.lost.pop(ledger_id, None)
        for group in (self.open, self.unplaced, self.failed):
            group.discard(ledger_id)

    def look_again(self, ledger_id: int) -> None:
        """There is news of the ledger: it need not wait until what it lacked is there."""
        self.unplaced.discard(ledger_id)
        self.failed.discard(ledger_id)

    def counts(self) -> dict[str, int]:
        """Of each bookie, by UUID, the ledgers that must leave it."""
        return dict(Counter(uuid for uuids in self.bookies.values() for uuid in uuids))


class Mender:
    """Mends what it is told to as long as it `may_begin` another ledger; what it could not do is in `left`."""

    def __init__(
        self,
        store: MetadataStore,
        copier: Copier,
        deletion: Deletion,
        news: News,
        progress: Progress,
        tasks: Tasks,
        dice: Callable[[], float],
        may_begin: Callable[[], bool],
    ) -> None:
        self._store = store
        self._copier = copier
        self._deletion = deletion
        self._news = news
        self._progress = progress
        self._dice = dice
        self._tasks = tasks
        self._may_begin = may_begin
        self.left = Left()
        self._lost_before: set[int] = set()
        """Said once in the log."""
        self.on_open: Callable[[LedgerRecord], None] = lambda record: None
        """Told each open ledger that must be closed before it can be repaired."""

    async def mend(self, view: View, scope: Collection[int], *, thorough: bool) -> None:
        """Look at each ledger of the `scope`. Raises `Unavailable` when it was told to begin no more."""
        self._progress.begin("looking" if thorough else "mending", len(scope))
        publishing = self._tasks.start(self._progress.publish_often(), "publish progress of repair")
        todo = sorted(scope, reverse=True)
        workers = [
            self._tasks.start(self._work(todo, view, thorough), "repair ledgers") for _ in range(_AT_ONCE)
        ]
        try:
            await asyncio.gather(*workers)
        finally:
            for task in (*workers, publishing):
                task.cancel()
        if todo:
            raise Unavailable(
                "the lease is in doubt or lost; what was not looked at waits for the next coordinator"
            )

    async def _work(self, todo: list[int], view: View, thorough: bool) -> None:
        while todo and self._may_begin():
            ledger_id = todo.pop()
            self.left.forget(ledger_id)
            try:
                await self._mend_ledger(ledger_id, view, thorough)
            except (Unavailable, VersionConflict) as error:
                self._fail(ledger_id, error)
            except LostForGood as error:
                self._lose(error)
            except Exception as error:  # one ledger's trouble is no reason to leave the others as they are
                is_ours = not isinstance(error, QuireError)
                _log.error("ledger %d cannot be repaired: %s", ledger_id, error, exc_info=is_ours)
                self._fail(ledger_id, error)
            self._progress.checked()

    def _fail(self, ledger_id: int, error: Exception) -> None:
        self.left.failed.add(ledger_id)
        self._progress.failed(error)

    def _lose(self, error: LostForGood) -> None:
        if error.ledger_id not in self._lost_before:
            self._lost_before.add(error.ledger_id)
            _log.error("%s", error)
        if len(self.left.lost) < _LOST_MAX:
            self.left.lost[error.ledger_id] = str(error)
        self._fail(error.ledger_id, error)

    async def _mend_ledger(self, ledger_id: int, view: View, thorough: bool) -> None:
        """Read, judge, repair, and look again when somebody changed it meanwhile."""
        path = paths.ledger(ledger_id)
        worries = frozenset(view.worries())
        for attempt in range(_TRIES):
            # Until the end it may be any of them that the ledger needs: what fails on the way proves nothing.
            self.left.bookies[ledger_id] = worries
            try:
                node = await self._store.get(path)
                record = decode(LedgerRecord, node.value, path)
                if record.state is LedgerState.DELETING:
                    await self._forget(ledger_id)
                    await self._finish_deletion(record, view)
                else:
                    await self._mend_record(record, node.version, view, thorough)
                return
            except NotFound:
                await self._forget(ledger_id)
                return
            except VersionConflict:
                if attempt + 1 == _TRIES:
                    raise

    async def _mend_record(self, record: LedgerRecord, version: int, view: View, thorough: bool) -> None:
        """Raises what the `Copier` does, and what a bookie refused whose copy was to be made whole where it is."""
        ledger_id = record.ledger_id
        self.left.bookies[ledger_id] &= _named(record)
        plan = repair_core.plan(record, view, self._copier.loads, self._dice)
        refused: dict[BookieId, QuireError] = {}
        if plan.fragments:
            record, refused = await self._copier.repair(record, version, plan.fragments)
        if record.state is not LedgerState.IN_RECOVERY:  # it may come to name others
            await self._news.forget_damage(ledger_id, plan.left | {copy.uuid for copy in refused})
        good = repair_core.good_holders(record, view) if thorough else {}
        if await self._copier.complete(record, good) or plan.fragments:
            self._progress.repaired()
            _log.info("ledger %d is repaired", ledger_id)
        if refused:
            raise next(iter(refused.values()))  # until there is another bookie for that copy
        self._note(record, plan)

    async def _forget(self, ledger_id: int) -> None:
        """The ledger is gone, or about to go."""
        self.left.forget(ledger_id)
        await self._news.forget_damage(ledger_id)

    async def _finish_deletion(self, record: LedgerRecord, view: View) -> None:
        """Lay the tombstones that are missing; not while a bookie is away: there is a round when it is back."""
        if all(each.uuid in view.available or each.uuid not in view.known for each in states.holders(record)):
            await self._deletion.run(record.ledger_id)

    def _note(self, record: LedgerRecord, plan: repair_core.Plan) -> None:
        """What the plan left undone."""
        ledger_id = record.ledger_id
        self.left.forget(ledger_id)
        if plan.left:
            self.left.bookies[ledger_id] = plan.left
            if plan.is_open:
                self.left.open.add(ledger_id)
                self.on_open(record)
        if plan.is_unplaced:
            self.left.unplaced.add(ledger_id)


def _named(record: LedgerRecord) -> frozenset[str]:
    return frozenset(bookie.uuid for bookie in states.all_bookies(record))
