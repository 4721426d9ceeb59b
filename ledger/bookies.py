"""Operators' requests about the bookies of a cluster; any broker can answer them from the metadata store.

Results are JSON objects with the field names of the REST API. A bookie is identified by its UUID, an unambiguous prefix
of it, or its address. An operator's intent is written to the bookie's identity record, where the bookie and the
coordinator of repair read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from quire.ledger.ledgers import Ledgers
from quire.ledger.orphans import Orphan, is_listed, orphans
from quire.ledger.retiring import known_bookies
from quire.metadata import paths
from quire.metadata.bookie_states import BookieEvent, after
from quire.metadata.cluster import confirm_cluster
from quire.metadata.notify import change_and_touch, touch
from quire.metadata.records import (
    BookieIntent,
    BookieRecord,
    DamageRecord,
    RepairRecord,
    decode,
    encode,
    field_names,
)
from quire.metadata.store import Put
from quire.metadata.underreplicated import damage_reports
from quire.runtime.errors import ConfigurationError, InUse, NotFound
from quire.wire import ledger_ids


class Bookies:
    """Operators' view of the bookies of a cluster.

    `ledgers` gives access to the metadata store and the bookie directory.
    """

    def __init__(self, ledgers: Ledgers) -> None:
        self._ledgers = ledgers
        self._store = ledgers.store

    async def all(self) -> list[dict[str, Any]]:
        """List all bookies that are running or not retired, sorted by address."""
        known, available = await known_bookies(self._store), self._up()
        damage = list(await damage_reports(self._store))
        progress = await self.repair()
        return [
            _describe(known.get(uuid), available.get(uuid), damage, progress)
            for uuid in sorted(
                known.keys() | available.keys(), key=lambda each: _address(known, available, each)
            )
        ]

    async def show(self, who: str) -> dict[str, Any]:
        """Describe one bookie, with its damage reports. Raises `NotFound`."""
        uuid = (await self._find(who)).uuid
        described = next((each for each in await self.all() if each["uuid"] == uuid), None)
        if described is None:
            raise NotFound(f"bookie {uuid} was just retired")
        described["damage"] = [
            _damage(each) for each in await damage_reports(self._store) if each.bookie.startswith(f"{uuid}:")
        ]
        return described

    async def decommission(self, who: str) -> dict[str, Any]:
        """Drain the bookie: it becomes read-only, its ledgers are copied to others, then it is retired.

        Raises `InUse` if fewer writable bookies than the ack quorum would remain.
        """
        record = await self._find_own(who)
        others = [each for each in self._up().values() if each.uuid != record.uuid and not each.read_only]
        if len(others) < self._ledgers.ack_quorum:
            raise InUse(
                f"cannot decommission bookie {record.uuid}: {len(others)} other bookies accept writes, the ack quorum "
                f"is {self._ledgers.ack_quorum}; start another bookie first"
            )
        await self._change_intent(record.uuid, BookieEvent.DECOMMISSIONED)
        return await self.show(record.uuid)

    async def keep(self, who: str) -> dict[str, Any]:
        """Revoke an earlier `decommission` or `recover` of the bookie; copies made so far are kept."""
        record = await self._find_own(who)
        await self._change_intent(record.uuid, BookieEvent.KEPT)
        return await self.show(record.uuid)

    async def recover(self, who: str) -> dict[str, Any]:
        """Give up an absent bookie: it counts as lost at once, and repair copies its ledgers from other bookies.

        Raises `InUse` if the bookie is running.
        """
        record = await self._find_own(who)
        if record.uuid in self._up():
            raise InUse(f"bookie {record.uuid} is running; to remove it, decommission it")
        await self._change_intent(record.uuid, BookieEvent.GIVEN_UP)
        return await self.show(record.uuid)

    async def repair(self) -> dict[str, Any]:
        """Return the progress of repair, as published by its coordinator."""
        try:
            value = (await self._store.get(paths.REPAIR_PROGRESS)).value
        except NotFound:
            return _json(RepairRecord(state="unknown: no coordinator has reported yet"))
        return _json(decode(RepairRecord, value, paths.REPAIR_PROGRESS))

    async def repair_all(self) -> None:
        """Request an audit of all ledgers from the coordinator of repair."""
        await touch(self._store, paths.UNDERREPLICATED_ALL)
        await touch(self._store, paths.UNDERREPLICATED)

    async def orphans(self) -> list[Orphan]:
        """Return the ledgers that their topic or state log does not list. Raises `WrongCluster`.

        The search reads the records of all ledgers, topics and state logs.
        """
        await self._confirm()
        return await orphans(self._store, self._ledgers.clock.now_ms())

    async def confirm_orphans(self, found: Sequence[Orphan]) -> None:
        """Confirm that `found` are orphans, and not ledgers whose topics an incomplete metadata store lacks.

        Raises `WrongCluster` with the evidence, `Unavailable`.
        """
        await self._ledgers.confirm_absence(f"{len(found)} ledgers that no topic lists" if found else "")

    async def delete_orphan(self, orphan: Orphan) -> None:
        """Delete the ledger in `orphan`, unless it has changed since the search or its owner lists it now.

        Raises `InUse` in these two cases, `WrongCluster`, and `Unavailable` while a bookie does not answer.
        """
        await self._confirm()
        record = await self._ledgers.info(orphan.ledger_id)
        is_same = (record.purpose, record.created_ms) == (orphan.purpose, orphan.created_ms)
        if not is_same or await is_listed(self._store, record):
            raise InUse(f"ledger {orphan.ledger_id} of {record.purpose} is in use now")
        await self._ledgers.delete(orphan.ledger_id)

    async def _confirm(self) -> None:
        """Raise `WrongCluster` unless the store belongs to this cluster.

        A record that is missing from another cluster's store proves nothing.
        """
        if self._ledgers.cluster:
            await confirm_cluster(self._store, self._ledgers.cluster)

    # -- inside ----------------------------------------------------------------------------------------
    def _up(self) -> dict[str, BookieRecord]:
        return {record.uuid: record for record in self._ledgers.available()}

    async def _find_own(self, who: str) -> BookieRecord:
        """Return a bookie that is a process of its own. Raises `NotFound`; `InUse` for a part of another process."""
        record = await self._find(who)
        if record.uuid not in await known_bookies(self._store):
            raise InUse(
                f"bookie {record.uuid} is a part of the server's process, so it cannot leave: only bookies of a "
                "cluster can be decommissioned or recovered"
            )
        return record

    async def _find(self, who: str) -> BookieRecord:
        known = await known_bookies(self._store) or self._up()  # no bookie registers at a standalone
        found = [each for each in known.values() if each.uuid == who or each.address == who]
        found = found or [each for each in known.values() if who and each.uuid.startswith(who)]
        if not found:
            raise NotFound(f"bookie {who} does not exist; `quire bookies list` lists all bookies")
        if len(found) > 1:
            raise ConfigurationError(f"{who} is ambiguous ({len(found)} bookies match); give the full UUID")
        return found[0]

    async def _change_intent(self, uuid: str, event: BookieEvent) -> None:
        path = paths.bookie(uuid)
        node = await self._store.get(path)
        record = decode(BookieRecord, node.value, path)
        record = replace(record, intent=after(record.intent, event))
        change = Put(path, encode(record), node.version)
        await change_and_touch(self._store, change, paths.UNDERREPLICATED)


def _json(record: RepairRecord) -> dict[str, Any]:
    found: dict[str, Any] = {name: getattr(record, name) for name in field_names(RepairRecord)}
    found["bytesCopied"] = found.pop("bytes_copied")
    found["updatedMs"] = found.pop("updated_ms")
    found["lostLedgers"] = found.pop("lost_ledgers")
    return dict(msgspec.to_builtins(found))


def _damage(report: DamageRecord) -> dict[str, Any]:
    ledger_id, what = report.ledger_id, report.what
    if ledger_ids.is_label(ledger_id):
        ledger_id, what = ledger_ids.labelled(ledger_id), f"its label: {what}"
    return {"ledger": ledger_id, "entry": report.entry, "what": what, "foundMs": report.found_ms}


def _address(
    known: dict[str, BookieRecord], available: dict[str, BookieRecord], uuid: str
) -> tuple[str, str]:
    return (available.get(uuid) or known[uuid]).address, uuid


def _describe(
    known: BookieRecord | None,
    available: BookieRecord | None,
    damage: list[DamageRecord],
    progress: dict[str, Any],
) -> dict[str, Any]:
    record = available or known
    assert record is not None
    state = _state(known, available)
    is_lost = record.uuid in progress["lost"]
    return {
        "uuid": record.uuid,
        "incarnation": record.incarnation,
        "address": record.address,
        "rack": record.rack,
        "version": record.version,
        "state": "lost" if state == "absent" and is_lost else state,
        "freeBytes": record.free_bytes,
        "totalBytes": record.total_bytes,
        "damagedCopies": sum(each.bookie.startswith(f"{record.uuid}:") for each in damage),
        "ledgersLeft": progress["left"].get(record.uuid, 0),
        "note": _note(state, record, is_lost=is_lost),
    }


def _note(state: str, record: BookieRecord, *, is_lost: bool) -> str:
    """Return the operator's next step, or the reason why the bookie is read-only; "" if there is neither."""
    give_up = f"or `quire bookies recover {record.uuid[:8]}` if it never comes back"
    if state == "given up":
        return f"once no ledger names it, `quire bookies decommission {record.uuid[:8]}` removes it from this list"
    if state == "absent" and is_lost:
        return f"repair copies its ledgers to other bookies; start it again, {give_up}"
    if "absent" in state:
        return f"start it again, {give_up}"
    return record.read_only_why if state == "read-only" else ""


def _state(known: BookieRecord | None, available: BookieRecord | None) -> str:
    intent = known.intent if known is not None else BookieIntent.STAY
    if BookieIntent.DRAIN in (intent, available.intent if available is not None else None):
        return "draining" if available is not None else "draining, absent"
    if available is None:
        return "given up" if intent is BookieIntent.GIVE_UP else "absent"
    return "read-only" if available.read_only else "up"
