"""Delayed delivery with a stock client: exact, across restarts, by policy, and only where nothing is in order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pulsar
import pytest
from msgspec.structs import replace

from quire.metadata.records import DelayedDeliveryPolicy
from quire.serving.broker import Broker
from quire.serving.names import TopicName
from quire.serving.registry.topic_loader import subscriptions_of
from quire.serving.subscription.delayed import delayed_delivery
from quire.serving.subscription.subscription import Subscription
from tests.serving.conftest import BrokerHouse, in_thread, until_durable

NAME = TopicName.parse("later")
QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
SHARED, KEY_SHARED = pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared
HOUR_MS = 3_600_000


class Peer:
    """A client with a producer of the topic."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.client = pulsar.Client(broker.service_url, logger=QUIET, operation_timeout_seconds=10)
        self.producer = self.client.create_producer(str(NAME))

    def subscribe(self, kind: Any, name: str = "s", **more: Any) -> pulsar.Consumer:
        return self.client.subscribe(
            str(NAME), name, kind, initial_position=pulsar.InitialPosition.Earliest, **more
        )

    def send(self, payload: bytes, deliver_at_ms: int | None = None, key: str | None = None) -> None:
        self.producer.send(payload, deliver_at=deliver_at_ms, partition_key=key)

    @property
    def subscription(self) -> Subscription:
        topic = self.broker.registry.find(NAME)
        assert topic is not None
        (found,) = subscriptions_of(topic)
        return found

    async def settled(self, backlog: int, delayed: int) -> None:
        """Wait until the client has sent its acknowledgements, which it gathers for a tenth of a second."""
        async with asyncio.timeout(60):
            while (await self.subscription.stats.backlog(), await self.delayed()) != (backlog, delayed):  # noqa: ASYNC110  it is the client's
                await asyncio.sleep(0.01)

    async def delayed(self) -> int:
        return int((await self.subscription.stats.describe()).msg_delayed)


@pytest.fixture
async def peer(broker: Broker) -> AsyncIterator[Peer]:
    made = await in_thread(lambda: Peer(broker))
    yield made
    await in_thread(made.client.close)


def receive(consumer: pulsar.Consumer, count: int) -> list[tuple[bytes, int]]:
    """(payload, when it came in ms), each acknowledged."""
    found = []
    for _ in range(count):
        message = consumer.receive(10_000)
        found.append((message.data(), time.time_ns() // 1_000_000))
        consumer.acknowledge(message)
    return found


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
async def test_a_message_comes_at_its_time_and_never_before(peer: Peer, kind: Any) -> None:
    """How late is measured in bench/delayed.py."""

    def run() -> tuple[list[tuple[bytes, int]], dict[bytes, int]]:
        consumer = peer.subscribe(kind)
        now_ms = time.time_ns() // 1_000_000
        times = {b"c": now_ms + 900, b"a": now_ms + 300, b"b": now_ms + 600}
        for payload, at_ms in times.items():
            peer.send(payload, at_ms, key=payload.decode())
        peer.send(b"now", key="n")
        peer.send(b"past", now_ms - 5, key="p")
        return receive(consumer, 5), times

    found, times = await in_thread(run)
    assert [payload for payload, _ in found] == [b"now", b"past", b"a", b"b", b"c"]
    assert all(came_ms >= times[payload] for payload, came_ms in found if payload in times)
    await peer.settled(backlog=0, delayed=0)


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Failover])
async def test_order_comes_before_time_where_one_consumer_has_all(peer: Peer, kind: Any) -> None:
    def run() -> list[bytes]:
        consumer = peer.subscribe(kind)
        peer.send(b"later", time.time_ns() // 1_000_000 + HOUR_MS)
        peer.send(b"now")
        return [payload for payload, _ in receive(consumer, 2)]

    assert await in_thread(run) == [b"later", b"now"]


@pytest.mark.parametrize("surveyed", [2, delayed_delivery.SNAPSHOT_ENTRIES])
async def test_what_is_delayed_counts_and_waits_again_after_a_restart(
    house: BrokerHouse, monkeypatch: pytest.MonkeyPatch, surveyed: int
) -> None:
    """Whether it was written down, or has to be read again."""
    monkeypatch.setattr(delayed_delivery, "SNAPSHOT_ENTRIES", surveyed)
    first = await house.start()
    peer = await in_thread(lambda: Peer(first))
    at_ms = time.time_ns() // 1_000_000 + 1500

    def begin() -> None:
        consumer = peer.subscribe(SHARED)
        for number in range(20):
            peer.send(b"%d" % number, at_ms + number if number % 2 else None)
        assert {payload for payload, _ in receive(consumer, 10)} == {b"%d" % n for n in range(0, 20, 2)}

    await in_thread(begin)
    await peer.settled(backlog=10, delayed=10)
    await until_durable(peer.subscription)
    await house.kill(first)
    await in_thread(peer.client.shutdown)  # `close` would tell that its broker is dead
    again = await house.start()
    peer = await in_thread(lambda: Peer(again))
    consumer = await in_thread(lambda: peer.subscribe(SHARED))
    assert bool(list(peer.subscription.cursor.delayed_snapshot)) == (surveyed < 20)
    found = await in_thread(lambda: receive(consumer, 10))
    assert sorted(int(payload) for payload, _ in found) == list(range(1, 20, 2))
    assert min(came_ms for _, came_ms in found) >= at_ms
    await peer.settled(backlog=0, delayed=0)
    await in_thread(peer.client.close)


async def test_delays_are_turned_off_under_waiting_messages(peer: Peer) -> None:
    """All that waits is delivered at once, and nothing waits any more."""

    def begin() -> pulsar.Consumer:
        consumer = peer.subscribe(SHARED)
        for number in range(5):
            peer.send(b"%d" % number, time.time_ns() // 1_000_000 + HOUR_MS)
        peer.send(b"now")
        assert receive(consumer, 1)[0][0] == b"now"
        return consumer

    consumer = await in_thread(begin)
    assert await peer.delayed() == 5
    off = DelayedDeliveryPolicy(active=False)
    await peer.broker.admin.policies.change_topic(NAME, lambda old: replace(old, delayed_delivery=off))
    found = await in_thread(lambda: receive(consumer, 5))
    assert sorted(payload for payload, _ in found) == [b"%d" % n for n in range(5)]
    await in_thread(lambda: peer.send(b"late", time.time_ns() // 1_000_000 + HOUR_MS))
    assert (await in_thread(lambda: receive(consumer, 1)))[0][0] == b"late"


async def test_what_is_delayed_can_be_skipped_and_is_dispatched_to_whoever_comes(peer: Peer) -> None:
    def begin() -> pulsar.Consumer:
        consumer = peer.subscribe(SHARED)
        for number in range(4):
            peer.send(b"%d" % number, time.time_ns() // 1_000_000 + HOUR_MS)
        return consumer

    consumer = await in_thread(begin)
    await peer.settled(backlog=4, delayed=4)
    await peer.subscription.skip(None)
    assert await peer.delayed() == 0 and await peer.subscription.stats.backlog() == 0
    at_ms = time.time_ns() // 1_000_000 + 600
    await in_thread(lambda: peer.send(b"mine", at_ms))
    await in_thread(consumer.close)
    assert await peer.delayed() == 0, "nobody is there who could get it"
    other = await in_thread(lambda: peer.subscribe(SHARED))
    ((payload, came_ms),) = await in_thread(lambda: receive(other, 1))
    assert payload == b"mine" and came_ms >= at_ms
