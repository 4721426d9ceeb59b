"""What the tests of a WAL's shells stand on: virtual time, and a store in memory that answers when it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from quire.runtime.clock import Clock
from quire.testing.objects import MemoryObjectStore
from tests.simulation.world import SimulatedClock, World

T = TypeVar("T")

WAL: Final = "0a0b0c0d-0000-4000-8000-000000000007"


def in_virtual_time(work: Callable[[Clock], Coroutine[Any, Any, None]]) -> None:
    """Run `work(clock)` to its end. What fails in it fails here."""
    world = World(0)
    world.run(work(SimulatedClock(world.loop)))
    if world.violation is not None:
        raise world.violation


class SlowStore(MemoryObjectStore):
    """Each call takes as long as the next of `delays_s` says, else `usual_s`: half of it before, half behind."""

    def __init__(self, clock: Clock, usual_s: float = 0.02) -> None:
        super().__init__(clock)
        self.usual_s = usual_s
        self.delays_s: list[float] = []

    async def run(self, work: Callable[[], T]) -> T:
        delay_s = self.delays_s.pop(0) if self.delays_s else self.usual_s
        await asyncio.sleep(delay_s / 2)
        result = work()
        await asyncio.sleep(delay_s / 2)
        return result
