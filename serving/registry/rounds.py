"""Periodic maintenance of all loaded topics of a broker: a round every `TICK_S` seconds.

    roll_ledgers       seals segments that are old, or whose ledger must move off a bookie; never waits
    enforce_policies   applies the policies (`topic/lifecycle/upkeep`), which may read from bookies and from the archive
    unload_idle        unloads idle topics, and loads unloaded topics that are due for maintenance (`idle_topics`)

Topics do not wait for each other. Policies are enforced in one task per topic. While the task runs, for example
because the archive hangs, no second task is started for the topic. New tasks wait while `ENFORCED_AT_ONCE` tasks are
running; tasks that hang do not count.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from quire.runtime.errors import QuireError
from quire.serving.policy.resolved import limits_of
from quire.serving.registry import topic_deletion
from quire.serving.registry.idle_topics import IdleTopics
from quire.serving.registry.offloading import Offloading
from quire.serving.registry.registry import Registry
from quire.serving.topic.lifecycle import idle, upkeep
from quire.serving.topic.services import Services
from quire.serving.topic.topic import PersistentTopic

TICK_S: Final = 5.0
TOPICS_A_TURN: Final = 100
"""Topics visited in one event loop iteration, so that publishing waits at most a few hundred microseconds."""

UNLOADS_A_TICK: Final = 1_000
"""Maximum number of idle topics unloaded in one round; each requires a metadata operation."""

ENFORCED_AT_ONCE: Final = 1_000
"""Maximum number of topics whose policies are enforced concurrently."""

HANGS_AFTER_S: Final = 10.0
"""Seconds after which a running task is considered hanging, and no longer counts towards `ENFORCED_AT_ONCE`."""

_log = logging.getLogger(__name__)


class Rounds:
    """Periodic maintenance of all loaded topics. Its three parts run independently of each other."""

    def __init__(
        self,
        services: Services,
        registry: Registry,
        offloading: Offloading | None,
    ) -> None:
        self._ledgers = services.ledgers
        self._clock = services.clock
        self._tasks = services.tasks
        self._registry = registry
        self._bundles = registry.bundles
        self.idle = IdleTopics(registry, services, offloading)
        self._enforcing: dict[PersistentTopic, float] = {}
        """Topics whose policies are being enforced, with the monotonic time (s) at which their task began."""
        self._one_ended = asyncio.Event()

    def start(self) -> None:
        """Start the rounds, which end with the broker's tasks, and watch the damage reports of other brokers."""
        self._ledgers.follow_damage()
        for act in (self.roll_ledgers, self.enforce_policies, self.unload_idle):
            self._tasks.start_every(TICK_S, act, "look after topics")

    async def roll_ledgers(self) -> None:
        """Seal segments that are old, and segments whose ledger must move off a bookie."""
        ledger_ids = self._ledgers.ledgers_to_roll()
        self._bundles.roll(ledger_ids)

        def roll(topic: PersistentTopic) -> None:
            topic.log.writing.roll_if_old()
            topic.log.writing.roll_if_writing_to(ledger_ids)

        await self._for_each(roll)

    async def enforce_policies(self) -> None:
        """Start a task for every topic whose policies require an action."""
        due: list[PersistentTopic] = []
        await self._for_each(lambda topic: due.append(topic) if upkeep.is_due(topic) else None)
        for topic in due:
            await self._wait_for_slot()
            if topic not in self._enforcing and not topic.is_closed:
                self._enforcing[topic] = self._clock.monotonic()
                self._tasks.start(self._enforce(topic), f"look after {topic.name}")

    async def _wait_for_slot(self) -> None:
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
        """Enforce a topic's policies. A failure is logged, and does not affect other topics."""
        try:
            if await upkeep.look(topic) and not await self._has_limits(topic):
                await topic_deletion.delete(
                    self._registry, topic.topic_name, unless=lambda now: not upkeep.is_abandoned(now)
                )
        except QuireError as error:
            _log.warning("periodic maintenance of a topic failed: topic=%s error=%s", topic.name, error)
        except Exception:
            _log.exception("internal error in the periodic maintenance of a topic: topic=%s", topic.name)
        finally:
            del self._enforcing[topic]
            self._one_ended.set()

    async def _has_limits(self, topic: PersistentTopic) -> bool:
        """Return whether a deletion would remove limits that a superuser set.

        Limits of a partition belong to its parent.
        """
        name = topic.topic_name
        return name.parent is None and bool(limits_of(await self._registry.policies.own(name)))

    async def unload_idle(self) -> None:
        """Start to unload idle topics, and to load unloaded topics that are due for maintenance."""
        self._tasks.start(self.idle.unload_unused(), "unload unused topics")
        found: list[PersistentTopic] = []
        await self._for_each(lambda topic: found.append(topic) if idle.is_due(topic) else None)
        if found:
            self._tasks.start(self.idle.unload(found[:UNLOADS_A_TICK]), "unload idle topics")
        self.idle.load_due()

    async def _for_each(self, act: Callable[[PersistentTopic], None]) -> None:
        """Call `act` with each loaded persistent topic, and yield to the event loop after every `TOPICS_A_TURN` topics.

        An exception for one topic is logged, and the round continues with the next topic.
        """
        for count, topic in enumerate(self._registry.persistent(), 1):
            try:
                act(topic)
            except Exception:
                _log.exception("internal error in the periodic maintenance of a topic: topic=%s", topic.name)
            if count % TOPICS_A_TURN == 0:
                await asyncio.sleep(0)
