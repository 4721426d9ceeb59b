"""A network for simulations, between a process and its bookies and metadata store: seeded, and without a clock.

What travels takes a random number of turns of the loop, so requests of different connections overtake each other;
`loss` is the chance that a request does not arrive, that its answer does not, or that the outcome of a metadata put
stays open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, TypeVar

from quire.runtime.errors import OutcomeUnknown
from quire.testing.bookie import MemoryBookie
from quire.wire.bookie import AddDone, AddRequest, Request, Status

R = TypeVar("R")


class FaultyNetwork:
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

    def loses(self) -> bool:
        return self.rng.random() < self.loss


class RemoteBookie:
    """A port to `near` through the network. Adds keep their order, as one connection would keep it."""

    def __init__(self, near: MemoryBookie, network: FaultyNetwork) -> None:
        self._near = near
        self._network = network
        self._queue: list[tuple[AddRequest, AddDone]] = []

    def add(self, request: AddRequest, done: AddDone) -> None:
        self._queue.append((request, done))
        self._network.later(self._arrive)

    def _arrive(self) -> None:
        request, done = self._queue.pop(0)
        lost = [Status.UNREACHABLE] * len(request.blocks)
        if self._network.loses():
            self._network.later(lambda: done(lost))
        elif self._network.loses():
            self._near.add(request, lambda statuses: done(lost))
        else:
            self._near.add(request, done)

    async def ask(self, request: Request[R]) -> R:
        await self._network.travel()
        answer = await self._near.ask(request)
        await self._network.travel()
        return request.refused(Status.UNREACHABLE) if self._network.loses() else answer


class RemoteStore:
    """A metadata store through the network: puts may be in doubt."""

    def __init__(self, near: Any, network: FaultyNetwork) -> None:
        self._near = near
        self._network = network

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._near, name)
        if name not in ("get", "put", "create", "delete", "children", "transact"):
            return method

        async def call(*args: Any, **kwargs: Any) -> Any:
            await self._network.travel()
            if name == "put" and self._network.loses():
                self._near.fail_next(OutcomeUnknown("time-out"), happened=self._network.rng.random() < 0.5)
            result = await method(*args, **kwargs)
            await self._network.travel()
            return result

        return call
