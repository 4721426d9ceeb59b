"""What every loaded topic has, whether it keeps messages or not: a name, the policies that hold now, and counters.

Whoever acts by a policy reads one attribute. Limiters are made anew when what they limit has changed, and are None
while nothing is limited: a policy that is off costs nothing.
"""

from __future__ import annotations

import asyncio
from typing import Final

from quire.serving.model.ports import SubscriptionsPort
from quire.serving.model.rates import Rate, Totals
from quire.serving.names import TopicName
from quire.serving.policy.rate_limiter import dispatch_limits, publish_rate_limiter
from quire.serving.policy.resolved import TopicPolicies
from quire.serving.topic.lifecycle.states import OPEN, TRANSITIONS, Event, State
from quire.serving.topic.producers import Admission, Stage
from quire.serving.topic.services import Services

SERVING: Final = State.SERVING
"""To look it up at the class costs as much as the rest of `takes_from`."""


class Governed:
    """`subscriptions` is set by the registry; `totals` are those of the topic's bundle."""

    subscriptions: SubscriptionsPort

    def __init__(
        self, name: TopicName, services: Services, policies: TopicPolicies, totals: Totals | None
    ) -> None:
        self.topic_name = name
        self.name = str(name)
        self.policies = policies
        self.publish_limiter = publish_rate_limiter(policies, services.clock, services.limiters.publish)
        """What producers wait at whose rate is spent, and where there is a limit on the size of messages."""
        self.dispatch_limits = dispatch_limits(policies, services.clock, services.limiters.dispatch)
        self.state = State.LOADING
        self.bytes_in = 0
        self.messages_in = 0
        self.rate_in = Rate()
        self._services = services
        self._totals = Totals() if totals is None else totals

    @property
    def is_closed(self) -> bool:
        """Nobody gets in any more, and nothing is taken."""
        return self.state not in OPEN

    def enter(self, event: Event) -> None:
        self.state = TRANSITIONS.next(self.state, event)

    def takes_from(self, producer: Admission) -> bool:
        """Whether what a producer sent is published now: not while the topic is being closed, for then its client will
        send that again where the topic is next.

        Nobody outside a topic publishes to it: its session drops what it holds for one that was sent away.
        """
        if self.state is not SERVING:
            return False
        assert producer.stage is Stage.INSIDE, (
            f"a producer that is {producer.stage.value} publishes to {self.name}"
        )
        return True

    def apply(self, policies: TopicPolicies) -> None:
        """Other policies hold from now on; but for deduplication, which needs a load."""
        former, self.policies = self.policies, policies
        clock, limiters = self._services.clock, self._services.limiters
        if _differ(former, policies, "publish_rate", "message_bytes_max"):
            if self.publish_limiter is not None:  # who waits there asks the new one, in a turn of its own
                asyncio.get_running_loop().call_soon(self.publish_limiter.open)
            self.publish_limiter = publish_rate_limiter(policies, clock, limiters.publish)
        if _differ(former, policies, "dispatch_rate", "subscription_dispatch_rate"):
            self.dispatch_limits = dispatch_limits(policies, clock, limiters.dispatch)
        self.subscriptions.policies_changed()


def _differ(former: TopicPolicies, policies: TopicPolicies, *fields: str) -> bool:
    return any(getattr(former, name) != getattr(policies, name) for name in fields)
