"""Simulated network between a process and its bookies and metadata store: seeded, and without a clock.

A request or response is delayed by a random number of iterations of the event loop, so requests of different
connections overtake each other. `loss` is the probability that a request is lost, that its response is lost, or that
the outcome of a metadata put is unknown.
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
    """Delay and loss of requests and responses."""

    def __init__(self, rng: Random, turns_max: int, loss: float) -> None:
        self.rng = rng
        self.turns_max = turns_max
        self.loss = loss

    def later(self, what: Callable[[], None]) -> None:
        """Call `what` after a random number of iterations of the event loop."""
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
    """Port to the bookie `near` through the network. Add requests keep their order, as on one connection."""

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
    """Metadata store that is reached through the network, so that the outcome of a put may be unknown."""

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
