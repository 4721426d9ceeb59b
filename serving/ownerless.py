"""Topics that nobody owns, loaded because a ledger of theirs must be closed.

Repair copies closed ledgers only. One that is open, and names a bookie that is lost or drains, is ended by the broker
that serves its topic (`ledger.leaving`). When that broker died and no client has asked for the topic since, nobody
serves it: the coordinator of repair hands the ledger's purpose to `Ownerless.want`, and the topic is loaded here, which
recovers and closes what its former owner left, the bundle's state log included. One after the other, as nothing
is in danger.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from quire.runtime.errors import QuireError
from quire.runtime.tasks import Tasks
from quire.serving.names import TopicName
from quire.serving.ownership.port import NotOwner, Ownership
from quire.serving.registry import Registry

WANTED_MAX: Final = 1_000
"""More are told of again at the coordinator's next look."""

_log = logging.getLogger(__name__)


class Ownerless:
    """See the top of the file."""

    def __init__(self, registry: Registry, ownership: Ownership, tasks: Tasks) -> None:
        self._registry = registry
        self._ownership = ownership
        self._tasks = tasks
        self._wanted: dict[str, None] = {}
        self._working: asyncio.Task[None] | None = None

    def want(self, purpose: str) -> None:
        """Whose the ledger is, as its record says: `topic:NAME` or `state:BUNDLE`."""
        if len(self._wanted) < WANTED_MAX:
            self._wanted[purpose] = None
        if self._working is None or self._working.done():
            self._working = self._tasks.start(self._work(), "load topics that nobody owns")

    async def _work(self) -> None:
        while self._wanted:
            purpose = next(iter(self._wanted))
            try:
                await self._load(purpose)
            except NotOwner:
                pass  # its broker ends the ledger by itself
            except QuireError as error:
                _log.warning("the open ledger of %s cannot be closed yet: %s", purpose, error)
            self._wanted.pop(purpose, None)

    async def _load(self, purpose: str) -> None:
        kind, _, whose = purpose.partition(":")
        name = None
        if kind == "topic":
            name = TopicName.parse(whose)
        elif kind == "state":
            await self._ownership.require(whose, take=True)
            name = None if self._registry.serves(whose) else await self._some_topic_of(whose)
        if name is not None and self._registry.find(name) is None:
            await self._registry.open(name)

    async def _some_topic_of(self, bundle: str) -> TopicName | None:
        """Loading any topic of a bundle opens its state log."""
        tenant, namespace, _ = bundle.split("/", 2)
        for name in await self._registry.recorded(tenant, namespace):
            if await self._registry.bundle_of(name) == bundle and not await self._registry.partitions(name):
                return name
        return None
