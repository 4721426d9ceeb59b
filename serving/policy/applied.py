"""Effective policies of a loaded topic, and the limiters that are built from them.

A topic and its parts share one such object, and read it when they act. Limiters are rebuilt when their limits change,
and are None while nothing is limited, so that an unused policy costs nothing.
"""

from __future__ import annotations

import asyncio

from quire.runtime.clock import Clock
from quire.serving.policy.rate_limiter import (
    BrokerLimiters,
    dispatch_limits,
    dispatch_limits_with,
    publish_rate_limiter,
)
from quire.serving.policy.resolved import TopicPolicies
from quire.serving.policy.subscribe_rate import subscribe_rate_limiter


class AppliedPolicies:
    __slots__ = (
        "_clock",
        "_limiters",
        "dispatch_limits",
        "policies",
        "publish_limiter",
        "subscribe_limiter",
    )

    def __init__(self, policies: TopicPolicies, clock: Clock, limiters: BrokerLimiters) -> None:
        self._clock = clock
        self._limiters = limiters
        self.policies = policies
        self.publish_limiter = publish_rate_limiter(policies, clock, limiters.publish)
        """Limiter of the publish rate; also not None if only the message size is limited."""
        self.dispatch_limits = dispatch_limits(policies, clock, limiters.dispatch)
        self.subscribe_limiter = subscribe_rate_limiter(policies.subscribe_rate, clock)

    def apply(self, policies: TopicPolicies) -> None:
        """Apply changed policies, except deduplication, which requires a reload."""
        former, self.policies = self.policies, policies
        clock, limiters = self._clock, self._limiters
        if _differ(former, policies, "publish_rate", "message_bytes_max"):
            if (
                self.publish_limiter is not None
            ):  # waiting callers then check the new limiter, in a later iteration
                asyncio.get_running_loop().call_soon(self.publish_limiter.open)
            self.publish_limiter = publish_rate_limiter(policies, clock, limiters.publish)
        if _differ(former, policies, "dispatch_rate"):
            self.dispatch_limits = dispatch_limits(policies, clock, limiters.dispatch)
        elif _differ(former, policies, "subscription_dispatch_rate", "subscription_rates"):
            # The topic's rate is the same, so its limiter keeps its debt.
            shared = None if self.dispatch_limits is None else self.dispatch_limits.shared
            self.dispatch_limits = dispatch_limits_with(policies, shared)
        if _differ(former, policies, "subscribe_rate"):
            self.subscribe_limiter = subscribe_rate_limiter(policies.subscribe_rate, clock)


def _differ(former: TopicPolicies, policies: TopicPolicies, *fields: str) -> bool:
    return any(getattr(former, name) != getattr(policies, name) for name in fields)
