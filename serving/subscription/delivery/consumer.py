"""One consumer: what its session calls, and what its dispatcher counts.

Permits are messages that the client has asked for (FLOW) and not been sent; the last batch may take them below
zero. A consumer is *ready* when it has permits, its connection takes bytes, and (shared subscriptions) it does
not hold too many messages without acknowledging: dispatch waits then, nothing is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from quire.runtime.errors import NotFound
from quire.serving.model.ports import ConsumerPort, Position
from quire.serving.model.request import Done
from quire.serving.subscription.cursor.entry_set import EntrySet
from quire.serving.subscription.delivery.meter import Meter
from quire.wire import pulsar_pb2 as pb


class Dealer(Protocol):
    """The subscription, as its consumers see it, and those that come to it by one of them."""

    @property
    def mark_delete(self) -> Position: ...

    def tell_end(self) -> None:
        """The topic takes no more messages: tell the consumers, if all is acknowledged."""
        ...

    async def backlog(self) -> int:
        """Messages that are still to be acknowledged."""
        ...

    async def seek(self, to: pb.MessageIdData) -> None: ...

    async def seek_time(self, time_ms: int) -> None: ...

    async def unsubscribe(self, consumer: Consumer, *, force: bool = False) -> None:
        """Delete the subscription. Raises `ConsumerBusy` when it has others than `consumer`, unless `force`."""
        ...

    def wake(self) -> None:
        """A consumer may be ready that was not."""
        ...

    def acknowledge(
        self, consumer: Consumer, ids: Iterable[pb.MessageIdData], *, cumulative: bool, done: Done | None
    ) -> None: ...

    def redeliver(self, consumer: Consumer, ids: Iterable[pb.MessageIdData]) -> None: ...

    def detach(self, consumer: Consumer) -> None:
        """It is gone."""
        ...

    def describe(self, consumer: Consumer) -> dict[str, Any]:
        """As Pulsar's consumer stats."""
        ...


class Consumer:
    """A consumer of a subscription. After `close` every call does nothing."""

    __slots__ = (
        "address",
        "arrival",
        "connected_ms",
        "consumer_id",
        "holds",
        "is_open",
        "key_ranges",
        "metadata",
        "meter",
        "name",
        "permits",
        "port",
        "priority_level",
        "subscription",
        "unacked",
        "wants_index",
    )

    def __init__(
        self,
        subscription: Dealer,
        port: ConsumerPort,
        consumer_id: int,
        name: str = "",
        priority_level: int = 0,
        *,
        arrival: int = 0,
        address: str = "",
        connected_ms: int = 0,
        metadata: Mapping[str, str] | None = None,
        key_ranges: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.subscription = subscription
        self.port = port
        self.wants_index = port.wants_index
        self.consumer_id = consumer_id
        self.name = name
        self.priority_level = priority_level
        self.arrival = arrival
        self.address = address
        self.connected_ms = connected_ms
        self.metadata = dict(metadata or {})
        self.key_ranges = tuple(key_ranges)
        """Key_Shared, sticky: the slots that it asks for, (first, last) each."""
        self.permits = 0
        self.unacked = 0
        """Messages dealt to it and not acknowledged."""
        self.holds = EntrySet()
        """Shared and Key_Shared subscriptions: the entries dealt to it and neither acknowledged nor given back."""
        self.meter = Meter()
        self.is_open = True

    @property
    def is_ready(self) -> bool:
        """Whether it can be dealt something now."""
        return self.permits > 0 and self.port.writable()

    def flow(self, permits: int) -> None:
        """FLOW: the client has room for `permits` more messages."""
        if self.is_open:
            self.permits += permits
            self.subscription.wake()

    def ack(
        self, ids: Iterable[pb.MessageIdData], *, cumulative: bool = False, done: Done | None = None
    ) -> None:
        """ACK. Give `done` only when a request id came: it is called when the acknowledgement is durable."""
        if self.is_open:
            self.subscription.acknowledge(self, ids, cumulative=cumulative, done=done)
        elif done is not None:
            done(NotFound("the consumer is closed"))

    def redeliver(self, ids: Iterable[pb.MessageIdData] = ()) -> None:
        """REDELIVER_UNACKNOWLEDGED_MESSAGES: deliver these again, or (without ids) all that it holds."""
        if self.is_open:
            self.subscription.redeliver(self, ids)

    def resumed(self) -> None:
        """The connection's write buffer has drained."""
        if self.is_open:
            self.subscription.wake()

    def close(self) -> None:
        """CLOSE_CONSUMER came, or the connection is gone. Calls nothing on its port."""
        if self.is_open:
            self.is_open = False
            self.subscription.detach(self)

    def stats(self) -> dict[str, Any]:
        """As Pulsar's consumer stats."""
        return self.subscription.describe(self)
