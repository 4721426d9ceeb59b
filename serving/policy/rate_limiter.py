"""Rate limiters of publishing and dispatch (token buckets), and queues of callers that exceed the rate.

A `RateLimiter` has a token bucket for messages and one for bytes, if they are limited, and one queue for all waiting
callers (`rate_queue`). It belongs to a subscription, a topic or the whole broker. Its `wider` limiter must admit a
caller as well: for a subscription the topic's limiter, for a topic the broker's. A caller waits at the first limiter
that is closed. When it is called back, it asks all limiters again. Only published or dispatched messages take tokens
(`passed`). A caller with more messages then queues behind the other callers, so the subscriptions of a topic share its
rate evenly.

Each run of published messages is admitted as soon as there is one token. A dispatcher asks for the `allowance`. If it
has to wait, it resumes when the tokens of `DISPATCH_STEP_S` are available; otherwise, a fast rate would need a timer
for each message.

Without limits there is no limiter, so a disabled policy costs one read of an attribute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from quire.metadata.records import DispatchRate
from quire.runtime.clock import Clock
from quire.runtime.rate_queue import RateQueue
from quire.runtime.token_bucket import TokenBucket
from quire.serving.policy.resolved import TopicPolicies
from quire.serving.settings import BrokerSettings

DISPATCH_STEP_S: Final = 0.05
"""Time, in seconds; a waiting subscription resumes when the tokens that this time yields are available."""

UNLIMITED: Final = 1 << 62


class RateLimiter:
    """Limiter of messages and bytes: it admits `messages` and `byte_count` per `period_s` seconds; 0 means unlimited.

    A waiting caller is admitted when the tokens of `step_s` seconds, and at least one, are available.
    """

    def __init__(
        self,
        messages: int,
        byte_count: int,
        clock: Clock,
        wider: RateLimiter | None = None,
        *,
        period_s: int = 1,
        step_s: float = 0.0,
    ) -> None:
        def bucket(count: int) -> TokenBucket | None:
            rate = count / period_s
            return TokenBucket(rate, clock.monotonic(), count, max(1.0, rate * step_s)) if count > 0 else None

        self._messages = bucket(messages)
        self._bytes = bucket(byte_count)
        self.queue = RateQueue(clock.monotonic, *filter(None, (self._messages, self._bytes)))
        self.wider = wider
        self.waits = 0
        """Number of waits, at this limiter or a wider one."""

    @property
    def limits_anything(self) -> bool:
        return self._messages is not None or self._bytes is not None or self.wider is not None

    def is_open(self) -> bool:
        """Return whether the caller may pass now; if not, it must call `wait`."""
        return self.queue.is_open() and (self.wider is None or self.wider.is_open())

    def wait(self, resume: Callable[[], None]) -> None:
        """Call `resume` when the caller may pass, after all callers that waited before."""
        self.waits += 1
        if self.wider is not None and self.queue.is_open():
            self.wider.wait(resume)
        else:
            self.queue.wait(resume)

    def passed(self, messages: int, byte_count: int) -> None:
        """Take the tokens of admitted messages."""
        if self._messages is not None:
            self._messages.take(messages)
        if self._bytes is not None:
            self._bytes.take(byte_count)
        if self.wider is not None:
            self.wider.passed(messages, byte_count)

    def allowance(self) -> tuple[int, int]:
        """Return the (messages, bytes) for which there were tokens at the last `is_open`, each at least 1."""
        messages = UNLIMITED if self._messages is None else self._messages.whole_tokens
        byte_count = UNLIMITED if self._bytes is None else self._bytes.whole_tokens
        if self.wider is None:
            return messages, byte_count
        wider = self.wider.allowance()
        return min(messages, wider[0]), min(byte_count, wider[1])

    def open(self) -> None:
        """Admit all waiting callers, because other policies apply or the topic is closed."""
        self._messages = self._bytes = None
        self.queue.open()


def publish_rate_limiter(
    policies: TopicPolicies, clock: Clock, broker: RateLimiter | None = None
) -> RateLimiter | None:
    """Create a topic's publish rate limiter, even if only the message size is limited; return None without limits."""
    rate = policies.publish_rate
    made = RateLimiter(rate.messages_per_s, rate.bytes_per_s, clock, broker)
    return made if made.limits_anything or policies.message_bytes_max > 0 else None


def dispatch_rate_limiter(
    rate: DispatchRate, clock: Clock, wider: RateLimiter | None = None
) -> RateLimiter | None:
    """Create a dispatch rate limiter for a topic or a subscription; return None without limits."""
    made = RateLimiter(
        rate.messages, rate.bytes, clock, wider, period_s=rate.period_s, step_s=DISPATCH_STEP_S
    )
    return made if made.limits_anything else None


@dataclass(frozen=True)
class BrokerLimiters:
    """Limiters that all topics of a broker share."""

    publish: RateLimiter | None = None
    dispatch: RateLimiter | None = None

    @classmethod
    def of(cls, settings: BrokerSettings, clock: Clock) -> BrokerLimiters:
        published = RateLimiter(
            settings.broker_publish_messages_per_s, settings.broker_publish_bytes_per_s, clock
        )
        dispatched = DispatchRate(
            messages=settings.broker_dispatch_messages_per_s, bytes=settings.broker_dispatch_bytes_per_s
        )
        return cls(published if published.limits_anything else None, dispatch_rate_limiter(dispatched, clock))


class SubscriptionLimits(NamedTuple):
    """Dispatch limits of one subscription: its rate, and the limiter that it shares with others."""

    rate: DispatchRate
    shared: RateLimiter | None


@dataclass(frozen=True)
class DispatchLimits:
    """Dispatch limits of a topic's subscriptions: the rate of each subscription, and the shared limiter."""

    each: DispatchRate
    shared: RateLimiter | None
    own: Mapping[str, DispatchRate] = field(default_factory=dict)
    """Rates of single subscriptions, by name, instead of `each`."""

    def of(self, subscription: str) -> SubscriptionLimits | None:
        """Return the limits of a subscription; None if it has none."""
        rate = self.own.get(subscription, self.each)
        is_limited = self.shared is not None or _limits_anything(rate)
        return SubscriptionLimits(rate, self.shared) if is_limited else None


def dispatch_limits(
    policies: TopicPolicies, clock: Clock, broker: RateLimiter | None
) -> DispatchLimits | None:
    """Create the dispatch limits of a topic's subscriptions; return None without limits."""
    return dispatch_limits_with(policies, dispatch_rate_limiter(policies.dispatch_rate, clock, broker))


def dispatch_limits_with(policies: TopicPolicies, shared: RateLimiter | None) -> DispatchLimits | None:
    """Return the dispatch limits of a topic's subscriptions with this shared limiter; None without limits."""
    each, own = policies.subscription_dispatch_rate, policies.subscription_rates
    is_limited = shared is not None or any(map(_limits_anything, (each, *own.values())))
    return DispatchLimits(each, shared, own) if is_limited else None


def _limits_anything(rate: DispatchRate) -> bool:
    return rate.messages > 0 or rate.bytes > 0
