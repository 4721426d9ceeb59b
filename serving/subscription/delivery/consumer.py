"""One consumer: what its session calls, and what its dispatcher counts.

Permits are messages that the client has asked for (FLOW) and not been sent; the last batch may take them below
zero. A consumer is *ready* when it has permits, its connection takes bytes, and (shared subscriptions) it does
not hold too many messages without acknowledging: dispatch waits then, nothing is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from quire.runtime.errors import NotFound
from quire.runtime.limits import UNACKED_MESSAGES_MAX
from quire.serving.model.ports import ConsumerPort
from quire.serving.model.request import Done, SubscribeRequest
from quire.serving.policy.resolved import TopicPolicies
from quire.serving.subscription.cursor.entry_set import EntrySet
from quire.serving.subscription.delivery.meter import Meter
from quire.wire import pulsar_pb2 as pb

UNLIMITED: Final = 1 << 62

if TYPE_CHECKING:
    from quire.serving.subscription.subscription import Subscription


class Consumer:
    """A consumer of a subscription. After `close` every call does nothing."""

    __slots__ = (
        "arrival",
        "connected_ms",
        "consumer_id",
        "is_open",
        "meter",
        "name",
        "pending_acks",
        "permits",
        "port",
        "priority_level",
        "request",
        "subscription",
        "unacked",
        "unacked_max",
        "wants_index",
    )

    def __init__(
        self,
        subscription: Subscription,
        port: ConsumerPort,
        request: SubscribeRequest,
        arrival: int = 0,
        connected_ms: int = 0,
    ) -> None:
        self.subscription = subscription
        self.port = port
        self.wants_index = port.wants_index
        self.request = request
        self.consumer_id = request.consumer_id
        self.name = request.consumer_name
        self.priority_level = request.priority_level
        self.arrival = arrival
        """Which of the subscription's consumers it is, counted from 1 as they come."""
        self.connected_ms = connected_ms
        self.permits = 0
        self.unacked = 0
        """Messages sent to it and not acknowledged."""
        self.unacked_max = UNACKED_MESSAGES_MAX
        """With so many a shared subscription sends it nothing more."""
        self.pending_acks = EntrySet()
        """Shared and Key_Shared subscriptions: the entries sent to it and neither acknowledged nor given back."""
        self.meter = Meter()
        self.is_open = True

    @property
    def is_ready(self) -> bool:
        """Whether it can be sent something now."""
        return self.permits > 0 and self.port.writable()

    def heed(self, policies: TopicPolicies) -> bool:
        """These hold now. Whether that changes anything."""
        former, self.unacked_max = self.unacked_max, policies.unacked_messages_max or UNLIMITED
        return former != self.unacked_max

    def flow(self, permits: int) -> None:
        """FLOW: the client has room for `permits` more messages."""
        if self.is_open:
            self.permits += permits
            self.subscription.pump.wake()

    def ack(
        self, ids: Iterable[pb.MessageIdData], *, cumulative: bool = False, done: Done | None = None
    ) -> None:
        """ACK. Give `done` only when a request id came: it is called when the acknowledgement is durable."""
        if self.is_open:
            self.subscription.pump.acknowledge(self, ids, cumulative=cumulative, done=done)
        elif done is not None:
            done(NotFound("the consumer is closed"))

    def redeliver(self, ids: Iterable[pb.MessageIdData] = ()) -> None:
        """REDELIVER_UNACKNOWLEDGED_MESSAGES: deliver these again, or (without ids) all that it holds."""
        if self.is_open:
            self.subscription.pump.redeliver(self, ids)

    def resumed(self) -> None:
        """The connection's write buffer has drained."""
        if self.is_open:
            self.subscription.pump.wake()

    def close(self) -> None:
        """CLOSE_CONSUMER came, or the connection is gone. Calls nothing on its port."""
        if self.is_open:
            self.is_open = False
            self.subscription.detach(self)

    def stats(self) -> dict[str, Any]:
        """As Pulsar's consumer stats."""
        return self.subscription.stats.of_consumer(self)
