"""Token bucket, which uses the caller's clock. No I/O.

A bucket fills with `rate` tokens a second up to `burst`. A caller that comes while there are tokens is admitted with
all its messages, and may leave the bucket in debt; the next caller waits until the debt is paid. So a batch is never
split, and a message larger than the burst passes too. In any time t, at most rate * t + burst tokens are taken, plus
those of the last caller.

A background task paces itself with `reserve`: it takes the tokens first, and sleeps until its debt is paid.
"""

from __future__ import annotations

from typing import Final

ROUNDING: Final = 1e-6
"""Tolerance for the rounding errors of many small fills."""

ROUNDING_S: Final = 1e-6
"""Maximum wait in seconds that counts as 0, because the clock may be too coarse to show that it is over."""


class TokenBucket:
    """Token bucket that gains `rate` tokens a second. `now` is the caller's monotonic clock in seconds.

    `burst` is the capacity; None means the tokens of one second. A caller waits until there are `step` tokens.
    """

    __slots__ = ("_burst", "_filled_s", "_rate", "_step", "_tokens")

    def __init__(self, rate: float, now: float, burst: float | None = None, step: float = 1.0) -> None:
        assert rate > 0
        self._rate = rate
        self._tokens = self._burst = rate if burst is None else burst
        self._step = min(step, self._burst)
        self._filled_s = now

    def wait_s(self, now: float) -> float:
        """Return the seconds until the next caller is admitted; 0 if it is admitted now."""
        self._tokens = min(self._burst, self._tokens + (now - self._filled_s) * self._rate)
        self._filled_s = now
        if self._tokens >= self._step:
            return 0.0
        wait_s = (self._step - self._tokens) / self._rate
        return wait_s if wait_s > ROUNDING_S else 0.0

    def take(self, count: int) -> None:
        self._tokens -= count

    def reserve(self, count: int, now: float) -> float:
        """Take `count` tokens. Return the seconds until the debt is paid and the next caller is admitted."""
        self.wait_s(now)
        self.take(count)
        return self.wait_s(now)

    @property
    def whole_tokens(self) -> int:
        """Return the number of tokens at the last call of `wait_s`, at least one."""
        return max(1, int(self._tokens + ROUNDING))
