"""Damage, told to the cluster: one record per copy of a ledger that cannot be read.

A bookie reports what its scrub and its readers meet, a broker what its readers hear from bookies. Repair makes another
copy and removes the version of the record that it read: one that was written over meanwhile tells of what may have been
met after the mending. A report is tried until the store takes it, and the news of it with it; what is met again
within a minute is not reported again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from quire.metadata import paths
from quire.metadata.records import DamageRecord, decode, encode
from quire.metadata.store import Create, MetadataStore, Put
from quire.metadata.wish import change_and_touch
from quire.runtime.clock import Clock
from quire.runtime.errors import AlreadyExists, CorruptionError, NotFound, QuireError, VersionConflict
from quire.runtime.tasks import Tasks

log = logging.getLogger(__name__)

_AGAIN_S: Final = 60.0
_RETRY_S: Final = 5.0
_REMEMBERED_MAX: Final = 10_000


class DamageReports:
    """Reports what is `met`, between `start` and `stop`."""

    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._tasks = Tasks("damage reports")
        self._waiting: dict[tuple[str, int], DamageRecord] = {}
        self._told: dict[tuple[str, int], float] = {}
        self._news = asyncio.Event()
        self.reported = 0

    def start(self) -> None:
        self._tasks.start(self._report_all(), "report damage")

    async def stop(self) -> None:
        await self._tasks.stop()

    def met(self, bookie: str, ledger_id: int, entry: int, what: str) -> None:
        """`bookie` (str of BookieId) cannot give `entry` of a ledger that it should hold."""
        copy, now = (bookie, ledger_id), self._clock.monotonic()
        if now - self._told.get(copy, float("-inf")) < _AGAIN_S:
            return
        if len(self._told) >= _REMEMBERED_MAX:
            self._told.clear()
        self._told[copy] = now
        self._waiting[copy] = DamageRecord(
            bookie=bookie, ledger_id=ledger_id, entry=entry, what=what, found_ms=self._clock.now_ms()
        )
        self._news.set()

    async def _report_all(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                while self._waiting:
                    await self._report(*next(iter(self._waiting.items())))
            except QuireError as error:
                log.warning("cannot report damage now, trying again: %s", error)
                await asyncio.sleep(_RETRY_S)
                self._news.set()

    async def _report(self, copy: tuple[str, int], record: DamageRecord) -> None:
        """Tell the store, and repair, unless it was told just that; when others change the report, we are back soon.

        A report that is there may be of what is mended by now and about to be removed, by the version that was read.
        """
        uuid = record.bookie.rpartition(":")[0]
        path = paths.damage(uuid, record.ledger_id)
        try:
            told, version = await _told(self._store, path)
            if told is None or (told.bookie, told.entry) != (record.bookie, record.entry):
                value = encode(record)
                report = Create(path, value) if version is None else Put(path, value, version)
                await change_and_touch(self._store, report, paths.REPAIR_NEWS)
                self.reported += 1
        except (AlreadyExists, NotFound, VersionConflict):
            return
        if self._waiting.get(copy) is record:
            del self._waiting[copy]


async def _told(store: MetadataStore, path: str) -> tuple[DamageRecord | None, int | None]:
    """The report at `path`, None when it cannot be read, and its version, None when there is no node."""
    try:
        node = await store.get(path)
    except NotFound:
        return None, None
    try:
        return decode(DamageRecord, node.value, path), node.version
    except CorruptionError:
        return None, node.version


async def damage_reports(store: MetadataStore) -> dict[DamageRecord, int]:
    """All damage that was reported and repair has not mended, and the version of each report.

    What is no report keeps nobody from the others.
    """
    found: dict[DamageRecord, int] = {}
    for uuid in await store.children(paths.DAMAGE):
        for name in await store.children(paths.damage_of(uuid)):
            path = f"{paths.damage_of(uuid)}/{name}"
            report, version = await _told(store, path)
            if report is not None and version is not None:
                found[report] = version
            elif version is not None:
                log.warning("%s is not a report of damage; remove it", path)
    return found
