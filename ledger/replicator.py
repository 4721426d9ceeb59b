"""Replicator: repairs queued ledgers, a few at a time.

        queue node → ledger record → plan (`repair_core`) → copy, update record (`repair_copy`) → fill holes → dequeue

It is the counterpart of BookKeeper's [ReplicationWorker](https://bookkeeper.apache.org/docs/admin/autorecovery).

- A queue node is removed only if its version is unchanged. If damage was reported meanwhile, the ledger is repaired
  again.
- A ledger that cannot be repaired now waits in the `worklist`. Reports of repaired damage are removed from its queue
  node at once.
- All bookies of a ledger are asked for holes in their copies, because an ack quorum was enough to confirm a block.
- A deletion that a bookie missed is completed (`deletion`).
- A label (`labels`) that a bookie reports as damaged is queued like a ledger, and is sent again.
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
"""Attempts at a ledger that other processes change meanwhile; then the ledger waits as failed."""

_LOST_MAX: Final = 100
"""Maximum number of ledgers with lost entries that are listed, so that the list fits into a node of the metadata store.
"""


class _Node:
    """Queue node of one ledger, as this process last read or wrote it. Its version is None if it does not exist."""

    def __init__(self, record: UnderreplicatedRecord, version: int | None) -> None:
        self.record = record
        self.version = version
        self.is_changed = False
        """Set when another process has changed the node, which may contain new damage reports."""

    async def settle(self, store: MetadataStore, damaged: Collection[str]) -> None:
        """Remove the damage reports of all bookies from the node, except those of the bookies `damaged` (UUIDs)."""
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
    """Workers that repair the ledgers queued in `worklist`."""

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
        """Ids of ledgers whose loss of entries was already logged."""
        self.on_open: Callable[[LedgerRecord], None] = lambda record: None
        """Listener for open ledgers that must be closed before they can be repaired."""

    async def work(self, view: View, may_begin: Callable[[], bool]) -> None:
        """Repair queued ledgers one after the other, while `may_begin` returns true."""
        bookies_to_leave = frozenset(view.bookies_to_leave())
        while may_begin() and (ledger_id := self._worklist.begin(bookies_to_leave)) is not None:
            leaving, event = None, WorkEvent.FAILED
            try:
                event, leaving = await self._repair(ledger_id, view)
            except (Unavailable, VersionConflict) as error:
                self._progress.failed(error)
            except LostForGood as error:
                self._lose(error)
            except Exception as error:  # one ledger's failure must not stop the others
                is_internal = not isinstance(error, QuireError)
                _log.error("ledger %d cannot be repaired now: %s", ledger_id, error, exc_info=is_internal)
                self._progress.failed(error)
            self._worklist.finish(ledger_id, event, leaving)
            self._progress.checked()

    def _lose(self, error: LostForGood) -> None:
        if error.ledger_id not in self._lost_before:
            self._lost_before.add(error.ledger_id)
            _log.error("%s", error)
        if len(self._worklist.lost) < _LOST_MAX:
            self._worklist.lost[error.ledger_id] = str(error)
        self._progress.failed(error)

    async def _repair(self, ledger_id: int, view: View) -> tuple[WorkEvent, frozenset[str]]:
        """Repair a ledger; return the resulting event and the bookies that it still has to leave."""
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
        """Repair the ledger, complete its deletion, or send its label again, depending on the queued id and the record.

        Try again if another process changes the record meanwhile.
        """
        path = paths.ledger(ledger_id)
        for attempt in range(_TRIES):
            try:
                if ledger_ids.is_label(ledger_id):
                    await self._copier.label(ledger_ids.labelled(ledger_id))
                    break
                read = await self._store.get(path)
                record = decode(LedgerRecord, read.value, path)
                if record.state is LedgerState.DELETING:
                    await node.settle(self._store, ())  # a deleted ledger's blocks are not needed any more
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
        """Execute the plan for a ledger, and fill the holes of its copies.

        Raises the `Copier`'s errors, and the refusal of a bookie whose damaged copy should be completed in place.
        """
        ledger_id = record.ledger_id
        self._worklist.restrict_leaving(
            ledger_id, frozenset(each.uuid for each in states.all_bookies(record))
        )
        plan = repair_core.plan(record, view, self._copier.loads, self._random)
        if strangers := await self._copier.strangers(record, plan):
            others = {uuid: each for uuid, each in view.available.items() if uuid not in strangers}
            view = replace(view, available=others)
            plan = repair_core.plan(record, view, self._copier.loads, self._random)
        refused: dict[BookieId, QuireError] = {}
        if plan.fragments:
            record, version, refused = await self._copier.repair(record, version, plan.fragments)
        if record.state is not LedgerState.IN_RECOVERY:  # a recovery may still add bookies
            await node.settle(self._store, plan.left | {copy.uuid for copy in refused})
        good = repair_core.good_holders(record, view)
        is_filled = await self._copier.complete(record, version, good)
        if is_filled or plan.fragments:
            self._progress.repaired()
            _log.info("repaired ledger %d", ledger_id)
        if refused:
            raise next(iter(refused.values()))  # retry until another bookie can take the copy
        if plan.is_open and (plan.left or node.record.damage):
            self.on_open(record)
            return WorkEvent.IS_OPEN, plan.left
        return WorkEvent.LACKS_BOOKIE if plan.is_unplaced else WorkEvent.DONE, plan.left

    async def _finish_deletion(self, record: LedgerRecord, view: View) -> WorkEvent:
        """Complete the deletion of a ledger, unless a holder is absent, which could not confirm its tombstone."""
        if any(
            each.uuid in view.known and each.uuid not in view.available for each in states.holders(record)
        ):
            return WorkEvent.BOOKIE_IS_AWAY
        await self._deletion.run(record.ledger_id)
        return WorkEvent.DONE
