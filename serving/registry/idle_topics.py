"""Unloading of idle topics, and loading when maintenance requires it.

`topic/lifecycle/idle` decides when a topic is idle. An unloaded topic may have archived segments that are still on the
bookies. It is loaded again when the bookies' copies may be deleted, or when the bookies are short of space. If another
broker acquires the bundle meanwhile, that broker searches for such topics (`offloading`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from quire.runtime.errors import NotFound, QuireError
from quire.serving.names import TopicName
from quire.serving.ownership.port import NotOwner
from quire.serving.registry.offloading import Offloading
from quire.serving.registry.registry import Registry
from quire.serving.topic.lifecycle.idle import is_unused, recall_ms
from quire.serving.topic.services import Services
from quire.serving.topic.topic import PersistentTopic, is_persistent

LOADS_A_TICK: Final = 200
"""Maximum number of due topics that are loaded in one round."""

RETRY_MS: Final = 60_000

_log = logging.getLogger(__name__)


class IdleTopics:
    """Unloading of idle topics. Without an archive, `offloading` is None, and no topic is loaded again."""

    def __init__(self, registry: Registry, services: Services, offloading: Offloading | None) -> None:
        self._registry = registry
        self._services = services
        self._offloading = offloading
        self._due_ms: dict[TopicName, int] = {}
        """Time at which each unloaded topic is to be loaded, in ms since 1970."""
        self._retry_ms: dict[TopicName, int] = {}
        """Earliest time at which a topic is loaded whose last load failed, in ms since 1970."""

    async def unload_unused(self) -> None:
        """Unload non-persistent topics that had no clients since the last call."""
        for topic in self._registry.all():
            if not is_persistent(topic) and is_unused(topic):
                await self._registry.unload(topic.topic_name)

    async def unload(self, idle: Sequence[PersistentTopic]) -> None:
        """Unload persistent topics, except those that clients have started to use meanwhile."""
        due = {topic.topic_name: recall_ms(topic) for topic in idle}
        await self._registry.unload_all(due, even_used=False)
        for name, at_ms in due.items():
            if at_ms is not None and self._registry.find(name) is None:
                self.load_at(name, at_ms)

    def load_at(self, name: TopicName, at_ms: int) -> None:
        """Schedule the load of an unloaded topic at `at_ms`, because its archived segments can be released then."""
        if self._offloading is not None:
            self._due_ms[name] = at_ms

    def load_due(self) -> None:
        """Load the unloaded topics that are due, at most `LOADS_A_TICK`.

        While bookies are short of space, every topic with an entry in `_due_ms` is due. The broker calls this every few
        seconds. The topics are unloaded again after their segments were released.
        """
        now_ms, is_short = self._services.clock.now_ms(), self._services.ledgers.is_short_of_space
        due = [
            name
            for name, at_ms in self._due_ms.items()
            if (is_short or at_ms <= now_ms) and self._retry_ms.get(name, 0) <= now_ms
        ]
        for name in due[:LOADS_A_TICK]:
            del self._due_ms[name]
            self._retry_ms.pop(name, None)
            self._services.tasks.start(self._load(name), f"load {name}, which has rested")

    async def _load(self, name: TopicName) -> None:
        try:
            await self._registry.open(name, take=False)
        except (NotFound, NotOwner):
            return  # The topic was deleted, or another broker owns it.
        except QuireError as error:
            _log.warning(
                "cannot load a topic, so bookies keep its archived segments: topic=%s error=%s", name, error
            )
            self._retry_ms[name] = self._services.clock.now_ms() + RETRY_MS
            self.load_at(name, self._retry_ms[name])
            return
        if self._offloading is not None:
            self._offloading.offloader.wake()
