"""Fault of the chaos test. `act` begins it, waits, and ends it; after that the cluster must work again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random

SHORT, LONG = (0.3, 0.9), (1.2, 2.5)
"""Ranges of a fault's length, as multiples of the session time-out: the session survives `SHORT`, but not `LONG`."""


@dataclass(frozen=True)
class Fault:
    """Fault that affects `victims`: names of processes, pairs of processes, or clocks."""

    name: str
    victims: frozenset[str]
    act: Callable[[], Awaitable[None]]
    loses_disks: bool = False

    def may_come_with(self, other: Fault) -> bool:
        """Return whether this fault and `other` may happen in the same round."""
        return not self.victims & other.victims and not (self.loses_disks and other.loses_disks)


Kind = Callable[[Random], Fault]


def some_time(rng: Random, session_s: float) -> float:
    """Draw the length of a fault in seconds: shorter or longer than the session time-out."""
    return rng.uniform(*rng.choice((SHORT, LONG))) * session_s
