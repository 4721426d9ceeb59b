"""How much may be published and dispatched, and where callers wait when the rate is spent.

A `RateLimiter` has a bucket for messages and one for bytes, where its rate limits them, and one queue with one timer
for all callers that wait. It belongs to a topic, a subscription or the whole broker, and knows the `wider` one that
must let pass as well: a subscription's its topic's, a topic's its broker's. A caller waits at the first that is closed.
When it is called back it asks all of them again: asking takes nothing, only what was published or dispatched does
(`passed`). A caller that still finds something to do then goes after the others, so the subscriptions of a topic share
its rate evenly however busy one of them is.

Publishing is let in run by run, as soon as there is one token. Dispatching asks how much may pass (`allowance`) and is
let in when some of it has gathered (`DISPATCH_STEP_S`), else a fast rate would be a timer for each message.

Where nothing is limited there is no limiter, so what is off costs one look at an attribute.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from quire.metadata.records import DispatchRate
from quire.runtime.clock import Clock
from quire.runtime.token_bucket import TokenBucket
from quire.serving.policy.resolved import TopicPolicies
from quire.serving.settings import BrokerSettings

TIMER_SLACK_S: Final = 0.001
"""A timer that fires a moment early would only be set again."""

DISPATCH_STEP_S: Final = 0.05
"""A subscription that must wait before more is dispatched waits for at least so much of the rate."""

UNLIMITED: Final = 1 << 62

Resume = Callable[[], None]
_log = logging.getLogger(__name__)


class RateLimiter:
    """`messages` and `byte_count` may pass per `period_s`, all at once; 0: any number.

    A caller that waits is let in when `step_s` seconds' worth has gathered, and one token at least.
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
        self._clock = clock
        self.wider = wider
        self._waiting: deque[Resume] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._is_releasing = False
        self.waits = 0
        """How often a caller had to wait, here or at a wider one."""

    @property
    def limits_anything(self) -> bool:
        return self._messages is not None or self._bytes is not None or self.wider is not None

    def is_open(self) -> bool:
        """The caller may pass now. Else it must `wait`."""
        return self._is_open() and (self.wider is None or self.wider.is_open())

    def wait(self, resume: Resume) -> None:
        """Call `resume` when the caller may pass, after all that waited before."""
        self.waits += 1
        if self.wider is not None and self._is_open():
            self.wider.wait(resume)
            return
        self._waiting.append(resume)
        if self._timer is None:
            self._arm()

    def passed(self, messages: int, byte_count: int) -> None:
        """So much was let in."""
        if self._messages is not None:
            self._messages.take(messages)
        if self._bytes is not None:
            self._bytes.take(byte_count)
        if self.wider is not None:
            self.wider.passed(messages, byte_count)

    def allowance(self) -> tuple[int, int]:
        """(messages, bytes) that may pass without a debt, each at least 1, as of the last `is_open`."""
        messages = UNLIMITED if self._messages is None else self._messages.whole_tokens
        byte_count = UNLIMITED if self._bytes is None else self._bytes.whole_tokens
        if self.wider is None:
            return messages, byte_count
        wider = self.wider.allowance()
        return min(messages, wider[0]), min(byte_count, wider[1])

    def open(self) -> None:
        """Other policies hold, or the topic is closed: no caller waits here any more."""
        self._messages = self._bytes = None
        if self._timer is not None:
            self._timer.cancel()
        waiting, self._waiting = self._waiting, deque()
        for resume in waiting:
            _resume(resume)

    def _is_open(self) -> bool:
        return (self._is_releasing or not self._waiting) and self._wait_s() <= 0

    def _wait_s(self) -> float:
        now = self._clock.monotonic()
        messages = 0.0 if self._messages is None else self._messages.wait_s(now)
        return messages if self._bytes is None else max(messages, self._bytes.wait_s(now))

    def _arm(self) -> None:
        delay_s = self._wait_s() + TIMER_SLACK_S
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._release)

    def _release(self) -> None:
        """Let in those that wait, each with what it has, as far as the rate allows."""
        self._timer = None
        self._is_releasing = True
        while self._waiting and self._is_open():
            _resume(self._waiting.popleft())
        self._is_releasing = False
        if self._waiting and self._timer is None:
            self._arm()


def _resume(resume: Resume) -> None:
    """A bug in one of those that wait is no reason to leave the others waiting."""
    try:
        resume()
    except Exception:
        _log.exception("a caller that waited for a rate could not go on")


def publish_rate_limiter(
    policies: TopicPolicies, clock: Clock, broker: RateLimiter | None = None
) -> RateLimiter | None:
    """A topic's, also where its policies limit no more than a message's size; None where nothing is limited."""
    rate = policies.publish_rate
    made = RateLimiter(rate.messages_per_s, rate.bytes_per_s, clock, broker)
    return made if made.limits_anything or policies.message_bytes_max > 0 else None


def dispatch_rate_limiter(
    rate: DispatchRate, clock: Clock, wider: RateLimiter | None = None
) -> RateLimiter | None:
    """A topic's or a subscription's; None where nothing is limited."""
    made = RateLimiter(
        rate.messages, rate.bytes, clock, wider, period_s=rate.period_s, step_s=DISPATCH_STEP_S
    )
    return made if made.limits_anything else None


@dataclass(frozen=True)
class BrokerLimiters:
    """What all topics of a broker together take and dispatch."""

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


@dataclass(frozen=True)
class DispatchLimits:
    """What limits the subscriptions of a topic: the rate of each, and the limiter that they share."""

    each: DispatchRate
    shared: RateLimiter | None


def dispatch_limits(
    policies: TopicPolicies, clock: Clock, broker: RateLimiter | None
) -> DispatchLimits | None:
    """None where nothing is limited."""
    shared = dispatch_rate_limiter(policies.dispatch_rate, clock, broker)
    each = policies.subscription_dispatch_rate
    return DispatchLimits(each, shared) if dispatch_rate_limiter(each, clock, shared) is not None else None
