"""Interface of the client to its producers and consumers; `quire.client.client.Client` implements it."""

from __future__ import annotations

from random import Random
from typing import Protocol

from quire.client.lookup import Lookup
from quire.client.settings import ClientSettings
from quire.runtime.clock import Clock


class Closable(Protocol):
    async def close(self) -> None: ...


class Context(Protocol):
    """Interface of a client."""

    settings: ClientSettings
    clock: Clock
    rng: Random
    lookup: Lookup

    async def partitions(self, topic: str, *, create: bool = True) -> int:
        """Return the number of partitions of a topic, or 0 if it is not partitioned.

        Retries while no broker answers.
        """
        ...

    def next_id(self) -> int:
        """Return an id for a producer or consumer, unique in this client."""
        ...

    def register(self, one: Closable) -> None:
        """Have `one` closed when the client is closed."""
        ...

    def unregister(self, one: Closable) -> None: ...
