"""How a ledger goes: its record is DELETING by version, each bookie that may hold some of it lays a tombstone, and then
the record goes, too (rule 20). Its label (`labels`) goes with it.

A bookie that does not answer keeps the record. Whoever asked may ask again; if nobody does, repair finishes it when
all its bookies are up (`repair`). A bookie counts as retired only when its own record is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from quire.ledger import placement, states
from quire.ledger.directory import BookieDirectory
from quire.metadata import paths
from quire.metadata.records import BookieRecord, LedgerRecord, LedgerState, decode, encode
from quire.metadata.store import MetadataStore
from quire.runtime.errors import NotFound, OutcomeUnknown, Unavailable, VersionConflict
from quire.wire.bookie import BookieId, DeleteRequest, Status
from quire.wire.ledger_ids import label_id


class Silent(Unavailable):
    """Some bookies did not answer, so the ledger's record stays."""

    def __init__(self, ledger_id: int, bookies: Sequence[BookieId]) -> None:
        who = ", ".join(map(str, bookies))
        super().__init__(f"ledger {ledger_id} is not deleted yet: no answer from {who}")


class Deletion:
    """Deletes ledgers of `store` from `bookies`."""

    def __init__(self, store: MetadataStore, bookies: BookieDirectory) -> None:
        self._store = store
        self._bookies = bookies

    async def run(self, ledger_id: int) -> None:
        """Nothing when there is no such ledger (any more).

        Raises `Silent` when the record stays for bookies that did not answer, `Unavailable` when the store does not.
        """
        path = paths.ledger(ledger_id)
        try:
            record, version = await self._begin(path)
            answers = [
                self._bury(bookie, each, version)
                for bookie in states.holders(record)
                for each in (ledger_id, label_id(ledger_id))
            ]
            silent = [bookie for bookie in await asyncio.gather(*answers) if bookie is not None]
            if silent:
                raise Silent(ledger_id, list(dict.fromkeys(silent)))
            states.may_be_removed(record, states.LedgerEvent.FORGOTTEN)
            await self._store.delete(path, version)
        except NotFound:
            return

    async def _begin(self, path: str) -> tuple[LedgerRecord, int]:
        """The record in DELETING, and its version. Raises `NotFound`, `Unavailable`."""
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
        """Lay a tombstone; None when it lies there or the bookie was retired, else the bookie.

        A bookie that came back as another incarnation may still have the bytes: it gets the tombstone, too.
        """
        response = await self._bookies.port(bookie).ask(DeleteRequest(bookie, ledger_id, version))
        if response.status in (Status.OK, Status.DELETED, Status.NO_SUCH_LEDGER):
            return None
        if bookie.is_wal:
            return bookie  # it has no record as bookies have
        try:
            path = paths.bookie(bookie.uuid)
            current = placement.bookie_id(decode(BookieRecord, (await self._store.get(path)).value, path))
        except NotFound:
            return None
        if current == bookie:
            return bookie
        response = await self._bookies.port(current).ask(DeleteRequest(current, ledger_id, version))
        return None if response.status in (Status.OK, Status.DELETED, Status.NO_SUCH_LEDGER) else bookie
