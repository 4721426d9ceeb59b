"""A topic, its subscriptions and their log in memory, for tests of subscriptions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from quire.runtime.clock import ManualClock
from quire.serving.model.ports import ConsumerPort
from quire.serving.model.request import Done
from quire.serving.model.statistics import ConsumerStats
from quire.serving.subscription.subscriptions import (
    Consumer,
    CursorStore,
    SubscribeRequest,
    Subscription,
    SubscriptionKind,
    Subscriptions,
)
from quire.wire import pulsar_pb2 as pb
from tests.serving.subscription.fakes import FakeLog, FakePort, FakeTopic

EXCLUSIVE, SHARED, FAILOVER = SubscriptionKind.EXCLUSIVE, SubscriptionKind.SHARED, SubscriptionKind.FAILOVER


class Attached:
    """A consumer, and the calls that its session makes; every other attribute is the consumer's own."""

    def __init__(self, subscription: Subscription, consumer: Consumer) -> None:
        self.subscription = subscription
        self.consumer = consumer

    def flow(self, permits: int) -> None:
        self.subscription.pump.flow(self.consumer, permits)

    def ack(
        self, ids: Iterable[pb.MessageIdData], *, cumulative: bool = False, done: Done | None = None
    ) -> None:
        self.subscription.pump.acknowledge(self.consumer, ids, cumulative=cumulative, done=done)

    def redeliver(self, ids: Iterable[pb.MessageIdData] = ()) -> None:
        self.subscription.pump.redeliver(self.consumer, ids)

    def resumed(self) -> None:
        if self.consumer.is_open:
            self.subscription.pump.wake_soon()

    def close(self) -> None:
        self.subscription.detach(self.consumer)

    def stats(self) -> ConsumerStats:
        return self.subscription.stats.of_consumer(self.consumer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.consumer, name)


async def attach(subscriptions: Subscriptions, request: SubscribeRequest, port: ConsumerPort) -> Attached:
    return Attached(*await subscriptions.subscribe(request, port))


class Stand:
    """A topic, its subscriptions, and the log behind them; `restart` keeps only what is durable."""

    def __init__(self) -> None:
        self.topic = FakeTopic()
        self.log = FakeLog()
        self.clock = ManualClock()
        self.start()

    def start(self) -> None:
        self.store = CursorStore()
        for record in self.log.durable:
            self.store.apply(record)
        self.log.records = list(self.log.durable)
        self.store.attach(self.log)
        self.subscriptions = Subscriptions(self.topic, self.store, 7, self.clock)
        self.topic.listener = self.subscriptions.confirmed
        self.subscriptions.load()

    restart = start

    async def consumer(
        self, kind: SubscriptionKind = EXCLUSIVE, name: str = "s", permits: int = 1000, **more: object
    ) -> tuple[Attached, FakePort]:
        port = FakePort()
        more = {"initial_earliest": True, "consumer_id": 3, **more}
        request = SubscribeRequest(name, kind, **more)  # type: ignore[arg-type]
        made = await attach(self.subscriptions, request, port)
        made.flow(permits)
        return made, port

    async def backlog(self, name: str = "s") -> int:
        found = self.subscriptions.get(name)
        assert found is not None
        return (await found.stats.describe()).msg_backlog


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)
