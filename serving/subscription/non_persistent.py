"""Subscriptions of a topic that keeps nothing: whoever has permits gets the message, else it is dropped and counted.

The dispatchers are the same as everywhere. What differs is that each block is over when it was offered: the rest of it
counts as dropped and all of it as acknowledged, so there is no backlog, no redelivery and no state to write. A
subscription is remembered, without consumers too, until its topic is unloaded or somebody unsubscribes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quire.runtime.clock import Clock
from quire.serving.model.ports import NotAllowed, Position, TopicPort
from quire.serving.model.positions import preceding
from quire.serving.model.request import Done, SubscribeRequest
from quire.serving.subscription.cursor.cursor import Cursor, CursorKey
from quire.serving.subscription.cursor.cursor_store import CursorStore
from quire.serving.subscription.delivery.consumer import Consumer
from quire.serving.subscription.delivery.delivery import BlockView
from quire.serving.subscription.delivery.meter import Meter
from quire.serving.subscription.subscription import Subscription
from quire.serving.subscription.subscriptions import Subscriptions
from quire.wire import pulsar_pb2 as pb


class NonPersistentSubscription(Subscription):
    is_remembered = True
    """It stays without consumers: a durable one, as far as there is such a thing here."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.drops = Meter()

    @property
    def is_durable(self) -> bool:
        return self.is_remembered

    def confirmed(self, view: BlockView) -> None:
        """Deal what consumers can take of the block now; the rest is lost to this subscription."""
        header = view.header
        messages, before = view.messages(0, view.count), self.meter.messages_out
        if header.first_entry == 0:
            self.dispatcher.skip_to(Position(header.ledger_id, 0))
        if self.dispatcher.wanted() is not None and not (self._limiter and not self._limiter.may_deal()):
            self._deal(view)
        self.dispatcher.acknowledge(
            header.ledger_id, range(header.first_entry, header.first_entry + header.entry_count)
        )
        self._deliver()
        dropped = messages - (self.meter.messages_out - before)
        if dropped:
            self.drops.count(dropped, 0, redelivered=False)

    def wake(self) -> None:
        """There is nothing to be read for whoever becomes ready."""

    def acknowledge(
        self, consumer: Consumer, ids: Iterable[pb.MessageIdData], *, cumulative: bool, done: Done | None
    ) -> None:
        if done is not None:
            done(None)

    def redeliver(self, consumer: Consumer, ids: Iterable[pb.MessageIdData]) -> None:
        """What was dealt is gone."""

    async def seek(self, to: pb.MessageIdData) -> None:
        raise NotAllowed(f"topic {self.topic.name} keeps nothing, so there is nothing to seek in")

    async def seek_time(self, time_ms: int) -> None:
        await self.seek(pb.MessageIdData())

    async def skip_up_to(self, position: Position) -> None:
        """There is no backlog."""

    async def backlog(self) -> int:
        return 0

    async def stats(self) -> dict[str, Any]:
        """As Pulsar's, with what was dropped."""
        dropped = self.drops.stats(self.monotonic())
        return {
            **await super().stats(),
            "msgDropRate": dropped["msgRateOut"],
            "msgDropCounter": self.drops.messages_out,
        }


class NonPersistentSubscriptions(Subscriptions):
    """All subscriptions of one topic that keeps nothing."""

    def __init__(self, topic: TopicPort, clock: Clock, partition: int = -1) -> None:
        super().__init__(topic, CursorStore(), 0, clock, partition)

    async def create(self, name: str, **_: Any) -> Subscription:
        raise NotAllowed(f"a subscription of {self._topic.name}, which keeps nothing, begins with a consumer")

    async def _make_for(self, request: SubscribeRequest) -> Subscription:
        """At the end of the topic, whatever was asked for: there is nothing before it."""
        found = self._by_name.get(request.subscription)
        if found is not None:
            return found
        key = CursorKey(self._topic.name, 0, request.subscription)
        cursor = Cursor(key, preceding(self._topic.first_position()))
        made = NonPersistentSubscription(
            self._topic, cursor, None, self._clock, self._tasks, self._partition, self._remove
        )
        made.is_remembered = request.durable
        self._by_name[made.name] = made
        return made
