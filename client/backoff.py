"""How long to wait before the next attempt: twice as long each time, up to a bound, with jitter.

The jitter takes up to half off, so that clients that lost the same broker do not come back in one wave.
"""

from __future__ import annotations

from random import Random


class Backoff:
    """The waits of one series of attempts, in seconds."""

    def __init__(self, first_ms: int, max_ms: int, rng: Random) -> None:
        self._first_s = first_ms / 1000
        self._max_s = max_ms / 1000
        self._rng = rng
        self._next_s = self._first_s

    def reset(self) -> None:
        """The last attempt succeeded."""
        self._next_s = self._first_s

    def next_s(self) -> float:
        wait_s = self._next_s * (1 - self._rng.random() / 2)
        self._next_s = min(2 * self._next_s, self._max_s)
        return wait_s
