"""A topic, its subscriptions and their log in memory, for tests of subscriptions."""

from __future__ import annotations

import asyncio

from quire.runtime.clock import ManualClock
from quire.serving.subscription.subscriptions import (
    Consumer,
    CursorStore,
    SubscribeRequest,
    SubscriptionKind,
    Subscriptions,
)
from tests.serving.subscription.fakes import FakeLog, FakePort, FakeTopic

EXCLUSIVE, SHARED, FAILOVER = SubscriptionKind.EXCLUSIVE, SubscriptionKind.SHARED, SubscriptionKind.FAILOVER


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
    ) -> tuple[Consumer, FakePort]:
        port = FakePort()
        more = {"initial_earliest": True, "consumer_id": 3, **more}
        request = SubscribeRequest(name, kind, **more)  # type: ignore[arg-type]
        made = await self.subscriptions.subscribe(request, port)
        made.flow(permits)
        return made, port

    async def backlog(self, name: str = "s") -> int:
        found = self.subscriptions.get(name)
        assert found is not None
        return (await found.stats.describe())["msgBacklog"]


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)
