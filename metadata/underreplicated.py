"""Queue of under-replicated ledgers: a node for each ledger that may lack copies or blocks, with the reasons.

A ledger is queued by:
- the process that closed it, if the ledger may lack copies;
- the process that deleted it, if a bookie missed the deletion;
- a bookie or reader that found damage;
- the auditor (`ledger.auditor`).

The replicator (`ledger.replicator`) repairs the ledger, and removes the node if it still has the version that was read
before. A ledger whose node was changed meanwhile is repaired again, because the new report may be newer than the
repair. Each report also changes the queue's root node, which the replicator watches. The auditor does not change the
root node, because it runs in the replicator's process.

The nodes are in sixteen folders by the last hexadecimal digit of the ledger id, so that no list of names exceeds a
store's limit. Older versions stored a record for each damaged copy at `paths.DAMAGE`; `take_over_damage` moves these
records into the queue.
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
"""Seconds for which a stopping process waits for the store to accept its reports."""

_AGAIN_S: Final = 60.0
"""Minimum interval in seconds between reports of the same damage."""
_RETRY_S: Final = 5.0
"""Delay in seconds before a report is tried again."""
_REMEMBERED_MAX: Final = 10_000
"""Maximum number of damage reports whose times are remembered; beyond it, all are forgotten."""
_READ_AT_ONCE: Final = 64
"""Number of concurrent reads of queued records."""


async def listed(store: MetadataStore) -> AsyncIterator[int]:
    """List the sixteen folders, and yield the ids of queued ledgers. Nodes with an invalid name are skipped."""
    for folder in paths.underreplicated_folders():
        for name in await store.children(folder):
            try:
                yield int(name, 16)
            except ValueError:
                log.warning("%s/%s is not a ledger's node; remove it", folder, name)


async def read(store: MetadataStore, ledger_id: int) -> tuple[UnderreplicatedRecord, int]:
    """Return the ledger's record and its version. For an invalid record, return an empty one. Raises `NotFound`."""
    path = paths.underreplicated(ledger_id)
    node = await store.get(path)
    try:
        return decode(UnderreplicatedRecord, node.value, path), node.version
    except CorruptionError as error:
        log.warning("%s", error)
        return UnderreplicatedRecord(ledger_id=ledger_id), node.version


async def put(store: MetadataStore, ledger_id: int, reason: str) -> None:
    """Queue the ledger, if it is not queued yet, without changing the root node. Raises the store's errors."""
    record = UnderreplicatedRecord(ledger_id=ledger_id, reasons=(reason,))
    try:
        await store.create(paths.underreplicated(ledger_id), encode(record))
    except AlreadyExists:
        pass


async def settle(
    store: MetadataStore, record: UnderreplicatedRecord, version: int, damaged: Collection[str] = ()
) -> tuple[UnderreplicatedRecord, int]:
    """Remove the damage reports of repaired copies. Return the current record and version.

    The copies on bookies `damaged` (UUIDs) are not repaired yet, so their reports stay. The other reports are removed
    now, because otherwise the bookies of repaired copies would be replaced again. Raises `VersionConflict`, `NotFound`.
    """
    left = tuple(each for each in record.damage if _uuid(each) in damaged)
    if left == record.damage:
        return record, version
    record = replace(record, damage=left)
    return record, await store.put(paths.underreplicated(record.ledger_id), encode(record), version)


async def remove(store: MetadataStore, ledger_id: int, version: int) -> None:
    """Remove the ledger from the queue. Raises `VersionConflict` if its node does not have `version` any more."""
    try:
        await store.delete(paths.underreplicated(ledger_id), version)
    except NotFound:
        pass


async def report(store: MetadataStore, new: UnderreplicatedRecord) -> bool:
    """Add `new` to the queue, or merge it into the existing record. Return False if its damage was reported before.

    Raises `AlreadyExists`, `NotFound` or `VersionConflict` if other processes change the node concurrently.
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
    """Return all reported damage that is not repaired, with the version of the ledger's record."""
    found: dict[DamageRecord, int] = {}
    queued = [ledger_id async for ledger_id in listed(store)]
    for first in range(0, len(queued), _READ_AT_ONCE):
        reads = (_read_or_none(store, ledger_id) for ledger_id in queued[first : first + _READ_AT_ONCE])
        for record, version in filter(None, await asyncio.gather(*reads)):
            found |= dict.fromkeys(record.damage, version)
    return found


async def take_over_damage(store: MetadataStore) -> None:
    """Move the reports of older versions into the queue. Raises `Unavailable`, `OutcomeUnknown`.

    A report that is changed concurrently is moved by the next call.
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
    """Reporter of under-replicated ledgers: each report is retried until the store accepts it, or until `stop`.

    Damage that is found again within a minute is not reported again.
    """

    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._tasks = Tasks("reports of under-replicated ledgers")
        self._waiting: dict[tuple[str, int], UnderreplicatedRecord] = {}
        """Waiting reports by source (a bookie or a reason) and ledger."""
        self._told: dict[tuple[str, int], float] = {}
        self._reporting: asyncio.Task[None] | None = None
        self.reported = 0

    def start(self) -> None:
        """Do nothing: the background task begins with the first report."""

    async def stop(self) -> None:
        """Try once more to store the waiting reports; if that fails, the daily audit will find the ledgers."""
        try:
            async with asyncio.timeout(LAST_REPORT_S if self._waiting else None):
                while self._waiting:
                    await self._report(*next(iter(self._waiting.items())))
        except (QuireError, TimeoutError) as error:
            log.info(
                "%d under-replicated ledgers are not reported, an audit will find them: %s",
                len(self._waiting),
                error,
            )
        await self._tasks.stop()

    def met(self, bookie: str, ledger_id: int, entry: int, what: str) -> None:
        """Report that `bookie` (str of BookieId) cannot return `entry` of the ledger, although it should have it."""
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
        """Report that copies of the ledger may be missing, incomplete or not deleted. `reason` is for operators."""
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
        """Store one report.

        After a conflict with a change by another process, the report stays in `_waiting`, and the caller tries again.
        """
        try:
            self.reported += await report(self._store, record)
        except (AlreadyExists, NotFound, VersionConflict):
            return
        if self._waiting.get(key) is record:
            del self._waiting[key]
