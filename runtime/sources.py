"""Connections by source network, to choose one to close at a limit. Performs no I/O.

A new connection replaces the least recently active one of the network with the most connections (`crowded`). So a flood
from one network closes its own connections.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from quire.runtime.network import wide_network_of

C = TypeVar("C")


class BySource(Generic[C]):
    """Set of connections by network; networks and connections are in the order of their last activity."""

    def __init__(self) -> None:
        self._source_of: dict[C, str] = {}
        self._by_source: dict[str, dict[C, None]] = {}

    def __len__(self) -> int:
        return len(self._source_of)

    def __iter__(self) -> Iterator[C]:
        return iter(list(self._source_of))

    def __contains__(self, one: C) -> bool:
        return one in self._source_of

    def add(self, one: C, address: str) -> None:
        """Add a connection from `/host:port`, as the most recently active one."""
        source = self._source_of[one] = wide_network_of(address)
        group = self._by_source.pop(source, {})
        group[one] = None
        self._by_source[source] = group

    def note_activity(self, one: C) -> None:
        """Make `one` the most recently active connection, if it is in the set."""
        source = self._source_of.get(one)
        if source is not None:
            group = self._by_source.pop(source)
            del group[one]
            group[one] = None
            self._by_source[source] = group

    def remove(self, one: C) -> bool:
        """Remove a connection. Return False if it is not in the set."""
        source = self._source_of.pop(one, None)
        if source is None:
            return False
        group = self._by_source[source]
        del group[one]
        if not group:
            del self._by_source[source]
        return True

    def crowded(self) -> C | None:
        """Return the connection to close for a new one; None if the set is empty."""
        if not self._by_source:
            return None
        largest = max(self._by_source.values(), key=len)
        return next(iter(largest))
