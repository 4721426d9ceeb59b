"""Damage, told to the cluster: one record per ledger whose copy here cannot be read.

Whoever meets it, a reader, a scrub or a recovery, the bookie itself reports it, for it is the one that knows. Repair
makes another copy and removes the record. A report is tried until the store takes it; what is met again within a
minute is not reported again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from quire.bookie.scrub import Damage
from quire.bookie.storage import Storage
from quire.metadata import paths
from quire.metadata.records import DamageRecord, encode
from quire.metadata.store import MetadataStore
from quire.metadata.wish import touch
from quire.runtime.clock import Clock
from quire.runtime.errors import AlreadyExists, QuireError
from quire.runtime.tasks import Tasks

log = logging.getLogger(__name__)

_AGAIN_S: Final = 60.0
_RETRY_S: Final = 5.0
_REMEMBERED_MAX: Final = 10_000


class DamageReports:
    """Reports what `storage` meets, between `start` and `stop`."""

    def __init__(self, store: MetadataStore, storage: Storage, clock: Clock) -> None:
        self._store = store
        self._storage = storage
        self._clock = clock
        self._tasks = Tasks("damage reports")
        self._waiting: dict[int, Damage] = {}
        self._told: dict[int, float] = {}
        self._news = asyncio.Event()
        self.reported = 0

    def start(self) -> None:
        self._storage.on_damage(self._met)
        self._tasks.start(self._report_all(), "report damage")

    async def stop(self) -> None:
        await self._tasks.stop()

    def _met(self, damage: Damage) -> None:
        now = self._clock.monotonic()
        if now - self._told.get(damage.ledger_id, float("-inf")) < _AGAIN_S:
            return
        if len(self._told) >= _REMEMBERED_MAX:
            self._told.clear()
        self._told[damage.ledger_id] = now
        self._waiting[damage.ledger_id] = damage
        self._news.set()

    async def _report_all(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                while self._waiting:
                    await self._report(next(iter(self._waiting.values())))
                await touch(self._store, paths.REPAIR_WISH)
            except QuireError as error:
                log.warning("cannot report damage now, trying again: %s", error)
                await asyncio.sleep(_RETRY_S)
                self._news.set()

    async def _report(self, damage: Damage) -> None:
        bookie = self._storage.bookie_id
        record = DamageRecord(
            bookie=str(bookie),
            ledger_id=damage.ledger_id,
            entry=damage.entry,
            what=damage.what,
            found_ms=self._clock.now_ms(),
        )
        try:
            await self._store.create(paths.damage(bookie.uuid, damage.ledger_id), encode(record))
            self.reported += 1
        except AlreadyExists:
            pass
        self._waiting.pop(damage.ledger_id, None)
