"""Every bookie's disk is full: who publishes hears of it at once, all else goes on, and room is service again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from quire.client import EARLIEST, Client, ClientSettings, NotStorable, PublishUnknown
from quire.runtime.errors import NotFound, QuireError
from quire.serving.broker import Broker
from quire.serving.names import TopicName
from quire.serving.topic import writing
from tests.serving.conftest import BrokerHouse

TOPIC = "persistent://public/default/full"
NAME = TopicName.parse(TOPIC)
SOON_S = 5.0
"""Far less than a message waits for its receipt."""


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "ROOM_LOOK_S", 0.01)


@pytest.fixture
async def mine(broker: Broker) -> AsyncIterator[Client]:
    settings = ClientSettings(backoff_first_ms=10, backoff_max_ms=50)
    async with Client(broker.service_url, settings=settings) as made:
        yield made


def fill(house: BrokerHouse, full: bool = True) -> None:
    for bookie in house.cluster.bookies:
        bookie.is_full = full


async def publish(client: Client, numbers: range, topic: str = TOPIC) -> None:
    async with client.producer(topic) as producer:
        for number in numbers:
            await producer.send(b"%d" % number)


async def consume(client: Client, count: int, subscription: str) -> list[int]:
    """Read and acknowledge so many, from the earliest on for a new subscription."""
    found = []
    async with client.consumer(TOPIC, subscription, start=EARLIEST) as consumer:
        async with asyncio.timeout(60):
            while len(found) < count:
                message = await consumer.receive()
                found.append(int(message.payload))
                await consumer.ack(message)
    return found


async def backlog(broker: Broker, subscription: str) -> int:
    return int((await broker.admin.statistics.stats(NAME)).subscriptions[subscription].msg_backlog)


async def published_again(client: Client, payload: bytes) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                async with client.producer(TOPIC) as producer:
                    await producer.send(payload)
                return
            except NotStorable:
                await asyncio.sleep(0.01)


async def test_who_publishes_hears_of_it_at_once(house: BrokerHouse, broker: Broker, mine: Client) -> None:
    async with mine.producer(TOPIC) as producer:
        await producer.send(b"0")
        fill(house)
        with pytest.raises(PublishUnknown, match="accepts no messages now: the disk is full"):
            await asyncio.wait_for(producer.send(b"1"), SOON_S)
        for topic in (TOPIC, f"{TOPIC}-new"):
            with pytest.raises(NotStorable, match=f"{topic} accepts no messages now: the disk is full"):
                await asyncio.wait_for(mine.producer(topic).start(), SOON_S)
        fill(house, False)
        await producer.send(b"2")  # the same producer, attached again by itself
    assert await consume(mine, 2, "s") == [0, 2]


async def test_reading_acknowledging_subscribing_and_deleting_go_on(
    house: BrokerHouse, broker: Broker, mine: Client
) -> None:
    await publish(mine, range(50))
    await publish(mine, range(3), f"{TOPIC}-2")
    fill(house)
    assert await consume(mine, 20, "first") == list(range(20))
    assert await consume(mine, 50, "second") == list(range(50))
    await broker.registry.unload(NAME)
    assert await consume(mine, 30, "first") == list(range(20, 50))
    topic = await broker.registry.open_persistent(NAME)
    compaction = topic.log.compaction
    await asyncio.wait([compaction.start(topic.subscriptions)])
    assert "cannot be compacted now: the disk is full" in compaction.error


async def test_a_restart_on_full_disks_loses_nothing_and_room_is_service_again(
    house: BrokerHouse, broker: Broker, mine: Client
) -> None:
    await publish(mine, range(50))
    fill(house)
    assert await consume(mine, 20, "s") == list(range(20))
    await house.kill(broker)
    broker = await house.start()
    assert await consume(mine, 30, "s") == list(range(20, 50))
    await house.stop(broker)
    broker = await house.start()
    assert await backlog(broker, "s") == 0
    with pytest.raises(QuireError, match="the disk is full"):
        await publish(mine, range(1))
    fill(house, False)
    await published_again(mine, b"50")
    assert await consume(mine, 1, "s") == [50]


async def test_topics_are_deleted_and_made_on_full_disks(
    house: BrokerHouse, broker: Broker, mine: Client
) -> None:
    await publish(mine, range(5))
    await consume(mine, 2, "s")
    fill(house)
    await broker.admin.topics.delete(NAME, force=True)
    with pytest.raises(NotFound):
        await broker.admin.statistics.stats(NAME)
    for bookie in house.cluster.bookies:
        assert all(
            ledger.is_deleted
            for ledger in bookie.ledgers.values()
            if ledger.blocks and len(ledger.blocks) > 4
        )
    fill(house, False)
    await publish(mine, range(7, 9))
    assert await consume(mine, 2, "s") == [7, 8]


async def test_a_topic_that_waits_for_room_is_rolled_and_unloaded_as_any(
    house: BrokerHouse, broker: Broker, mine: Client
) -> None:
    await publish(mine, range(5))
    await broker.registry.unload(NAME)
    fill(house)
    topic = await broker.registry.open_persistent(NAME)
    rolling = topic.log.writing._roll()
    assert rolling is not None
    await rolling
    await broker.registry.unload(NAME)
    topic = await broker.registry.open_persistent(NAME)
    fill(house, False)
    await published_again(mine, b"5")
    assert topic is await broker.registry.open_persistent(NAME)
    assert await consume(mine, 6, "s") == list(range(6))
