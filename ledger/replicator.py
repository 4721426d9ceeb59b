"""The replicator takes the ledgers of the queue, a few at a time, and repairs them.

    queue node → ledger record → plan (`repair_core`) → copy and name (`repair_copy`) → fill holes → remove the node

The node is removed by the version that was read: when somebody reported meanwhile, the ledger is taken again. What
cannot be done now waits in the `worklist`. Damage that is mended is struck off the node at once. The bookies of a
ledger are asked as well whether their copies have holes: an ack quorum was enough to confirm a block; who had some may
lack the label, too. A deletion that a bookie missed is finished (`deletion`). A label (`labels`) that a bookie reports
as damaged is queued as any ledger is, and is told anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final

from quire.ledger import repair_core, states
from quire.ledger.deletion import Deletion
from quire.ledger.repair_copy import Copier
from quire.ledger.repair_core import View
from quire.ledger.repair_progress import Progress
from quire.ledger.worklist import WorkEvent, Worklist
from quire.metadata import paths, underreplicated
from quire.metadata.records import LedgerRecord, LedgerState, UnderreplicatedRecord, decode
from quire.metadata.store import MetadataStore
from quire.runtime.errors import LostForGood, NotFound, QuireError, Unavailable, VersionConflict
from quire.wire import ledger_ids
from quire.wire.bookie import BookieId

_log = logging.getLogger(__name__)

_TRIES: Final = 3
_LOST_MAX: Final = 100
"""Lost ledgers that are told to operators: a record of the metadata store has to hold them."""


class _Node:
    """A ledger's node of the queue, as far as this process read or wrote it; version None when there is none."""

    def __init__(self, record: UnderreplicatedRecord, version: int | None) -> None:
        self.record = record
        self.version = version
        self.is_changed = False
        """By somebody else, who may tell of what came after the repair."""

    async def settle(self, store: MetadataStore, damaged: Collection[str]) -> None:
        """Strike off damage that is mended, all but that of bookies `damaged` (UUIDs)."""
        if self.version is not None and not self.is_changed:
            try:
                self.record, self.version = await underreplicated.settle(
                    store, self.record, self.version, damaged
                )
            except (NotFound, VersionConflict):
                self.is_changed = True

    async def remove(self, store: MetadataStore) -> None:
        if self.version is not None and not self.is_changed:
            try:
                await underreplicated.remove(store, self.record.ledger_id, self.version)
            except VersionConflict:
                self.is_changed = True


class Replicator:
    """Repairs what is queued in `worklist`."""

    def __init__(
        self,
        store: MetadataStore,
        copier: Copier,
        deletion: Deletion,
        progress: Progress,
        worklist: Worklist,
        random: Callable[[], float],
    ) -> None:
        self._store = store
        self._copier = copier
        self._deletion = deletion
        self._progress = progress
        self._worklist = worklist
        self._random = random
        self._lost_before: set[int] = set()
        """Said once in the log."""
        self.on_open: Callable[[LedgerRecord], None] = lambda record: None
        """Told each open ledger that must be closed before it can be repaired."""

    async def work(self, view: View, may_begin: Callable[[], bool]) -> None:
        """Repair one ledger after the other while it `may_begin` another and one is queued."""
        worries = frozenset(view.worries())
        while may_begin() and (ledger_id := self._worklist.begin(worries)) is not None:
            leaving, event = None, WorkEvent.FAILED
            try:
                event, leaving = await self._repair(ledger_id, view)
            except (Unavailable, VersionConflict) as error:
                self._progress.failed(error)
            except LostForGood as error:
                self._lose(error)
            except Exception as error:  # one ledger's trouble is no reason to leave the others as they are
                is_ours = not isinstance(error, QuireError)
                _log.error("ledger %d cannot be repaired: %s", ledger_id, error, exc_info=is_ours)
                self._progress.failed(error)
            self._worklist.end(ledger_id, event, leaving)
            self._progress.checked()

    def _lose(self, error: LostForGood) -> None:
        if error.ledger_id not in self._lost_before:
            self._lost_before.add(error.ledger_id)
            _log.error("%s", error)
        if len(self._worklist.lost) < _LOST_MAX:
            self._worklist.lost[error.ledger_id] = str(error)
        self._progress.failed(error)

    async def _repair(self, ledger_id: int, view: View) -> tuple[WorkEvent, frozenset[str]]:
        """What became of the ledger, and the bookies that it has still to leave."""
        try:
            node = _Node(*await underreplicated.read(self._store, ledger_id))
        except NotFound:
            node = _Node(UnderreplicatedRecord(ledger_id=ledger_id), None)
        view = replace(view, damaged={ledger_id: {each.bookie for each in node.record.damage}})
        event, leaving = await self._judge(ledger_id, view, node)
        if event is WorkEvent.DONE:
            await node.remove(self._store)
        return WorkEvent.DUE if node.is_changed else event, leaving

    async def _judge(self, ledger_id: int, view: View, node: _Node) -> tuple[WorkEvent, frozenset[str]]:
        """Read, judge, repair, and look again when somebody changed the ledger meanwhile."""
        path = paths.ledger(ledger_id)
        for attempt in range(_TRIES):
            try:
                if ledger_ids.is_label(ledger_id):
                    await self._copier.label(ledger_ids.labelled(ledger_id))
                    break
                read = await self._store.get(path)
                record = decode(LedgerRecord, read.value, path)
                if record.state is LedgerState.DELETING:
                    await node.settle(self._store, ())  # nobody needs its blocks any more
                    return await self._finish_deletion(record, view), frozenset()
                return await self._repair_record(record, read.version, view, node)
            except NotFound:
                break
            except VersionConflict:
                if attempt + 1 == _TRIES:
                    raise
        return WorkEvent.DONE, frozenset()

    async def _repair_record(
        self, record: LedgerRecord, version: int, view: View, node: _Node
    ) -> tuple[WorkEvent, frozenset[str]]:
        """Raises what the `Copier` does, and what a bookie refused whose copy was to be made whole where it is."""
        ledger_id = record.ledger_id
        self._worklist.narrow(ledger_id, frozenset(each.uuid for each in states.all_bookies(record)))
        plan = repair_core.plan(record, view, self._copier.loads, self._random)
        refused: dict[BookieId, QuireError] = {}
        if plan.fragments:
            record, refused = await self._copier.repair(record, version, plan.fragments)
        if record.state is not LedgerState.IN_RECOVERY:  # it may come to name others
            await node.settle(self._store, plan.left | {copy.uuid for copy in refused})
        good = repair_core.good_holders(record, view)
        is_filled = await self._copier.complete(record, good)
        if is_filled:
            await self._copier.label(ledger_id)
        if is_filled or plan.fragments:
            self._progress.repaired()
            _log.info("ledger %d is repaired", ledger_id)
        if refused:
            raise next(iter(refused.values()))  # until there is another bookie for that copy
        if plan.is_open and (plan.left or node.record.damage):
            self.on_open(record)
            return WorkEvent.IS_OPEN, plan.left
        return WorkEvent.LACKS_BOOKIE if plan.is_unplaced else WorkEvent.DONE, plan.left

    async def _finish_deletion(self, record: LedgerRecord, view: View) -> WorkEvent:
        """Lay the tombstones that are missing; not while a bookie is away: nobody is asked in vain."""
        if any(
            each.uuid in view.known and each.uuid not in view.available for each in states.holders(record)
        ):
            return WorkEvent.BOOKIE_IS_AWAY
        await self._deletion.run(record.ledger_id)
        return WorkEvent.DONE
