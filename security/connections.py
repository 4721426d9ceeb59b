"""Limits of the connections of a process, an address and a role. Performs no I/O.

States of a connection: came, logging in, logged in, left.

A connection that has not logged in may stay silent for ten seconds, so the number of such connections is limited
(`LOGGING_IN_MAX`). When a new connection exceeds that limit or the limit of all connections, it replaces a connection
that has not logged in: the oldest from the network with the most of them (`runtime/sources`). A login takes a few round
trips, so a flood from one network closes its own connections, and does not lock out other clients. Without
authentication, a connection counts as logged in after CONNECT.

A proxy's connections count for the roles that it acts for, and not for its address. Superusers are not counted, so that
they can always connect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Generic, TypeVar

from quire.runtime.errors import TooMany
from quire.runtime.limits import LOGGING_IN_MAX
from quire.runtime.network import network_of
from quire.runtime.sources import BySource
from quire.security.configuration import Limits
from quire.security.identity import Identity

C = TypeVar("C")


class Connections(Generic[C]):
    """Open connections of a process, at most `most`. `superusers` are the roles without a limit."""

    def __init__(self, most: int, limits: Limits, superusers: Collection[str] = ()) -> None:
        self._most = most
        self._limits = limits
        self._superusers = superusers
        self._addresses: dict[C, str] = {}
        """Network by connection, in the order of arrival; empty if connections per address are not limited."""
        self._logging_in: BySource[C] = BySource()
        self._roles: dict[C, str] = {}
        self._by_address: Counter[str] = Counter()
        self._by_role: Counter[str] = Counter()
        self.total = 0
        """Number of connections since the start."""

    def __len__(self) -> int:
        return len(self._addresses)

    def __iter__(self) -> Iterator[C]:
        return iter(list(self._addresses))

    @property
    def logging_in(self) -> int:
        return len(self._logging_in)

    def came(self, one: C, address: str) -> C | None:
        """Add a connection from `/host:port`; return the connection that it replaces, to be closed, or None.

        Raises `TooMany` without adding it.
        """
        self.total += 1
        host = network_of(address) if self._limits.connections_per_address and address else ""
        if host and self._by_address[host] >= self._limits.connections_per_address:
            raise TooMany(
                "connections_per_address",
                f"there are {self._limits.connections_per_address} connections from {host}, the limit per address:  "
                "close some",
            )
        oldest = self._logging_in.crowded()
        if len(self) < self._most and len(self._logging_in) < LOGGING_IN_MAX:
            oldest = None
        elif oldest is None:
            raise TooMany("connections", "this process has too many connections; try again later")
        else:
            self.left(oldest)
        self._addresses[one] = host
        self._logging_in.add(one, address)
        if host:
            self._by_address[host] += 1
        return oldest

    def logged_in(self, one: C, identity: Identity | None) -> None:
        """Count the connection for its identity's role. Raises `TooMany` without changes.

        `identity` is None without authentication.
        """
        if one not in self._logging_in:
            return  # it was closed meanwhile
        if identity is not None and not set(identity.roles) <= set(self._superusers):
            role, most = identity.original or identity.role, self._limits.connections_per_role
            if most and self._by_role[role] >= most:
                raise TooMany(
                    "connections_per_role",
                    f"there are {most} connections of {role}, the limit per role: close some",
                )
            self._roles[one] = role
            self._by_role[role] += 1
        if identity is not None and identity.original:
            _one_less(self._by_address, self._addresses[one])
            self._addresses[one] = ""
        self._logging_in.remove(one)

    def left(self, one: C) -> None:
        """Remove a closed or closing connection; an unknown one is ignored."""
        if one in self._addresses:
            _one_less(self._by_address, self._addresses.pop(one))
            _one_less(self._by_role, self._roles.pop(one, ""))
            self._logging_in.remove(one)


def too_slow() -> TooMany:
    """Return the error for a connection that was closed to admit others."""
    return TooMany(
        "connections_logging_in", "logging in took too long while other connections were waiting; try again"
    )


def _one_less(counter: Counter[str], name: str) -> None:
    if name:
        counter[name] -= 1
        if not counter[name]:
            del counter[name]
