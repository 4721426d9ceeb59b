"""Where those wait for whom a rate is spent: one behind the other, with one timer for all.

A throttle belongs to a topic, a subscription or the whole broker; who must pass several asks each in turn and waits at
the first that is closed. When it is called back it asks all of them again: passing takes nothing, only what was
published or dealt does (`passed`). Whoever is called back and still finds something to do goes behind the others, so
the subscriptions of a topic share its rate evenly however busy one of them is.

Where nothing is limited there is no throttle, so what is off costs one look at an attribute.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from quire.metadata.records import DispatchRate, PublishRate
from quire.runtime.clock import Clock
from quire.serving.policy.rate_limit import RateLimit, dispatch_limit, publish_limit
from quire.serving.policy.resolved import TopicPolicies
from quire.serving.settings import BrokerSettings

TIMER_SLACK_S: Final = 0.001
"""A timer that fires a moment early would only be set again."""

Resume = Callable[[], None]
_log = logging.getLogger(__name__)


class Throttle:
    """See the top of the file."""

    def __init__(self, limit: RateLimit, clock: Clock) -> None:
        self._limit: RateLimit | None = limit
        self._clock = clock
        self._waiting: deque[Resume] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._is_releasing = False

    def is_open(self) -> bool:
        """Who asks may pass now. Else `wait`."""
        if self._limit is None:
            return True
        is_next = self._is_releasing or not self._waiting
        return is_next and self._limit.wait_s(self._clock.monotonic()) <= 0

    def wait(self, resume: Resume) -> None:
        """Call `resume` when it may pass, behind all who waited before."""
        self._waiting.append(resume)
        if self._timer is None:
            self._arm()

    def passed(self, messages: int, byte_count: int) -> None:
        """So much was let in."""
        if self._limit is not None:
            self._limit.take(messages, byte_count)

    def allowance(self) -> tuple[int, int]:
        """(messages, bytes) that may pass without a debt; it is open."""
        assert self._limit is not None
        return self._limit.allowance()

    def open(self) -> None:
        """Other policies hold, or the topic is closed: nobody waits any more."""
        self._limit = None
        if self._timer is not None:
            self._timer.cancel()
        waiting, self._waiting = self._waiting, deque()
        for resume in waiting:
            _resume(resume)

    def _arm(self) -> None:
        wait_s = 0.0 if self._limit is None else self._limit.wait_s(self._clock.monotonic())
        delay_s = wait_s + TIMER_SLACK_S
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._release)

    def _release(self) -> None:
        """Let in who waits, each with what it has, as far as the rate allows."""
        self._timer = None
        self._is_releasing = True
        while self._waiting and self.is_open():
            _resume(self._waiting.popleft())
        self._is_releasing = False
        if self._waiting and self._timer is None:
            self._arm()


def _resume(resume: Resume) -> None:
    """A mistake in one of those who wait is no reason to leave the others waiting."""
    try:
        resume()
    except Exception:
        _log.exception("somebody who waited for a rate could not go on")


def _throttle(limit: RateLimit | None, clock: Clock) -> Throttle | None:
    return None if limit is None else Throttle(limit, clock)


def publish_throttle(rate: PublishRate, clock: Clock) -> Throttle | None:
    """None where the rate limits nothing."""
    return _throttle(publish_limit(rate, clock.monotonic()), clock)


def dispatch_throttle(rate: DispatchRate, clock: Clock) -> Throttle | None:
    """None where the rate limits nothing."""
    return _throttle(dispatch_limit(rate, clock.monotonic()), clock)


@dataclass(frozen=True)
class BrokerThrottles:
    """What all topics of a broker together take and deal."""

    publish: Throttle | None = None
    dispatch: Throttle | None = None

    @classmethod
    def of(cls, settings: BrokerSettings, clock: Clock) -> BrokerThrottles:
        published = PublishRate(
            messages_per_s=settings.broker_publish_messages_per_s,
            bytes_per_s=settings.broker_publish_bytes_per_s,
        )
        dealt = DispatchRate(
            messages=settings.broker_dispatch_messages_per_s, bytes=settings.broker_dispatch_bytes_per_s
        )
        return cls(publish_throttle(published, clock), dispatch_throttle(dealt, clock))


@dataclass(frozen=True)
class DispatchLimits:
    """What brakes the subscriptions of a topic: the rate of each, and the throttles that they share."""

    each: DispatchRate
    shared: tuple[Throttle, ...]


def dispatch_limits(policies: TopicPolicies, clock: Clock, broker: BrokerThrottles) -> DispatchLimits | None:
    """None where nothing is limited."""
    both = dispatch_throttle(policies.dispatch_rate, clock), broker.dispatch
    made = DispatchLimits(policies.subscription_dispatch_rate, tuple(one for one in both if one is not None))
    return made if made.shared or dispatch_limit(made.each, 0.0) is not None else None


def limited_anew(former: TopicPolicies, policies: TopicPolicies) -> bool:
    """Whether other policies mean other `dispatch_limits`."""
    return (former.dispatch_rate, former.subscription_dispatch_rate) != (
        policies.dispatch_rate,
        policies.subscription_dispatch_rate,
    )
