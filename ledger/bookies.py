"""What an operator asks about the bookies of a cluster, and wants of them. Any broker answers, from the metadata store.

Answers are JSON objects with the names of REST. A bookie is named by its UUID, a beginning of it that only one has, or
its address. Wishes are written into the bookie's identity record, where it and the coordinator of repair find them.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from quire.ledger.ledgers import Ledgers
from quire.ledger.orphans import Orphan, orphans
from quire.ledger.retiring import known_bookies
from quire.metadata import paths
from quire.metadata.bookie_states import BookieEvent, after
from quire.metadata.notify import change_and_touch, touch
from quire.metadata.records import BookieIntent, BookieRecord, DamageRecord, RepairRecord, decode, encode
from quire.metadata.store import Put
from quire.metadata.underreplicated import damage_reports
from quire.runtime.errors import ConfigurationError, InUse, NotFound
from quire.wire import ledger_ids


class Bookies:
    """`ledgers` are this process's: they tell who is up as it sees it."""

    def __init__(self, ledgers: Ledgers) -> None:
        self._ledgers = ledgers
        self._store = ledgers.store

    async def all(self) -> list[dict[str, Any]]:
        """Every bookie that is up or was not retired."""
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
        """One bookie, with the damage that was reported of it. Raises `NotFound`."""
        uuid = (await self._find(who)).uuid
        described = next((each for each in await self.all() if each["uuid"] == uuid), None)
        if described is None:
            raise NotFound(f"bookie {uuid} was retired a moment ago")
        described["damage"] = [
            _damage(each) for each in await damage_reports(self._store) if each.bookie.startswith(f"{uuid}:")
        ]
        return described

    async def decommission(self, who: str) -> dict[str, Any]:
        """Drain the bookie: it takes nothing new, what it holds is copied to others, then its record is removed.

        Raises `InUse` when fewer bookies than the ack quorum would be left to take writes.
        """
        record = await self._find(who)
        others = [each for each in self._up().values() if each.uuid != record.uuid and not each.read_only]
        if len(others) < self._ledgers.ack_quorum:
            raise InUse(
                f"bookie {record.uuid} cannot go: {len(others)} others take writes and {self._ledgers.ack_quorum} must "
                "acknowledge each; start another bookie first"
            )
        await self._change_intent(record.uuid, BookieEvent.DECOMMISSIONED)
        return await self.show(record.uuid)

    async def keep(self, who: str) -> dict[str, Any]:
        """Take back `decommission` or `recover`; what was copied stays copied."""
        record = await self._find(who)
        await self._change_intent(record.uuid, BookieEvent.KEPT)
        return await self.show(record.uuid)

    async def recover(self, who: str) -> dict[str, Any]:
        """Copy at once what a bookie held that is not up. Raises `InUse` when it is."""
        record = await self._find(who)
        if record.uuid in self._up():
            raise InUse(f"bookie {record.uuid} is up; decommission it if it is to go")
        await self._change_intent(record.uuid, BookieEvent.GIVEN_UP)
        return await self.show(record.uuid)

    async def repair(self) -> dict[str, Any]:
        """What the coordinator of repair does."""
        try:
            value = (await self._store.get(paths.REPAIR_PROGRESS)).value
        except NotFound:
            return _json(RepairRecord(state="nothing to tell yet"))
        return _json(decode(RepairRecord, value, paths.REPAIR_PROGRESS))

    async def repair_all(self) -> None:
        """Have the coordinator look at every ledger now."""
        await touch(self._store, paths.UNDERREPLICATED_ALL)
        await touch(self._store, paths.UNDERREPLICATED)

    async def orphans(self) -> list[Orphan]:
        """Ledgers that their topic or state log does not list; reads everything."""
        return await orphans(self._store, self._ledgers.clock.now_ms())

    async def delete_ledger(self, ledger_id: int) -> None:
        """For orphans. Raises `Unavailable` while a bookie does not answer."""
        await self._ledgers.delete(ledger_id)

    # -- inside ----------------------------------------------------------------------------------------
    def _up(self) -> dict[str, BookieRecord]:
        return {record.uuid: record for record in self._ledgers.available()}

    async def _find(self, who: str) -> BookieRecord:
        known = await known_bookies(self._store)
        found = [each for each in known.values() if each.uuid == who or each.address == who]
        found = found or [each for each in known.values() if who and each.uuid.startswith(who)]
        if not found:
            raise NotFound(f"there is no bookie {who}; `quire bookies list` shows them")
        if len(found) > 1:
            raise ConfigurationError(f"{who} may be any of {len(found)} bookies; name one by its whole UUID")
        return found[0]

    async def _change_intent(self, uuid: str, event: BookieEvent) -> None:
        path = paths.bookie(uuid)
        node = await self._store.get(path)
        record = decode(BookieRecord, node.value, path)
        record = replace(record, intent=after(record.intent, event))
        change = Put(path, encode(record), node.version)
        await change_and_touch(self._store, change, paths.UNDERREPLICATED)


def _json(record: RepairRecord) -> dict[str, Any]:
    found: dict[str, Any] = {name: getattr(record, name) for name in record.__struct_fields__}
    found["bytesCopied"] = found.pop("bytes_copied")
    found["updatedMs"] = found.pop("updated_ms")
    found["lostLedgers"] = found.pop("lost_ledgers")
    return dict(msgspec.to_builtins(found))


def _damage(told: DamageRecord) -> dict[str, Any]:
    ledger_id, what = told.ledger_id, told.what
    if ledger_ids.is_label(ledger_id):
        ledger_id, what = ledger_ids.labelled(ledger_id), f"its label: {what}"
    return {"ledger": ledger_id, "entry": told.entry, "what": what, "foundMs": told.found_ms}


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
    """What is the matter, and the next step."""
    give_up = f"or `quire bookies recover {record.uuid[:8]}` if it never comes back"
    if state == "given up":
        return f"when no ledger needs it: `quire bookies decommission {record.uuid[:8]}` removes it from this list"
    if state == "absent" and is_lost:
        return f"its copies are made elsewhere; start it again, {give_up}"
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
