"""Open ledgers that no broker closes, though they must be closed: their topics are loaded, or they are orphans.

Repair copies closed ledgers only. One that is open, and names a bookie that is lost or drains, is ended by the broker
that serves its topic (`ledger.leaving`). When that broker died and no client has asked for the topic since, no broker
serves it: the coordinator of repair hands the ledger's record to `Ownerless.want`, and the topic is loaded here, which
recovers and closes what its former owner left, the bundle's state log included. One after the other, as nothing
is in danger.

What loading does not close is what the owner does not list: a process died that made it, say by a compaction. Such an
orphan (`ledger.orphans`) is recovered here once it is old enough, whichever broker owns the topic; else it would keep
its bookies from being retired for ever. Were it in use after all, recovery would fence it, and its writer begin another
one.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from quire.ledger.orphans import GRACE_MS
from quire.metadata import paths, topics
from quire.metadata.records import LedgerRecord, StateLogRecord, decode
from quire.runtime.errors import NotFound, QuireError
from quire.serving.cluster.port import NotOwner, Ownership
from quire.serving.cluster.registry import Registry
from quire.serving.names import TopicName
from quire.serving.topic.services import Services

WANTED_MAX: Final = 1_000
"""More are told of again at the coordinator's next look."""

_log = logging.getLogger(__name__)


class Ownerless:
    def __init__(self, registry: Registry, ownership: Ownership, services: Services) -> None:
        self._registry = registry
        self._ownership = ownership
        self._services = services
        self._wanted: dict[int, LedgerRecord] = {}
        self._working: asyncio.Task[None] | None = None

    def want(self, record: LedgerRecord) -> None:
        """Have this open ledger closed. Its purpose says whose it is; see `LedgerRecord`."""
        if len(self._wanted) < WANTED_MAX:
            self._wanted[record.ledger_id] = record
        if self._working is None or self._working.done():
            self._working = self._services.tasks.start(self._work(), "close ledgers that no broker closes")

    async def _work(self) -> None:
        while self._wanted:
            record = self._wanted.pop(next(iter(self._wanted)))
            try:
                await self._load(record.purpose)
                if await self._is_orphan(record):
                    await self._services.ledgers.recover(record.ledger_id)
                    _log.info("closed ledger %d, which %s does not list", record.ledger_id, record.purpose)
            except QuireError as error:
                _log.warning("the open ledger of %s cannot be closed yet: %s", record.purpose, error)

    async def _is_orphan(self, record: LedgerRecord) -> bool:
        """A young ledger may be about to be listed, and where ledgers of other purposes are listed is not known."""
        store, (kind, _, whose) = self._services.store, record.purpose.partition(":")
        if record.created_ms + GRACE_MS > self._services.clock.now_ms():
            return False
        try:
            if kind in ("topic", "compacted"):
                topic = await topics.load(store, TopicName.parse(whose).path)
                return record.ledger_id not in {segment.ledger_id for segment in topic.segments}
            if kind == "state":
                path = paths.state_log(*whose.split("/"))
                log = decode(StateLogRecord, (await store.get(path)).value, path)
                return record.ledger_id not in log.ledgers
        except NotFound:
            return True
        return False

    async def _load(self, purpose: str) -> None:
        try:
            await self._load_here(purpose)
        except NotOwner:
            pass  # its broker ends what it writes by itself
        except NotFound:
            pass  # it is deleted

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
        """Loading any topic of a bundle opens its state log."""
        tenant, namespace, _ = bundle.split("/", 2)
        for name in await self._registry.records.names(tenant, namespace):
            if await self._registry.ownership.bundle_of(name) == bundle:
                record = await self._registry.records.find(name)
                if record is not None and not record.partitions:
                    return name
        return None
