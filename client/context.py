"""What producers and consumers need of the client that made them. `quire.client.client.Client` implements it."""

from __future__ import annotations

from random import Random
from typing import Protocol

from quire.client.lookup import Lookup
from quire.client.settings import ClientSettings
from quire.runtime.clock import Clock


class Closable(Protocol):
    async def close(self) -> None: ...


class Context(Protocol):
    """One client."""

    settings: ClientSettings
    clock: Clock
    rng: Random
    lookup: Lookup

    async def partitions(self, topic: str, *, create: bool = True) -> int:
        """How many partitions a topic has; 0: it is not partitioned. Tries again while no broker answers."""
        ...

    def next_id(self) -> int:
        """An id for a producer or consumer, unique in this client."""
        ...

    def register(self, one: Closable) -> None:
        """Close it when the client is closed."""
        ...

    def unregister(self, one: Closable) -> None: ...
