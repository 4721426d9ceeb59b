"""How much may pass per second: a bucket of tokens on a clock from outside. No I/O.

A bucket fills with `rate` tokens a second up to `burst`. A caller that comes while there are tokens is let in with all
that it brings, and may so leave the bucket in debt; the next one waits until the debt is paid. So nothing that belongs
together is torn apart, a message larger than the burst passes too, and over any time t no more than rate * t + burst
passes beside the last run.
"""

from __future__ import annotations

from typing import Final

ROUNDING: Final = 1e-6
"""Of a sum of many small fills."""


class TokenBucket:
    """Tokens of one kind. `now` is monotonic, in seconds, and never earlier than before.

    `burst` (None: a second's worth) is what it holds; no caller is let in before there are `step` tokens.
    """

    __slots__ = ("_burst", "_filled_s", "_rate", "_step", "_tokens")

    def __init__(self, rate: float, now: float, burst: float | None = None, step: float = 1.0) -> None:
        assert rate > 0
        self._rate = rate
        self._tokens = self._burst = rate if burst is None else burst
        self._step = min(step, self._burst)
        self._filled_s = now

    def wait_s(self, now: float) -> float:
        """How long until the next caller is let in; 0: now."""
        self._tokens = min(self._burst, self._tokens + (now - self._filled_s) * self._rate)
        self._filled_s = now
        return 0.0 if self._tokens >= self._step else (self._step - self._tokens) / self._rate

    def take(self, count: int) -> None:
        self._tokens -= count

    @property
    def whole_tokens(self) -> int:
        """As of the last look; at least one."""
        return max(1, int(self._tokens + ROUNDING))
