"""Simulated object store: one set of objects, which brokers access with delays, and with errors while it has trouble.

During trouble, a call fails before or after it is executed, and its outcome may be unknown. A deletion may be executed
some time after its caller gave it up. An object is never overwritten, as real stores guarantee for conditional puts.
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
    """Bucket of objects. `trouble` is the probability that a call fails."""

    def __init__(self, world: World) -> None:
        super().__init__(SimulatedClock(world.loop))
        self._world = world
        self._dice = world.rng("objects")
        self.trouble = 0.0
        self.on_deletion: list[Callable[[str], None]] = []
        self.on_put: list[Callable[[str, bytes], None]] = []

    def delete(self, name: str) -> None:
        self.faulty("delete", lambda: self._vanish(name))

    def _vanish(self, name: str) -> None:
        for observer in self.on_deletion:
            observer(name)
        self.objects.pop(name, None)

    def appear(self, name: str, content: bytes) -> None:
        super().appear(name, content)
        for observer in self.on_put:
            observer(name, content)

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
    """Object store client of one process, with random latencies."""

    def __init__(self, bucket: SimulatedBucket, world: World) -> None:
        super().__init__(bucket, threads=0)
        self._rng = world.rng("way to the objects")

    async def run(self, work: Callable[[], T]) -> T:
        await asyncio.sleep(LATENCY_S * self._rng.expovariate(1.0))
        result = work()
        await asyncio.sleep(LATENCY_S * self._rng.expovariate(1.0))
        return result
