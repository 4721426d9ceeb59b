"""How much may be published per second: token buckets on a clock from outside. No I/O.

A bucket fills with `rate` tokens a second up to one second's worth. Whoever comes while there is a token is let in
with all that it brings, and may so leave the bucket in debt; who comes then waits until the debt is paid. So nothing
that arrived together is torn apart, a message larger than a second's worth passes too, and over any time t no more
than rate * (t + 1) passes beside the last run.
"""

from __future__ import annotations

from quire.metadata.records import PublishRate


class TokenBucket:
    """Tokens of one kind. `now` is monotonic, in seconds, and never earlier than before."""

    __slots__ = ("_filled_s", "_rate", "_tokens")

    def __init__(self, rate: float, now: float) -> None:
        assert rate > 0
        self._rate = rate
        self._tokens = rate
        self._filled_s = now

    def wait_s(self, now: float) -> float:
        """How long until there is a token; 0 when there is one."""
        self._tokens = min(self._rate, self._tokens + (now - self._filled_s) * self._rate)
        self._filled_s = now
        least = min(1.0, self._rate)
        return 0.0 if self._tokens >= least else (least - self._tokens) / self._rate

    def take(self, count: int) -> None:
        self._tokens -= count


class RateLimit:
    """The buckets of a policy: messages and bytes."""

    __slots__ = ("_bytes", "_messages")

    def __init__(self, rate: PublishRate, now: float) -> None:
        self._messages = TokenBucket(rate.messages_per_s, now) if rate.messages_per_s > 0 else None
        self._bytes = TokenBucket(rate.bytes_per_s, now) if rate.bytes_per_s > 0 else None

    def wait_s(self, now: float) -> float:
        """How long until the next run may pass; 0: now."""
        messages, byte_bucket = self._messages, self._bytes
        return max(
            0.0 if messages is None else messages.wait_s(now),
            0.0 if byte_bucket is None else byte_bucket.wait_s(now),
        )

    def take(self, messages: int, byte_count: int) -> None:
        """A run passes."""
        if self._messages is not None:
            self._messages.take(messages)
        if self._bytes is not None:
            self._bytes.take(byte_count)
