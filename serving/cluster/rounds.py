"""What is done for every loaded topic every few seconds, when nobody asks.

    tend    seals what is old or must leave a bookie; nothing in it waits for anything
    look    acts by the policies (`topic/lifecycle/upkeep`), which may read from bookies and from the archive
    rest    unloads what is idle, and loads what has rested until there is work again

No topic waits for another: each `look` is a task of its own, and a topic whose look is still under way, for its archive
hangs, say, is not looked at once more. New looks wait while many are under way; one that takes very long is not
counted among them any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from quire.ledger.ledgers import Ledgers
from quire.runtime.clock import Clock
from quire.runtime.errors import QuireError
from quire.runtime.tasks import Tasks
from quire.serving.cluster.bundles import Bundles
from quire.serving.cluster.offloading import Offloading
from quire.serving.cluster.registry import Registry
from quire.serving.topic.topic import Topic

TICK_S: Final = 5.0
TOPICS_A_TURN: Final = 100
"""Of those that are walked over: a few hundred microseconds, so that nobody's publish waits for a hundred thousand."""

RESTS_A_TICK: Final = 1_000
"""Idle topics that are unloaded together, at a metadata change each."""

LOOKS_MAX: Final = 1_000
"""Looks under way at once."""

LOOK_S: Final = 10.0
"""A look that takes longer hangs: what it waits for is not everybody's."""

_log = logging.getLogger(__name__)


class Rounds:
    """`tend`, `look` and `rest` are done each by itself."""

    def __init__(
        self,
        registry: Registry,
        ledgers: Ledgers,
        bundles: Bundles,
        offloading: Offloading | None,
        clock: Clock,
        tasks: Tasks,
    ) -> None:
        self._registry = registry
        self._ledgers = ledgers
        self._bundles = bundles
        self._offloading = offloading
        self._clock = clock
        self._tasks = tasks
        self._looks: dict[Topic, float] = {}
        """Topics that are being looked at, and since when."""
        self._one_ended = asyncio.Event()

    def start(self) -> None:
        """Go on until the tasks of the broker are stopped; damaged ledgers that others meet are followed, too."""
        self._ledgers.follow_damage()
        for act in (self.tend, self.look, self.rest):
            self._tasks.start_every(TICK_S, act, "look after topics")

    async def tend(self) -> None:
        """Seal what is old, and what must leave a bookie."""
        to_leave = self._ledgers.to_leave()
        self._bundles.leave(to_leave)

        def tend(topic: Topic) -> None:
            topic.roll_if_old()
            topic.leave(to_leave)

        await self._each(tend)

    async def look(self) -> None:
        """Begin to look at every topic that has something due by its policies."""
        due: list[Topic] = []
        await self._each(lambda topic: due.append(topic) if topic.upkeep.is_due() else None)
        for topic in due:
            await self._room()
            if topic not in self._looks and not topic.is_closed:
                self._looks[topic] = self._clock.monotonic()
                self._tasks.start(self._look_at(topic), f"look after {topic.name}")

    async def _room(self) -> None:
        while len(self._looks) >= LOOKS_MAX:
            began = self._clock.monotonic() - LOOK_S
            if sum(since > began for since in self._looks.values()) < LOOKS_MAX:
                return
            self._one_ended.clear()
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._one_ended.wait()
            except TimeoutError:
                pass

    async def _look_at(self, topic: Topic) -> None:
        """A topic's trouble is its own."""
        try:
            if await topic.upkeep.look():
                await self._registry.delete(topic.topic_name, unless=lambda it: it.upkeep.is_used)
        except QuireError as error:
            _log.warning("%s could not be looked after: %s", topic.name, error)
        except Exception:
            _log.exception("%s could not be looked after", topic.name)
        finally:
            del self._looks[topic]
            self._one_ended.set()

    async def rest(self) -> None:
        """Begin to unload what is idle, and to load what has rested long enough."""
        self._tasks.start(self._registry.forget_unused(), "let go of unused topics")
        idle: list[Topic] = []
        await self._each(lambda topic: idle.append(topic) if topic.rest.is_due() else None)
        if idle:
            self._tasks.start(self._unload(idle[:RESTS_A_TICK]), "unload idle topics")
        if self._offloading is not None:
            self._offloading.recall()

    async def _unload(self, idle: Sequence[Topic]) -> None:
        recalls = {topic.topic_name: topic.rest.recall_ms() for topic in idle}
        await self._registry.rest(recalls)
        for name, at_ms in recalls.items():
            if at_ms is not None and self._offloading is not None and self._registry.find(name) is None:
                self._offloading.recall_at(name, at_ms)

    async def _each(self, act: Callable[[Topic], None]) -> None:
        """Do it with every topic, some in each turn of the loop. A topic's trouble is its own."""
        for count, topic in enumerate(self._registry.loaded(), 1):
            try:
                act(topic)
            except Exception:
                _log.exception("%s could not be looked after", topic.name)
            if count % TOPICS_A_TURN == 0:
                await asyncio.sleep(0)
