"""The queue of under-replicated ledgers: one node per ledger that may lack copies, or blocks in them, with the reasons.

Whoever knows puts a ledger there: who closed it narrow, a bookie or a reader that met damage, who could not delete it
whole, and the auditor (`ledger.auditor`). The replicator (`ledger.replicator`) takes it, repairs it, and removes the
version of the node that it read: one that was written over meanwhile is taken again, as it may tell of what happened
after the repair. With each report the queue's own node changes, which is what listeners watch; the auditor, who works
beside the replicator, need not tell it.

The nodes lie in sixteen folders by the last digit of the id, so no list of names outgrows what a store answers at once.
Older versions kept a record per damaged copy elsewhere (`paths.DAMAGE`): `take_over_damage` brings these in.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection
from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from quire.metadata import paths
from quire.metadata.notify import change_and_touch
from quire.metadata.records import DamageRecord, UnderreplicatedRecord, decode, encode
from quire.metadata.store import Create, MetadataStore, NotEmpty, Put
from quire.runtime.clock import Clock
from quire.runtime.errors import (
    AlreadyExists,
    CorruptionError,
    NotFound,
    QuireError,
    VersionConflict,
)
from quire.runtime.tasks import Tasks

log = logging.getLogger(__name__)

LAST_REPORT_S: Final = 2.0
"""How long a process that ends waits for the store to take what it has to report."""

_AGAIN_S: Final = 60.0
_RETRY_S: Final = 5.0
_REMEMBERED_MAX: Final = 10_000
_READ_AT_ONCE: Final = 64


async def listed(store: MetadataStore) -> AsyncIterator[int]:
    """The ids in the queue, in sixteen operations. What is no ledger's keeps nobody from the others."""
    for folder in paths.underreplicated_folders():
        for name in await store.children(folder):
            try:
                yield int(name, 16)
            except ValueError:
                log.warning("%s/%s is no ledger's; remove it", folder, name)


async def read(store: MetadataStore, ledger_id: int) -> tuple[UnderreplicatedRecord, int]:
    """The ledger's record and its version. One that cannot be read gives no reasons. Raises `NotFound`."""
    path = paths.underreplicated(ledger_id)
    node = await store.get(path)
    try:
        return decode(UnderreplicatedRecord, node.value, path), node.version
    except CorruptionError as error:
        log.warning("%s", error)
        return UnderreplicatedRecord(ledger_id=ledger_id), node.version


async def put(store: MetadataStore, ledger_id: int, reason: str) -> None:
    """Have the ledger in the queue, and tell nobody. Raises what the store does."""
    record = UnderreplicatedRecord(ledger_id=ledger_id, reasons=(reason,))
    try:
        await store.create(paths.underreplicated(ledger_id), encode(record))
    except AlreadyExists:
        pass


async def settle(
    store: MetadataStore, record: UnderreplicatedRecord, version: int, damaged: Collection[str] = ()
) -> tuple[UnderreplicatedRecord, int]:
    """Strike damage off that is mended: all but that of bookies `damaged` (UUIDs). Returns what is there now.

    Damage that is settled must not outlive another copy's: a bookie with a new copy would have to be left. Raises
    `VersionConflict`, `NotFound`.
    """
    left = tuple(each for each in record.damage if _uuid(each) in damaged)
    if left == record.damage:
        return record, version
    record = replace(record, damage=left)
    return record, await store.put(paths.underreplicated(record.ledger_id), encode(record), version)


async def remove(store: MetadataStore, ledger_id: int, version: int) -> None:
    """Raises `VersionConflict` when it was written over meanwhile."""
    try:
        await store.delete(paths.underreplicated(ledger_id), version)
    except NotFound:
        pass


async def report(store: MetadataStore, new: UnderreplicatedRecord) -> bool:
    """Put `new` into the queue, or merge it into what is there. False when just that damage was told already.

    Raises `AlreadyExists`, `NotFound` or `VersionConflict` when others change the node at this moment.
    """
    path = paths.underreplicated(new.ledger_id)
    try:
        old, version = await read(store, new.ledger_id)
    except NotFound:
        await change_and_touch(store, Create(path, encode(new)), paths.UNDERREPLICATED)
        return True
    if new.damage and {*map(_copy, new.damage)} <= {*map(_copy, old.damage)}:
        return False
    told = {_uuid(each) for each in new.damage}
    merged = UnderreplicatedRecord(
        ledger_id=new.ledger_id,
        reasons=tuple(dict.fromkeys((*old.reasons, *new.reasons))),
        damage=(*(each for each in old.damage if _uuid(each) not in told), *new.damage),
    )
    await change_and_touch(store, Put(path, encode(merged), version), paths.UNDERREPLICATED)
    return True


