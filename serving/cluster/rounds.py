"""What a broker does for all of its loaded topics every few seconds, unasked.

    roll_ledgers       seals segments that are old or must leave a bookie; nothing in it waits for anything
    enforce_policies   acts by the policies (`topic/lifecycle/upkeep`), which may read from bookies and from the archive
    unload_idle        unloads idle topics, and loads those again that have work by now (`idle_topics`)

No topic waits for another: policies are enforced in a task for each topic, and a topic whose task is still under way,
because its archive hangs, say, gets no second one. New tasks wait while many are under way; one that takes very long is
not counted among them any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from quire.runtime.errors import QuireError
from quire.serving.cluster.deletion import Deletion
from quire.serving.cluster.idle_topics import IdleTopics
from quire.serving.cluster.offloading import Offloading
from quire.serving.cluster.registry import Registry
from quire.serving.topic.lifecycle.upkeep import is_active
from quire.serving.topic.services import Services
from quire.serving.topic.topic import PersistentTopic

TICK_S: Final = 5.0
TOPICS_A_TURN: Final = 100
"""Of those that are walked over: a few hundred microseconds, so that no publish waits for a hundred thousand."""

UNLOADS_A_TICK: Final = 1_000
"""Idle topics that are unloaded together, at a metadata change each."""

ENFORCED_AT_ONCE: Final = 1_000
"""Topics whose policies are enforced at the same time."""

HANGS_AFTER_S: Final = 10.0
"""What takes longer hangs, and what it waits for is not what the others wait for."""

_log = logging.getLogger(__name__)


class Rounds:
    """`roll_ledgers`, `enforce_policies` and `unload_idle` are done each by itself."""

    def __init__(
        self,
        services: Services,
        registry: Registry,
        deletion: Deletion,
        offloading: Offloading | None,
    ) -> None:
        self._ledgers = services.ledgers
        self._clock = services.clock
        self._tasks = services.tasks
        self._registry = registry
        self._deletion = deletion
        self._bundles = registry.bundles
        self.idle = IdleTopics(registry, services, offloading)
        self._enforcing: dict[PersistentTopic, float] = {}
        """Topics whose policies are being enforced, and since when."""
        self._one_ended = asyncio.Event()

    def start(self) -> None:
        """Go on until the tasks of the broker are stopped; damaged ledgers that others meet are followed, too."""
        self._ledgers.follow_damage()
        for act in (self.roll_ledgers, self.enforce_policies, self.unload_idle):
            self._tasks.start_every(TICK_S, act, "look after topics")

    async def roll_ledgers(self) -> None:
        """Seal segments that are old, and those whose ledger must leave a bookie."""
        ledger_ids = self._ledgers.to_leave()
        self._bundles.roll(ledger_ids)

        def roll(topic: PersistentTopic) -> None:
            topic.log.writing.roll_if_old()
            topic.log.writing.roll_if_writing_to(ledger_ids)

        await self._each(roll)

    async def enforce_policies(self) -> None:
        """Begin to enforce the policies of every topic that has something due by them."""
        due: list[PersistentTopic] = []
        await self._each(lambda topic: due.append(topic) if topic.upkeep.is_due(topic) else None)
        for topic in due:
            await self._room()
            if topic not in self._enforcing and not topic.is_closed:
                self._enforcing[topic] = self._clock.monotonic()
                self._tasks.start(self._enforce(topic), f"look after {topic.name}")

    async def _room(self) -> None:
        while len(self._enforcing) >= ENFORCED_AT_ONCE:
            began = self._clock.monotonic() - HANGS_AFTER_S
            if sum(since > began for since in self._enforcing.values()) < ENFORCED_AT_ONCE:
                return
            self._one_ended.clear()
            try:
                async with asyncio.timeout(HANGS_AFTER_S):
                    await self._one_ended.wait()
            except TimeoutError:
                pass

    async def _enforce(self, topic: PersistentTopic) -> None:
        """A topic's trouble is its own."""
        try:
            if await topic.upkeep.look(topic):
                await self._deletion.delete(topic.topic_name, unless=is_active)
        except QuireError as error:
            _log.warning("%s could not be looked after: %s", topic.name, error)
        except Exception:
            _log.exception("%s could not be looked after", topic.name)
        finally:
            del self._enforcing[topic]
            self._one_ended.set()

    async def unload_idle(self) -> None:
        """Begin to unload idle topics, and to load those that have work by now."""
        self._tasks.start(self.idle.unload_unused(), "unload unused topics")
        idle: list[PersistentTopic] = []
        await self._each(lambda topic: idle.append(topic) if topic.idle.is_due(topic) else None)
        if idle:
            self._tasks.start(self.idle.unload(idle[:UNLOADS_A_TICK]), "unload idle topics")
        self.idle.load_due()

    async def _each(self, act: Callable[[PersistentTopic], None]) -> None:
        """Do it with every topic, some in each turn of the loop. A topic's trouble is its own."""
        for count, topic in enumerate(self._registry.loaded(), 1):
            try:
                act(topic)
            except Exception:
                _log.exception("%s could not be looked after", topic.name)
            if count % TOPICS_A_TURN == 0:
                await asyncio.sleep(0)
