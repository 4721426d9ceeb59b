"""How many connections a process, an address and a role have. A core.

    came ─▶ logging in ─▶ logged in ─▶ left

Who has not logged in is nobody yet, and may say nothing for ten seconds. So those are few (`LOGGING_IN_MAX`), and the
oldest of them goes when one too many comes, also when the process has all the connections that it takes: an honest
client needs a few round trips, so sockets that stay silent drop one another, and never keep others out. Where nobody
logs in, who has said CONNECT counts as logged in.

A proxy's connections count for the roles that it speaks for, and not for its address. Superusers are not counted, so
that they can come and look.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Generic, TypeVar

from quire.runtime.errors import TooMany
from quire.runtime.limits import LOGGING_IN_MAX
from quire.runtime.network import network_of
from quire.security.configuration import Limits
from quire.security.identity import Identity

C = TypeVar("C")


class Connections(Generic[C]):
    """`most`: of the process. Superusers are named by their roles."""

    def __init__(self, most: int, limits: Limits, superusers: Collection[str] = ()) -> None:
        self._most = most
        self._limits = limits
        self._superusers = superusers
        self._addresses: dict[C, str] = {}
        """Of all, in the order in which they came; empty where addresses are not counted."""
        self._logging_in: dict[C, None] = {}
        self._roles: dict[C, str] = {}
        self._by_address: Counter[str] = Counter()
        self._by_role: Counter[str] = Counter()
        self.total = 0
        """That ever came."""

    def __len__(self) -> int:
        return len(self._addresses)

    def __iter__(self) -> Iterator[C]:
        return iter(list(self._addresses))

    @property
    def logging_in(self) -> int:
        return len(self._logging_in)

    def came(self, one: C, address: str) -> C | None:
        """Take it, from `/host:port`; returns another one that must go for it. Raises `TooMany`, not taking it."""
        self.total += 1
        host = network_of(address) if self._limits.connections_per_address and address else ""
        if host and self._by_address[host] >= self._limits.connections_per_address:
            raise TooMany(
                "connections_per_address",
                f"there are {self._limits.connections_per_address} connections from {host}, and no more are taken: "
                "close some",
            )
        oldest = next(iter(self._logging_in), None)
        if len(self) < self._most and len(self._logging_in) < LOGGING_IN_MAX:
            oldest = None
        elif oldest is None:
            raise TooMany("connections", "there are too many connections here already; try again later")
        else:
            self.left(oldest)
        self._addresses[one] = host
        self._logging_in[one] = None
        if host:
            self._by_address[host] += 1
        return oldest

    def logged_in(self, one: C, identity: Identity | None) -> None:
        """It is known who it is; None where nobody is asked. Raises `TooMany`, and counts it as it was."""
        if one not in self._logging_in:
            return  # it had to go meanwhile
        if identity is not None and not set(identity.roles) <= set(self._superusers):
            role, most = identity.original or identity.role, self._limits.connections_per_role
            if most and self._by_role[role] >= most:
                raise TooMany(
                    "connections_per_role",
                    f"there are {most} connections of {role}, and no more are taken: close some",
                )
            self._roles[one] = role
            self._by_role[role] += 1
        if identity is not None and identity.original:
            _one_less(self._by_address, self._addresses[one])
            self._addresses[one] = ""
        del self._logging_in[one]

    def left(self, one: C) -> None:
        """It is gone, or about to. Nothing if it was not here."""
        if one in self._addresses:
            _one_less(self._by_address, self._addresses.pop(one))
            _one_less(self._by_role, self._roles.pop(one, ""))
            self._logging_in.pop(one, None)


def too_slow() -> TooMany:
    """What one is told that had to go."""
    return TooMany("connections_logging_in", "others wait to log in, and this one took too long; try again")


def _one_less(counter: Counter[str], name: str) -> None:
    if name:
        counter[name] -= 1
        if not counter[name]:
            del counter[name]
