"""Subscriptions of a non-persistent topic: messages that no consumer can receive are dropped and counted.

The dispatchers are the same as for persistent topics, but each block is offered only once. Its messages that no
consumer received count as dropped, and all of its messages count as acknowledged. So there is no backlog, no redelivery
and no state to write. A durable subscription exists, with or without consumers, until its topic is unloaded or a client
unsubscribes.
"""

from __future__ import annotations

from typing import Any, ClassVar

from quire.runtime.clock import Clock
from quire.serving.model.ports import NotAllowed, Position, TopicPort
from quire.serving.model.positions import preceding
from quire.serving.model.rates import Totals
from quire.serving.model.request import SubscribeRequest
from quire.serving.subscription.cursor.cursor import Cursor, CursorKey
from quire.serving.subscription.cursor.cursor_store import CursorStore
from quire.serving.subscription.delivery.delivery import BlockView
from quire.serving.subscription.delivery.meter import Meter
from quire.serving.subscription.limits import check_subscriptions
from quire.serving.subscription.pump import Pump
from quire.serving.subscription.subscription import Subscription
from quire.serving.subscription.subscriptions import Subscriptions
from quire.wire import pulsar_pb2 as pb


class NonPersistentPump(Pump):
    """Pump that dispatches the entries of each block that consumers can receive now, and drops the others."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.drops: Meter = Meter()

    def confirmed(self, view: BlockView) -> None:
        ledger_id, dispatcher = view.ledger_id, self.dispatcher
        messages, before = view.messages(0, view.count), self.meter.messages_out
        if view.first_entry == 0:
            dispatcher.skip_to(Position(ledger_id, 0))
        if dispatcher.wanted() is not None and not (self.limiter and not self.limiter.may_dispatch()):
            self._dispatch(view)
        dispatcher.acknowledge(ledger_id, range(view.first_entry, view.stop_entry))
        self._deliver()
        dropped = messages - (self.meter.messages_out - before)
        if dropped:
            self.drops.count(dropped, 0, redelivered=False)

    def wake(self) -> None:
        """Do nothing when a consumer becomes ready, because there is no backlog to read."""


class NonPersistentSubscription(Subscription):
    """Subscription that rejects seeks, because the topic stores no messages."""

    async def seek(self, to: pb.MessageIdData) -> None:
        raise NotAllowed(f"seek is not supported: topic {self.topic.name} is non-persistent")

    async def seek_time(self, time_ms: int) -> None:
        await self.seek(pb.MessageIdData())


class NonPersistentSubscriptions(Subscriptions):
    """All subscriptions of one non-persistent topic. Their cursors are not stored."""

    PUMP: ClassVar[type[Pump]] = NonPersistentPump
    SUBSCRIPTION: ClassVar[type[Subscription]] = NonPersistentSubscription

    def __init__(
        self, topic: TopicPort, clock: Clock, partition: int = -1, totals: Totals | None = None
    ) -> None:
        super().__init__(topic, CursorStore(clock, totals), 0, clock, partition)

    async def create(self, name: str, **_: Any) -> Subscription:
        raise NotAllowed(
            f"cannot create a subscription without a consumer: topic {self._topic.name} is non-persistent"
        )

    async def _make_for(self, request: SubscribeRequest) -> Subscription:
        """Create the subscription at the end of the topic, regardless of the requested start."""
        found = self._by_name.get(request.subscription)
        if found is not None:
            return found
        check_subscriptions(self._topic, self._by_name)
        key = CursorKey(self._topic.name, 0, request.subscription)
        cursor = Cursor(key, preceding(self._topic.first_position()))
        return self._add(cursor, is_durable=request.durable)
