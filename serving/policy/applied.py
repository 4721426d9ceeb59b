"""The policies that hold for a loaded topic now, and the limiters that are made of them.

A topic has one such object, and so have the parts of it that act by a policy: they read it when they act. Limiters are
made anew when what they limit has changed, and are None while nothing is limited: a policy that is off costs nothing.
"""

from __future__ import annotations

import asyncio

from quire.runtime.clock import Clock
from quire.serving.policy.rate_limiter import BrokerLimiters, dispatch_limits, publish_rate_limiter
from quire.serving.policy.resolved import TopicPolicies


class AppliedPolicies:
    __slots__ = ("_clock", "_limiters", "dispatch_limits", "policies", "publish_limiter")

    def __init__(self, policies: TopicPolicies, clock: Clock, limiters: BrokerLimiters) -> None:
        self._clock = clock
        self._limiters = limiters
        self.policies = policies
        self.publish_limiter = publish_rate_limiter(policies, clock, limiters.publish)
        """What producers wait at whose rate is spent, and where there is a limit on the size of messages."""
        self.dispatch_limits = dispatch_limits(policies, clock, limiters.dispatch)

    def apply(self, policies: TopicPolicies) -> None:
        """Other policies hold from now on; but for deduplication, which needs a load."""
        former, self.policies = self.policies, policies
        clock, limiters = self._clock, self._limiters
        if _differ(former, policies, "publish_rate", "message_bytes_max"):
            if self.publish_limiter is not None:  # who waits there asks the new one, in a turn of its own
                asyncio.get_running_loop().call_soon(self.publish_limiter.open)
            self.publish_limiter = publish_rate_limiter(policies, clock, limiters.publish)
        if _differ(former, policies, "dispatch_rate", "subscription_dispatch_rate"):
            self.dispatch_limits = dispatch_limits(policies, clock, limiters.dispatch)


def _differ(former: TopicPolicies, policies: TopicPolicies, *fields: str) -> bool:
    return any(getattr(former, name) != getattr(policies, name) for name in fields)
