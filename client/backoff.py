"""Exponential back-off with jitter and a maximum.

The jitter shortens each delay by up to half, so that clients that lost the same broker do not reconnect at the same
time.
"""

from __future__ import annotations

from random import Random


class Backoff:
    """The delays of one series of attempts."""

    def __init__(self, first_ms: int, max_ms: int, rng: Random) -> None:
        self._first_s = first_ms / 1000
        self._max_s = max_ms / 1000
        self._rng = rng
        self._next_s = self._first_s

    def reset(self) -> None:
        """Start again from the first delay, after a successful attempt."""
        self._next_s = self._first_s

    def next_s(self) -> float:
        wait_s = self._next_s * (1 - self._rng.random() / 2)
        self._next_s = min(2 * self._next_s, self._max_s)
        return wait_s
