"""Brokers for tests: in this process, on a free port, over bookies in memory.

`broker` is one whole broker; `cluster` is what it stands on and outlives it, so that a test can start another on the
same data. The stock client blocks, so it is used in threads: `await in_thread(work)`.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TypeVar

import pulsar
import pytest

from quire.runtime.clock import Clock, SystemClock
from quire.security.security import Security
from quire.serving.broker import Broker
from quire.serving.names import TopicName
from quire.serving.settings import BrokerSettings
from quire.serving.subscription.subscription import Subscription
from quire.serving.topic.services import Services
from quire.testing.cluster import MemoryCluster
from quire.testing.objects import MemoryObjectStore
from quire.testing.place import TrustedPlace
from quire.tiering.archive import Archive

T = TypeVar("T")


class AdvancedClock(SystemClock):
    """The system's clock, as far ahead as a test wants it."""

    ahead_s = 0.0

    def now_ms(self) -> int:
        return super().now_ms() + int(1000 * self.ahead_s)

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s


NAME = TopicName.parse("topic")
QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


class BrokerHouse:
    """One cluster in memory, and the brokers that are started on it one after the other."""

    def __init__(self) -> None:
        self.cluster = MemoryCluster(3)
        self.archive = Archive(TrustedPlace(MemoryObjectStore(), self.cluster.store), SystemClock())
        self.running: list[Broker] = []
        self.port = 0
        self.clock: Clock = SystemClock()
        self.security: Security | None = None

    async def start(self, **settings: Any) -> Broker:
        """A broker on the cluster, on the port of the one before."""
        chosen = BrokerSettings(**{"listen": f"127.0.0.1:{self.port}", **settings})
        store_ledgers = self.cluster.join()
        broker = Broker(
            Services(
                chosen, store_ledgers.store, store_ledgers, self.archive, self.clock, security=self.security
            )
        )
        await broker.start()
        self.port = int(broker.service_url.rpartition(":")[2])
        self.running.append(broker)
        return broker

    async def stop(self, broker: Broker) -> None:
        """Stop it cleanly."""
        self.running.remove(broker)
        await broker.stop()
        await broker.services.ledgers.stop()  # type: ignore[attr-defined]

    async def kill(self, broker: Broker) -> None:
        """End it as a crash would: nothing is closed, nothing more is written."""
        self.running.remove(broker)
        broker.sessions.stop_listening()
        await broker.services.ledgers.stop()  # type: ignore[attr-defined]
        for session in list(broker.sessions.connections):
            session.outbound.abort()
        if broker.offloading is not None:
            await broker.offloading.stop()
        await broker.services.tasks.stop()
        await asyncio.sleep(0)

    async def close(self) -> None:
        for broker in list(self.running):
            await self.stop(broker)


@pytest.fixture
async def house() -> AsyncIterator[BrokerHouse]:
    made = BrokerHouse()
    yield made
    await made.close()


@pytest.fixture
async def broker(house: BrokerHouse) -> Broker:
    return await house.start()


TURN_S_MAX = 1.0
"""Of the processor, for one turn of the loop: twenty times what we aim at, so that no slow machine fails a test."""


class Turns:
    """The longest turn of the running loop so far, in seconds of its thread's time on the processor.

    Waiting costs none, nor do other threads and processes: what is counted is what everybody else waited for.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0
        loop: Any = asyncio.get_running_loop()
        run_once = loop._run_once

        def timed() -> None:
            began = time.thread_time()
            run_once()
            self.longest_s = max(self.longest_s, time.thread_time() - began)

        loop._run_once = timed


@pytest.fixture
async def turns() -> AsyncIterator[Turns]:
    """Whoever takes it fails when one turn of the loop was too long. Take it first, before what is to be watched."""
    gc.collect()
    gc.freeze()  # as a server does: what earlier tests left is not to be walked in a turn
    watched = Turns()
    yield watched
    gc.unfreeze()
    assert watched.longest_s < TURN_S_MAX, f"a turn of the loop took {watched.longest_s:.2f} s"


async def look_after_topics(broker: Broker) -> None:
    """All that the broker does for its topics every few seconds, done when this returns."""
    await broker.rounds.roll_ledgers()
    before = set(broker.services.tasks._tasks)
    await broker.rounds.enforce_policies()
    await broker.rounds.unload_idle()
    begun = set(broker.services.tasks._tasks) - before
    if begun:
        await asyncio.wait(begun)


async def until_durable(subscription: Subscription) -> None:
    """Wait for all that it was told so far; what clients acknowledge without asking for an answer, say."""
    assert subscription._store is not None
    await subscription._store.save(subscription.cursor)


async def in_thread(work: Callable[[], T]) -> T:
    return await asyncio.to_thread(work)


@pytest.fixture
def clients(broker: Broker) -> Iterator[Callable[[], pulsar.Client]]:
    """Makes stock clients of the broker; they are closed behind the test."""
    made: list[pulsar.Client] = []

    def make(**options: Any) -> pulsar.Client:
        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        made.append(pulsar.Client(broker.service_url, logger=quiet, operation_timeout_seconds=10, **options))
        return made[-1]

    yield make


@pytest.fixture
async def client(clients: Callable[..., pulsar.Client]) -> AsyncIterator[pulsar.Client]:
    """One stock client; use its blocking calls through `in_thread`."""
    made = clients()
    yield made
    await in_thread(made.close)


def publish(client: pulsar.Client, numbers: range) -> None:
    producer = client.create_producer(str(NAME))
    for number in numbers:
        producer.send(b"%d" % number)
    producer.close()


def read_all(client: pulsar.Client) -> list[int]:
    reader = client.create_reader(str(NAME), pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(int(reader.read_next(10_000).data()))
    reader.close()
    return found
