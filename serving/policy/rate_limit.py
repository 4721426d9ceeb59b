"""How much may pass per second: token buckets on a clock from outside. No I/O.

A bucket fills with `rate` tokens a second up to `burst`. Whoever comes while there are tokens is let in with all that
it brings, and may so leave the bucket in debt; who comes then waits until the debt is paid. So nothing that belongs
together is torn apart, a message larger than the burst passes too, and over any time t no more than rate * t + burst
passes beside the last run.

Publishing is let in run by run, as soon as there is one token. Dispatching asks how much it may deal (`allowance`) and
is let in when some of it has gathered (`DISPATCH_STEP_S`), else a fast rate would be a timer for each message.
"""

from __future__ import annotations

from typing import Final

from quire.metadata.records import DispatchRate, PublishRate

DISPATCH_STEP_S: Final = 0.05
"""Who must wait before it is dealt more waits for at least so much of the rate."""

UNLIMITED: Final = 1 << 62
ROUNDING: Final = 1e-6
"""Of a sum of many small fills."""


class TokenBucket:
    """Tokens of one kind. `now` is monotonic, in seconds, and never earlier than before.

    `burst` (None: a second's worth) is what it holds; nobody is let in before there are `step` tokens.
    """

    __slots__ = ("_burst", "_filled_s", "_rate", "_step", "_tokens")

    def __init__(self, rate: float, now: float, burst: float | None = None, step: float = 1.0) -> None:
        assert rate > 0
        self._rate = rate
        self._tokens = self._burst = rate if burst is None else burst
        self._step = min(step, self._burst)
        self._filled_s = now

    def wait_s(self, now: float) -> float:
        """How long until somebody is let in; 0: now."""
        self._tokens = min(self._burst, self._tokens + (now - self._filled_s) * self._rate)
        self._filled_s = now
        return 0.0 if self._tokens >= self._step else (self._step - self._tokens) / self._rate

    def take(self, count: int) -> None:
        self._tokens -= count

    @property
    def whole_tokens(self) -> int:
        """As of the last look; at least one."""
        return max(1, int(self._tokens + ROUNDING))


class RateLimit:
    """The buckets of a policy, for messages and for bytes; None: any number."""

    __slots__ = ("_bytes", "_messages")

    def __init__(self, messages: TokenBucket | None, byte_bucket: TokenBucket | None) -> None:
        self._messages = messages
        self._bytes = byte_bucket

    def wait_s(self, now: float) -> float:
        """How long until the next may pass; 0: now."""
        messages, byte_bucket = self._messages, self._bytes
        return max(
            0.0 if messages is None else messages.wait_s(now),
            0.0 if byte_bucket is None else byte_bucket.wait_s(now),
        )

    def take(self, messages: int, byte_count: int) -> None:
        """So much passes."""
        if self._messages is not None:
            self._messages.take(messages)
        if self._bytes is not None:
            self._bytes.take(byte_count)

    def allowance(self) -> tuple[int, int]:
        """(messages, bytes) that may pass without a debt, each at least 1, as of the last `wait_s`."""
        messages, byte_bucket = self._messages, self._bytes
        return (
            UNLIMITED if messages is None else messages.whole_tokens,
            UNLIMITED if byte_bucket is None else byte_bucket.whole_tokens,
        )


def publish_limit(rate: PublishRate, now: float) -> RateLimit | None:
    """None where the rate limits nothing."""
    if rate.messages_per_s <= 0 and rate.bytes_per_s <= 0:
        return None
    return RateLimit(
        TokenBucket(rate.messages_per_s, now) if rate.messages_per_s > 0 else None,
        TokenBucket(rate.bytes_per_s, now) if rate.bytes_per_s > 0 else None,
    )


def dispatch_limit(rate: DispatchRate, now: float) -> RateLimit | None:
    """None where the rate limits nothing."""
    if rate.messages <= 0 and rate.bytes <= 0:
        return None
    return RateLimit(_dealing(rate.messages, rate.period_s, now), _dealing(rate.bytes, rate.period_s, now))


def _dealing(count: int, period_s: int, now: float) -> TokenBucket | None:
    """A period's worth may be dealt at once."""
    if count <= 0:
        return None
    rate = count / period_s
    return TokenBucket(rate, now, burst=count, step=max(1.0, rate * DISPATCH_STEP_S))
