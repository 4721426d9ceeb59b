"""Topics without clients: unloaded, and loaded again when there is work for them.

A topic says itself when it is idle (`topic/lifecycle/idle`). One that is unloaded while its bookies keep what is
archived is loaded again when they need not any more, or have no room; another broker that takes its bundle meanwhile
looks for such topics anyway (`offloading`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from quire.runtime.errors import NotFound, QuireError
from quire.serving.cluster.offloading import Offloading
from quire.serving.cluster.port import NotOwner
from quire.serving.cluster.registry import Registry
from quire.serving.names import TopicName
from quire.serving.topic.services import Services
from quire.serving.topic.topic import PersistentTopic, is_persistent

LOADS_A_TICK: Final = 200
"""Topics that are loaded together because their time has come."""

RETRY_MS: Final = 60_000

_log = logging.getLogger(__name__)


class IdleTopics:
    """`offloading` is None where there is no archive; then nothing is loaded again."""

    def __init__(self, registry: Registry, services: Services, offloading: Offloading | None) -> None:
        self._registry = registry
        self._services = services
        self._offloading = offloading
        self._due_ms: dict[TopicName, int] = {}
        """When topics that were unloaded are to be loaded again, in ms since 1970."""

    async def unload_unused(self) -> None:
        """Unload topics that keep nothing and had no clients since the last call."""
        for topic in self._registry.all():
            if not is_persistent(topic) and topic.idle.is_unused(topic):
                await self._registry.unload(topic.topic_name)

    async def unload(self, idle: Sequence[PersistentTopic]) -> None:
        """Unload persistent topics, but those that came into use meanwhile."""
        due = {topic.topic_name: topic.idle.recall_ms(topic) for topic in idle}
        await self._registry.unload_all(due, even_used=False)
        for name, at_ms in due.items():
            if at_ms is not None and self._registry.find(name) is None:
                self.load_at(name, at_ms)

    def load_at(self, name: TopicName, at_ms: int) -> None:
        """The topic was unloaded, and has work for the archive at that time."""
        if self._offloading is not None:
            self._due_ms[name] = at_ms

    def load_due(self) -> None:
        """Load topics whose time has come, all of them while space is short; they are unloaded when the work is done.

        To be called every few seconds.
        """
        now_ms, ahead_ms = self._services.clock.now_ms(), self._ahead_ms()
        due = [name for name, at_ms in self._due_ms.items() if at_ms <= now_ms + ahead_ms]
        for name in due[:LOADS_A_TICK]:
            del self._due_ms[name]
            self._services.tasks.start(self._load(name), f"load {name}, which has rested")

    def _ahead_ms(self) -> int:
        """How much sooner than said topics are loaded again: while space is short nothing waits for the lag."""
        is_short = self._services.ledgers.is_short_of_space
        return self._services.settings.archive_lag_ms if is_short else 0

    async def _load(self, name: TopicName) -> None:
        try:
            await self._registry.open(name, take=False)
        except (NotFound, NotOwner):
            return  # it was deleted, or is looked after elsewhere
        except QuireError as error:
            _log.warning("%s cannot be loaded, so its bookies keep what is archived: %s", name, error)
            self.load_at(name, self._services.clock.now_ms() + self._ahead_ms() + RETRY_MS)
            return
        if self._offloading is not None:
            self._offloading.offloader.wake()
