"""Bad weather between a process and its bookies and metadata store, for simulations: seeded, and without a clock.

What travels takes a random number of turns of the loop, so requests of different connections overtake each other;
`loss` is the chance that a request does not arrive, that its answer does not, or that the outcome of a metadata put
stays open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from quire.ledger.memory_bookie import MemoryBookie
from quire.runtime.errors import OutcomeUnknown
from quire.wire.bookie import AddDone, AddRequest, Status


class Weather:
    """How things travel."""

    def __init__(self, rng: Random, turns_max: int, loss: float) -> None:
        self.rng = rng
        self.turns_max = turns_max
        self.loss = loss

    def later(self, what: Callable[[], None]) -> None:
        """After a random number of turns."""
        turns = self.rng.randrange(self.turns_max + 1)

        def hop() -> None:
            nonlocal turns
            turns -= 1
            if turns <= 0:
                what()
            else:
                loop.call_soon(hop)

        loop = asyncio.get_running_loop()
        loop.call_soon(hop)

    async def travel(self) -> None:
        for _ in range(self.rng.randrange(self.turns_max + 1)):
            await asyncio.sleep(0)

    def strikes(self) -> bool:
        return self.rng.random() < self.loss


class FarBookie:
    """A port to `near` through the weather. Adds keep their order, as one connection would keep it."""

    def __init__(self, near: MemoryBookie, weather: Weather) -> None:
        self._near = near
        self._weather = weather
        self._queue: list[tuple[AddRequest, AddDone]] = []

    def add(self, request: AddRequest, done: AddDone) -> None:
        self._queue.append((request, done))
        self._weather.later(self._arrive)

    def _arrive(self) -> None:
        request, done = self._queue.pop(0)
        lost = [Status.UNREACHABLE] * len(request.blocks)
        if self._weather.strikes():
            self._weather.later(lambda: done(lost))
        elif self._weather.strikes():
            self._near.add(request, lambda statuses: done(lost))
        else:
            self._near.add(request, done)

    def __getattr__(self, name: str) -> Any:
        """read, write_lac, delete, find_time, find_hole, ledger_info."""
        method = getattr(self._near, name)

        async def call(request: Any) -> Any:
            await self._weather.travel()
            answer = await method(request)
            await self._weather.travel()
            if self._weather.strikes():
                answer = type(answer)(Status.UNREACHABLE)
            return answer

        return call


class FarStore:
    """A metadata store through the weather: puts may be in doubt."""

    def __init__(self, near: Any, weather: Weather) -> None:
        self._near = near
        self._weather = weather

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._near, name)
        if name not in ("get", "put", "create", "delete", "children", "transact"):
            return method

        async def call(*args: Any, **kwargs: Any) -> Any:
            await self._weather.travel()
            if name == "put" and self._weather.strikes():
                self._near.fail_next(OutcomeUnknown("time-out"), happened=self._weather.rng.random() < 0.5)
            result = await method(*args, **kwargs)
            await self._weather.travel()
            return result

        return call
