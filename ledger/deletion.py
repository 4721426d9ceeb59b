"""Deletion of a ledger (rule 20): DELETING by compare-and-set, tombstones on all holders, then removal of the record.

A *holder* is a bookie that may have blocks of the ledger. Each holder writes tombstones for the ledger and for its
label (`labels`). The ledger's record is removed when each holder has answered or was retired. Otherwise, the caller may
try again, or `repair` completes the deletion when the bookies are running. A bookie counts as retired only if its
record is missing from this cluster's store; in an empty or foreign store, a missing record proves nothing.

A bookie that has another ledger under the id (`lives`) gets no tombstone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from quire.ledger import lives, placement, states
from quire.ledger.directory import BookieDirectory
from quire.metadata import paths
from quire.metadata.cluster import confirm_cluster
from quire.metadata.records import BookieRecord, LedgerRecord, LedgerState, decode, encode
from quire.metadata.store import MetadataStore
from quire.runtime.errors import NotFound, OutcomeUnknown, Unavailable, VersionConflict
from quire.wire.bookie import BookieId, DeleteRequest, Status
from quire.wire.ledger_ids import label_id


class Silent(Unavailable):
    """Raised when some bookies did not answer a deletion; the ledger's record stays."""

    def __init__(self, ledger_id: int, bookies: Sequence[BookieId]) -> None:
        names = ", ".join(map(str, bookies))
        super().__init__(f"ledger {ledger_id} is not deleted yet: no answer from {names}")


class Deletion:
    """Deletion of ledgers. `cluster` is the cluster id that `store` must have; with "", it is not checked."""

    def __init__(self, store: MetadataStore, bookies: BookieDirectory, cluster: str = "") -> None:
        self._store = store
        self._bookies = bookies
        self._cluster = cluster

    async def run(self, ledger_id: int, *, buries: bool = True) -> None:
        """Delete the ledger, if it exists. If `buries` is false, no tombstones are written, and its record is removed.

        Raises `Silent` if a bookie did not answer, `Unavailable` if the store did not answer, `WrongCluster`.
        """
        path = paths.ledger(ledger_id)
        try:
            record, version = await self._begin(path)
            if buries:
                await self._bury_all(record, version)
            states.may_be_removed(record, states.LedgerEvent.FORGOTTEN)
            await self._store.delete(path, version)
        except NotFound:
            return

    async def _bury_all(self, record: LedgerRecord, version: int) -> None:
        """Write tombstones on all holders. Raises `Silent`."""
        holders = states.holders(record)
        strangers = await lives.strangers_among(self._bookies, record, holders)
        answers = [
            self._bury(bookie, each, version)
            for bookie in holders
            if bookie.uuid not in strangers
            for each in (record.ledger_id, label_id(record.ledger_id))
        ]
        silent = [bookie for bookie in await asyncio.gather(*answers) if bookie is not None]
        if silent:
            raise Silent(record.ledger_id, list(dict.fromkeys(silent)))

    async def _begin(self, path: str) -> tuple[LedgerRecord, int]:
        """Set the record to DELETING; return it with its version. Raises `NotFound`, `Unavailable`."""
        while True:
            node = await self._store.get(path)
            record = decode(LedgerRecord, node.value, path)
            if record.state is LedgerState.DELETING:
                return record, node.version
            record = states.deleting(record)
            try:
                return record, await self._store.put(path, encode(record), node.version)
            except (VersionConflict, OutcomeUnknown):
                continue

    async def _bury(self, bookie: BookieId, ledger_id: int, version: int) -> BookieId | None:
        """Write a tombstone on the bookie. Return None if that succeeded or the bookie was retired, else the bookie.

        If a later incarnation of the bookie is registered, it gets the tombstone too, because it may still have the
        ledger's blocks.
        """
        response = await self._bookies.port(bookie).ask(DeleteRequest(bookie, ledger_id, version))
        if response.status in (Status.OK, Status.DELETED, Status.NO_SUCH_LEDGER):
            return None
        if bookie.is_wal:
            return bookie  # a WAL has no bookie record
        try:
            path = paths.bookie(bookie.uuid)
            current = placement.bookie_id(decode(BookieRecord, (await self._store.get(path)).value, path))
        except NotFound:
            if self._cluster:
                await confirm_cluster(self._store, self._cluster)
            return None
        if current == bookie:
            return bookie
        response = await self._bookies.port(current).ask(DeleteRequest(current, ledger_id, version))
        return None if response.status in (Status.OK, Status.DELETED, Status.NO_SUCH_LEDGER) else bookie
