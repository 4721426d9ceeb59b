"""Subscriptions of a topic that keeps nothing: whoever has permits gets the message, else it is dropped and counted.

The dispatchers are the same as everywhere. What differs is that each block is over when it was offered: the rest of it
counts as dropped and all of it as acknowledged, so there is no backlog, no redelivery and no state to write. A
subscription is remembered, without consumers too, until its topic is unloaded or somebody unsubscribes.
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
from quire.serving.subscription.pump import Pump
from quire.serving.subscription.subscription import Subscription
from quire.serving.subscription.subscriptions import Subscriptions
from quire.wire import pulsar_pb2 as pb


class NonPersistentPump(Pump):
    """Dispatches what consumers can take of each block as it comes; the rest is lost to this subscription."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.drops = Meter()

    def confirmed(self, view: BlockView) -> None:
        ledger_id, dispatcher = view.ledger_id, self.dispatcher
        messages, before = view.messages(0, view.count), self.meter.messages_out
        if view.first_entry == 0:
            dispatcher.skip_to(Position(ledger_id, 0))
        if dispatcher.wanted() is not None and not (self._limiter and not self._limiter.may_dispatch()):
            self._dispatch(view)
        dispatcher.acknowledge(ledger_id, range(view.first_entry, view.stop_entry))
        self._deliver()
        dropped = messages - (self.meter.messages_out - before)
        if dropped:
            self.drops.count(dropped, 0, redelivered=False)

    def wake(self) -> None:
        """There is nothing to be read for whoever becomes ready."""

    def stats(self, now_s: float) -> dict[str, float]:
        """With what was dropped, as Pulsar has it."""
        dropped = self.drops.stats(now_s)["msgRateOut"]
        return {
            **super().stats(now_s),
            "msgDropRate": dropped,
            "msgDropCounter": self.drops.messages_out,
        }


class NonPersistentSubscription(Subscription):
    """There is nothing to seek in."""

    async def seek(self, to: pb.MessageIdData) -> None:
        raise NotAllowed(f"topic {self.topic.name} keeps nothing, so there is nothing to seek in")

    async def seek_time(self, time_ms: int) -> None:
        await self.seek(pb.MessageIdData())


class NonPersistentSubscriptions(Subscriptions):
    """All subscriptions of one topic that keeps nothing. Their cursors are kept nowhere."""

    PUMP: ClassVar[type[Pump]] = NonPersistentPump
    SUBSCRIPTION: ClassVar[type[Subscription]] = NonPersistentSubscription

    def __init__(
        self, topic: TopicPort, clock: Clock, partition: int = -1, totals: Totals | None = None
    ) -> None:
        super().__init__(topic, CursorStore(clock, totals), 0, clock, partition)

    async def create(self, name: str, **_: Any) -> Subscription:
        raise NotAllowed(f"a subscription of {self._topic.name}, which keeps nothing, begins with a consumer")

    async def _make_for(self, request: SubscribeRequest) -> Subscription:
        """At the end of the topic, whatever was asked for: there is nothing before it."""
        found = self._by_name.get(request.subscription)
        if found is not None:
            return found
        key = CursorKey(self._topic.name, 0, request.subscription)
        cursor = Cursor(key, preceding(self._topic.first_position()))
        return self._add(cursor, is_durable=request.durable)
