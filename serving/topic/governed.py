"""What every loaded topic has, whether it keeps messages or not: a name, the policies that hold now, and counters.

Whoever acts by a policy reads one attribute. Gates and limits are made anew when their rates changed, and are None
while no rate is prescribed: a policy that is off costs nothing.
"""

from __future__ import annotations

from quire.serving.model.ports import SubscriptionsPort
from quire.serving.model.rates import Rate, Totals
from quire.serving.names import TopicName
from quire.serving.policy.resolved import TopicPolicies
from quire.serving.policy.throttle import dispatch_limits, limited_anew
from quire.serving.topic.gate import make_gate, regated
from quire.serving.topic.producers import Admission, Stage
from quire.serving.topic.services import Services


class Governed:
    """See the top of the file. `subscriptions` is set by the registry; `totals` are those of the topic's bundle."""

    subscriptions: SubscriptionsPort

    def __init__(
        self, name: TopicName, services: Services, policies: TopicPolicies, totals: Totals | None
    ) -> None:
        self.topic_name = name
        self.name = str(name)
        self.policies = policies
        self.gate = make_gate(policies, services.clock, services.throttles.publish)
        self.dispatch_limits = dispatch_limits(policies, services.clock, services.throttles)
        self.is_closed = False
        self.bytes_in = 0
        self.messages_in = 0
        self.rate_in = Rate()
        self._services = services
        self._totals = Totals() if totals is None else totals

    def takes_from(self, producer: Admission) -> bool:
        """Whether what a producer sent is published now: not while the topic is being closed, for then its client will
        send that again where the topic is next.

        Nobody outside a topic publishes to it: its session drops what it holds for one that was sent away.
        """
        if self.is_closed:
            return False
        assert producer.stage is Stage.INSIDE, (
            f"a producer that is {producer.stage.value} publishes to {self.name}"
        )
        return True

    def apply(self, policies: TopicPolicies) -> None:
        """Other policies hold from now on; but for deduplication, which needs a load."""
        former, self.policies = self.policies, policies
        clock, throttles = self._services.clock, self._services.throttles
        self.gate = regated(self.gate, former, policies, clock, throttles.publish)
        if limited_anew(former, policies):
            self.dispatch_limits = dispatch_limits(policies, clock, throttles)
        self.subscriptions.policies_changed()
