"""Operator who adds partitions and deletes topics during faults.

REST requests are sent to random brokers, and retried until one succeeds. Some histories have topics for these requests.
They are not trimmed, so that all messages with a receipt must exist:

    parted   is partitioned, and partitions are added; its consumers begin at the latest message of each partition
    remade   is deleted by force, and created again by its next user

A third such topic, `led`, is not used by the operator: applications take exclusive access to it from one another, by
fencing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any, Final

from quire.runtime.errors import AlreadyExists, NotFound, QuireError

from .broker_host import BrokerHost
from .facts import PARTED, REMADE, Facts
from .loop import Process
from .peers import SimulatedPeers
from .world import World

RETRY_S: Final = 0.4
PARTITIONS_MAX: Final = 4
TOPIC: Final = "/admin/v2/persistent/public/default/"


class Operator:
    def __init__(
        self, world: World, brokers: Sequence[BrokerHost], facts: Facts, peers: SimulatedPeers
    ) -> None:
        self._world = world
        self._brokers = brokers
        self._facts = facts
        self._peers = peers
        self._rng: Random = world.rng("operator")
        self._process = Process(world.loop, "operator")
        self._is_deleting = False
        self._is_growing = False

    # -- partitions ------------------------------------------------------------------------------------
    def make_parted(self) -> None:
        self._process.start(self._make_parted())

    async def _make_parted(self) -> None:
        await self._ask("PUT", f"{PARTED}/partitions", 1)
        self._facts.partitions = 1

    def grow(self) -> None:
        """Add a partition to `parted`."""
        if 0 < self._facts.partitions < PARTITIONS_MAX and not self._is_growing:
            self._is_growing = True
            self._process.start(self._grow(self._facts.partitions + 1))

    async def _grow(self, count: int) -> None:
        await self._ask("POST", f"{PARTED}/partitions", count)
        self._facts.partitions = count
        self._is_growing = False
        self._world.saw("partition added")

    # -- deletion --------------------------------------------------------------------------------------
    def remake(self) -> None:
        """Delete `remade`; its producers and consumers create it again."""
        if not self._is_deleting:
            self._is_deleting = True
            self._process.start(self._delete())

    async def _delete(self) -> None:
        self._facts.deletion_begins(REMADE)
        await self._ask("DELETE", f"{REMADE}?force=true")
        self._facts.deletion_ended(REMADE)
        self._is_deleting = False
        self._world.saw("topic deleted")

    @property
    def is_busy(self) -> bool:
        return self._is_deleting or self._is_growing

    # -- requests --------------------------------------------------------------------------------------
    async def _ask(self, method: str, path: str, body: Any = None) -> None:
        """Send a request until it succeeds, or until a broker responds that it was executed before."""
        while True:
            broker = self._rng.choice(self._brokers)
            try:
                await self._peers.ask_at(method, broker.http_url, TOPIC + path, body)
                return
            except (NotFound, AlreadyExists):
                return
            except QuireError as error:
                self._world.note(f"operator: {method} {path}: {error}")
                await asyncio.sleep(RETRY_S)
