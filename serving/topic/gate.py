"""What a topic's policies ask of each run of SENDs before it is taken: its rate, and the size of its messages.

A topic without such policies, on a broker without limits of its own, has no gate, so what is off costs one look at an
attribute per run. Producers that come too fast wait at a throttle, the topic's or the broker's, one behind the other
over all connections, and are called back one by one as the rate allows; what they sent meanwhile waits with their
sessions, which stop reading when it gets too much.

When other limits hold, the former gate is opened (`regated`), and everybody asks the new one.
"""

from __future__ import annotations

import asyncio

from quire.runtime.clock import Clock
from quire.serving.model.ports import Done
from quire.serving.policy.resolved import TopicPolicies
from quire.serving.policy.throttle import Throttle, publish_throttle


class Gate:
    """See the top of the file. `message_bytes_max` 0: any size that a frame can have."""

    def __init__(self, own: Throttle | None, brokers: Throttle | None, message_bytes_max: int) -> None:
        self._own = own
        self._throttles = tuple(one for one in (own, brokers) if one is not None)
        self.waits = 0
        """How often a producer had to wait."""
        self.message_bytes_max = message_bytes_max

    def is_open(self) -> bool:
        """A run may pass now. Else `wait`."""
        return all(throttle.is_open() for throttle in self._throttles)

    def wait(self, resume: Done) -> None:
        """Call `resume` when a run may pass, behind all who waited before."""
        self.waits += 1
        closed = next((one for one in self._throttles if not one.is_open()), self._throttles[0])
        closed.wait(resume)

    def passed(self, messages: int, byte_count: int) -> None:
        """A run was taken."""
        for throttle in self._throttles:
            throttle.passed(messages, byte_count)

    def open(self) -> None:
        """Other policies hold, or the topic is closed: nobody waits for its rate any more."""
        if self._own is not None:
            self._own.open()


def make_gate(policies: TopicPolicies, clock: Clock, brokers: Throttle | None = None) -> Gate | None:
    """None where the policies limit nothing, and neither does the broker."""
    own = publish_throttle(policies.publish_rate, clock)
    if own is None and brokers is None and policies.message_bytes_max <= 0:
        return None
    return Gate(own, brokers, policies.message_bytes_max)


def regated(
    gate: Gate | None,
    former: TopicPolicies,
    policies: TopicPolicies,
    clock: Clock,
    brokers: Throttle | None = None,
) -> Gate | None:
    """The gate for `policies`: the same when nothing that it knows has changed; who waited at another one asks anew."""
    if (former.publish_rate, former.message_bytes_max) == (policies.publish_rate, policies.message_bytes_max):
        return gate
    if gate is not None:
        asyncio.get_running_loop().call_soon(gate.open)
    return make_gate(policies, clock, brokers)