async def damage_reports(store: MetadataStore) -> dict[DamageRecord, int]:
    """All damage that was reported and is not mended, and the version of the record that tells of it."""
    found: dict[DamageRecord, int] = {}
    queued = [ledger_id async for ledger_id in listed(store)]
    for first in range(0, len(queued), _READ_AT_ONCE):
        reads = (_read_or_none(store, ledger_id) for ledger_id in queued[first : first + _READ_AT_ONCE])
        for record, version in filter(None, await asyncio.gather(*reads)):
            found |= dict.fromkeys(record.damage, version)
    return found


async def take_over_damage(store: MetadataStore) -> None:
    """Bring the reports of older versions into the queue. Raises `Unavailable`, `OutcomeUnknown`.

    One that changes at this moment is for the next time.
    """
    for uuid in await store.children(paths.DAMAGE):
        with suppress(AlreadyExists, NotEmpty, NotFound, VersionConflict):
            for name in await store.children(paths.damage_of(uuid)):
                await _take_over(store, f"{paths.damage_of(uuid)}/{name}")
            await store.delete(paths.damage_of(uuid))


async def _take_over(store: MetadataStore, path: str) -> None:
    node = await store.get(path)
    try:
        damage = decode(DamageRecord, node.value, path)
    except CorruptionError as error:
        log.warning("%s", error)
    else:
        await report(store, UnderreplicatedRecord(ledger_id=damage.ledger_id, damage=(damage,)))
    await store.delete(path, node.version)


async def _read_or_none(store: MetadataStore, ledger_id: int) -> tuple[UnderreplicatedRecord, int] | None:
    try:
        return await read(store, ledger_id)
    except NotFound:
        return None


def _uuid(damage: DamageRecord) -> str:
    return damage.bookie.rpartition(":")[0]


def _copy(damage: DamageRecord) -> tuple[str, int]:
    return damage.bookie, damage.entry


class Reports:
    """Reports under-replicated ledgers, each until the store takes it, from the first one to `stop`.

    Damage that is met again within a minute is not reported again.
    """

    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._tasks = Tasks("reports of under-replicated ledgers")
        self._waiting: dict[tuple[str, int], UnderreplicatedRecord] = {}
        """By what is told (a bookie or a reason) and the ledger."""
        self._told: dict[tuple[str, int], float] = {}
        self._reporting: asyncio.Task[None] | None = None
        self.reported = 0

    def start(self) -> None:
        """Nothing is to be done before there is a report."""

    async def stop(self) -> None:
        """Try a last time what the store has not taken; else it would wait for the audit of the day."""
        try:
            async with asyncio.timeout(LAST_REPORT_S if self._waiting else None):
                while self._waiting:
                    await self._report(*next(iter(self._waiting.items())))
        except (QuireError, TimeoutError) as error:
            log.info("%d under-replicated ledgers are not reported: %s", len(self._waiting), error)
        await self._tasks.stop()

    def met(self, bookie: str, ledger_id: int, entry: int, what: str) -> None:
        """`bookie` (str of BookieId) cannot give `entry` of a ledger that it should hold."""
        copy, now = (bookie, ledger_id), self._clock.monotonic()
        if now - self._told.get(copy, float("-inf")) < _AGAIN_S:
            return
        if len(self._told) >= _REMEMBERED_MAX:
            self._told.clear()
        self._told[copy] = now
        damage = DamageRecord(
            bookie=bookie, ledger_id=ledger_id, entry=entry, what=what, found_ms=self._clock.now_ms()
        )
        self._add(bookie, UnderreplicatedRecord(ledger_id=ledger_id, damage=(damage,)))

    def may_lack(self, ledger_id: int, reason: str) -> None:
        """Copies of the ledger may be missing, or lack blocks, or be left over. `reason` is for people."""
        self._add(reason, UnderreplicatedRecord(ledger_id=ledger_id, reasons=(reason,)))

    def _add(self, what: str, record: UnderreplicatedRecord) -> None:
        self._waiting[what, record.ledger_id] = record
        if self._reporting is None:
            self._reporting = self._tasks.start(self._report_all(), "report under-replicated ledgers")

    async def _report_all(self) -> None:
        try:
            while self._waiting:
                try:
                    await self._report(*next(iter(self._waiting.items())))
                except QuireError as error:
                    log.warning("cannot report an under-replicated ledger now, trying again: %s", error)
                    await asyncio.sleep(_RETRY_S)
        finally:
            self._reporting = None

    async def _report(self, key: tuple[str, int], record: UnderreplicatedRecord) -> None:
        """When others change the node, it is tried again: it may be of what is repaired by now and about to go."""
        try:
            self.reported += await report(self._store, record)
        except (AlreadyExists, NotFound, VersionConflict):
            return
        if self._waiting.get(key) is record:
            del self._waiting[key]
