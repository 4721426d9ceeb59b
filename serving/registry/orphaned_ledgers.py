"""Orphaned ledgers: open ledgers that must be closed, but that no broker will close.

Repair copies closed ledgers only. An open ledger on a lost or draining bookie is closed by the broker that serves its
topic (`ledger.rolling`). If that broker died and no client has used the topic since then, no broker serves it. The
coordinator of repair then passes the ledger's record to `OrphanedLedgers.close_later` of its own broker. That broker
loads the topic, which recovers and closes the ledgers of the topic's former owner, including the bundle's state log.
Loads are sequential, because they are not urgent.

A load does not close ledgers that no record lists, such as those of an interrupted compaction. Such an orphan
(`ledger.orphans`) is recovered once it is old enough, even if another broker owns the topic; otherwise its bookies
could never be retired. If the ledger is still in use, recovery fences it, and its writer begins another ledger.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from quire.ledger.orphans import GRACE_MS, is_listed
from quire.metadata.records import LedgerRecord
from quire.runtime.errors import NotFound, QuireError
from quire.serving.names import TopicName
from quire.serving.ownership.port import NotOwner, Ownership
from quire.serving.registry.registry import Registry
from quire.serving.topic.services import Services

WAITING_MAX: Final = 1_000
"""Maximum number of waiting ledgers; the coordinator of repair reports further ones again in its next round."""

_log = logging.getLogger(__name__)


class OrphanedLedgers:
    def __init__(self, registry: Registry, ownership: Ownership, services: Services) -> None:
        self._registry = registry
        self._ownership = ownership
        self._services = services
        self._waiting: dict[int, LedgerRecord] = {}
        self._closing: asyncio.Task[None] | None = None

    def close_later(self, record: LedgerRecord) -> None:
        """Close this open ledger in the background. Its purpose names its topic or bundle; see `LedgerRecord`."""
        if len(self._waiting) < WAITING_MAX:
            self._waiting[record.ledger_id] = record
        if self._closing is None or self._closing.done():
            self._closing = self._services.tasks.start(
                self._close_all(), "close ledgers that no broker closes"
            )

    async def _close_all(self) -> None:
        while self._waiting:
            record = self._waiting.pop(next(iter(self._waiting)))
            try:
                await self._load(record.purpose)
                if await self._is_orphan(record):
                    await self._services.ledgers.recover(record.ledger_id)
                    _log.info(
                        "orphaned ledger closed: ledger=%d purpose=%s", record.ledger_id, record.purpose
                    )
            except QuireError as error:
                _log.warning("cannot close an open ledger yet: purpose=%s error=%s", record.purpose, error)

    async def _is_orphan(self, record: LedgerRecord) -> bool:
        """Return whether no record lists the ledger, and it is too old to be listed later."""
        if record.created_ms + GRACE_MS > self._services.clock.now_ms():
            return False
        return not await is_listed(self._services.store, record)

    async def _load(self, purpose: str) -> None:
        try:
            await self._load_here(purpose)
        except NotOwner:
            pass  # The owner of the topic closes the ledger.
        except NotFound:
            pass  # The topic was deleted.

    async def _load_here(self, purpose: str) -> None:
        kind, _, whose = purpose.partition(":")
        name = None
        if kind in ("topic", "compacted"):
            name = TopicName.parse(whose)
        elif kind == "state":
            await self._ownership.require(whose, take=True)
            name = None if self._registry.in_bundle(whose) else await self._some_topic_of(whose)
        if name is not None and self._registry.find(name) is None:
            await self._registry.open(name)

    async def _some_topic_of(self, bundle: str) -> TopicName | None:
        """Return a topic of the bundle, because loading one opens the bundle's state log."""
        tenant, namespace, _ = bundle.split("/", 2)
        for name in await self._registry.records.names(tenant, namespace):
            if await self._registry.ownership.bundle_of(name) == bundle:
                record = await self._registry.records.find(name)
                if record is not None and not record.partitions:
                    return name
        return None
