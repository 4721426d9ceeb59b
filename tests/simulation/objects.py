"""The simulated object store: one set of objects, reached by each broker with delays, and with trouble while it lasts.

In trouble a call is refused, or heard of as unknown though it was made; a deletion may be made a while after its maker
gave it up. A name is never overwritten, whatever happens: that is the store's own promise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from quire.objects.store import ObjectStore
from quire.runtime.errors import OutcomeUnknown, Unavailable
from quire.testing.objects import MemoryBlockingStore

from .world import SimulatedClock, World

T = TypeVar("T")
LATENCY_S: Final = 0.01
LATE_S: Final = 2.0
_MAY_BE_UNKNOWN: Final = ("finish", "delete")


class SimulatedBucket(MemoryBlockingStore):
    """The objects. `trouble` is the chance that a call goes wrong."""

    def __init__(self, world: World) -> None:
        super().__init__(SimulatedClock(world.loop))
        self._world = world
        self._dice = world.rng("objects")
        self.trouble = 0.0

    def faulty(self, call: str, work: Callable[[], T]) -> T:
        if self._dice.random() >= self.trouble:
            return work()
        self._world.saw(f"object store trouble: {call}")
        if call not in _MAY_BE_UNKNOWN:
            raise Unavailable("the object store does not answer; try again")
        fate = self._dice.choice(("before", "after", "later"))
        if fate == "after":
            work()
        elif fate == "later" and call == "delete":
            self._world.later(self._dice.random() * LATE_S, work)
        raise OutcomeUnknown("the object store did not answer")


class SimulatedObjects(ObjectStore):
    """One process's way to the bucket."""

    def __init__(self, bucket: SimulatedBucket, world: World) -> None:
        super().__init__(bucket, threads=0)
        self._rng = world.rng("way to the objects")

    async def run(self, work: Callable[[], T]) -> T:
        await asyncio.sleep(LATENCY_S * self._rng.expovariate(1.0))
        result = work()
        await asyncio.sleep(LATENCY_S * self._rng.expovariate(1.0))
        return result
