"""Limiter of the subscribe requests of each consumer of a topic, in fixed periods.

A consumer is identified by its host, its name and its id, as in Pulsar, so a client that reconnects is the same
consumer. Unlike a producer, a consumer above the rate does not wait: its request is rejected, so that a client that
subscribes in a loop learns why. (Pulsar: `SubscribeRateLimiter`)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Final

from quire.metadata.records import SubscribeRate
from quire.runtime.clock import Clock

CONSUMERS_MAX: Final = 10_000
"""Number of consumers that are counted in a period; for one more, counting starts again.

Clients choose their names, so a client could otherwise use any amount of memory.
"""


class SubscribeRateLimiter:
    """Limiter of one topic: admits `rate.subscriptions` requests of each consumer per period."""

    def __init__(self, rate: SubscribeRate, clock: Clock) -> None:
        assert rate.subscriptions > 0
        self.rate = rate
        self._clock = clock
        self._began_s = clock.monotonic()
        self._requests: Counter[Hashable] = Counter()

    def admits(self, consumer: Hashable) -> bool:
        """Count a subscribe request of `consumer`. Return False if the consumer exceeds its rate."""
        now_s = self._clock.monotonic()
        if now_s - self._began_s >= self.rate.period_s or len(self._requests) >= CONSUMERS_MAX:
            self._began_s = now_s
            self._requests.clear()
        if self._requests[consumer] >= self.rate.subscriptions:
            return False
        self._requests[consumer] += 1
        return True


def subscribe_rate_limiter(rate: SubscribeRate, clock: Clock) -> SubscribeRateLimiter | None:
    """Create a topic's limiter of subscribe requests; return None without a limit."""
    return SubscribeRateLimiter(rate, clock) if rate.subscriptions > 0 else None
