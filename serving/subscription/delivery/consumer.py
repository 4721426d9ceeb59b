"""Consumer record: permits, unacknowledged messages and statistics of one consumer. Performs no I/O.

Permits are the number of messages that the client requested (FLOW) and the broker has not sent yet; the last batch may
make it negative. A consumer is *ready* when it has permits and its connection is writable. Shared and Key_Shared
subscriptions also require that it does not hold too many unacknowledged messages (`pending_acks.can_take`). While it is
not ready, its messages wait; no message is dropped.
"""

from __future__ import annotations

from typing import Final

from quire.runtime.errors import NotFound
from quire.runtime.limits import UNACKED_MESSAGES_MAX
from quire.serving.model.ports import ConsumerPort
from quire.serving.model.request import SubscribeRequest
from quire.serving.policy.resolved import TopicPolicies
from quire.serving.subscription.cursor.entry_set import EntrySet
from quire.serving.subscription.delivery.meter import Meter

UNLIMITED: Final = 1 << 62


class Consumer:
    """Consumer of a subscription, as its pump and its dispatcher use it."""

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
        "unacked",
        "unacked_max",
        "wants_index",
    )

    def __init__(
        self, port: ConsumerPort, request: SubscribeRequest, arrival: int = 0, connected_ms: int = 0
    ) -> None:
        self.port = port
        self.wants_index = port.wants_index
        self.request = request
        self.consumer_id = request.consumer_id
        self.name = request.consumer_name
        self.priority_level = request.priority_level
        self.arrival = arrival
        """Number in the order in which consumers attached to the subscription; the first is 1."""
        self.connected_ms = connected_ms
        self.permits = 0
        self.unacked = 0
        """Number of messages sent to the consumer and not acknowledged."""
        self.unacked_max = UNACKED_MESSAGES_MAX
        """Number of unacknowledged messages at which a shared subscription stops sending to this consumer."""
        self.pending_acks = EntrySet()
        """Entries sent to the consumer, and not yet acknowledged or redelivered.

        Only Shared and Key_Shared subscriptions use it.
        """
        self.meter = Meter()
        self.is_open = True
        """False once the consumer is detached: its pump ignores later commands for it."""

    @property
    def is_ready(self) -> bool:
        """True if the consumer has permits and its connection is writable."""
        return self.permits > 0 and self.port.writable()

    def apply_policies(self, policies: TopicPolicies) -> bool:
        """Apply changed policies. Return whether a limit changed."""
        former, self.unacked_max = self.unacked_max, policies.unacked_messages_max or UNLIMITED
        return former != self.unacked_max


def consumer_closed() -> NotFound:
    """Return the error for a request of a closed consumer."""
    return NotFound("the consumer is closed")
