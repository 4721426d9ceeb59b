"""Seeks and readers on a real broker: where they begin, that they end, and that they leave nothing behind."""

from __future__ import annotations

import asyncio

import pytest

from quire.client import EARLIEST, LATEST, Client, ClientSettings, Message, MessageId, ProducerSettings
from quire.serving.broker import Broker
from quire.serving.names import TopicName
from tests.serving.conftest import BrokerHouse

TOPIC = "persistent://public/default/t"
NAME = TopicName.parse(TOPIC)
FIVE_A_BATCH = ProducerSettings(batch_messages_max=5, batch_delay_ms=5_000)


async def published(client: Client, count: int) -> list[MessageId]:
    """`count` numbered messages, five in a batch."""
    async with client.producer("t", settings=FIVE_A_BATCH) as producer:
        taken = [producer.send_nowait(b"%d" % i) for i in range(count)]
        await producer.flush()
        return [(await one).message_id for one in taken]


def numbers(messages: list[Message]) -> list[int]:
    return [int(one.payload or b"") for one in messages]


@pytest.mark.parametrize("by_text", [False, True])
async def test_an_operators_reset_shows_what_a_seek_into_a_batch_left_out(
    real: Broker, ours: Client, by_text: bool
) -> None:
    ids = await published(ours, 5)
    to = MessageId.parse(str(ids[3])) if by_text else ids[3]
    async with ours.consumer("t", "s", start=EARLIEST) as consumer:
        await consumer.seek(to)
        assert numbers([await consumer.receive(5) for _ in range(2)]) == [3, 4]
        await real.admin.subscriptions.reset_cursor(NAME, "s", 1)
        seen: dict[int, None] = {}
        async with asyncio.timeout(60):
            while len(seen) < 5:
                message = await consumer.receive()
                seen[int(message.payload or b"")] = None
                await consumer.ack(message)
        await consumer.flush_acks()
        assert sorted(seen) == [0, 1, 2, 3, 4]


async def test_a_seek_into_a_batch_holds_for_the_next_consumer_too(ours: Client) -> None:
    ids = await published(ours, 10)
    async with ours.consumer("t", "s", start=EARLIEST) as consumer:
        await consumer.seek(ids[7])
    async with ours.consumer("t", "s") as consumer:
        assert numbers([await consumer.receive(5) for _ in range(3)]) == [7, 8, 9]


async def test_nothing_of_before_comes_when_a_seek_has_ended(ours: Client) -> None:
    ids = await published(ours, 100)
    async with ours.consumer("t", "s", start=EARLIEST) as consumer:
        for at in (90, 10, 55, 0, 99):
            await consumer.seek(ids[at])
            first = consumer.receive_nowait() or await consumer.receive(5)
            assert numbers([first]) == [at]
        await consumer.seek(LATEST)
        assert consumer.receive_nowait() is None
        async with ours.producer("t") as producer:
            await producer.send(b"100")
        assert numbers([await consumer.receive(5)]) == [100]


async def test_a_seek_ends_when_the_consumer_is_back(real: Broker, ours: Client) -> None:
    await published(ours, 5)
    async with ours.consumer("t", "s", start=EARLIEST) as consumer:
        for _ in range(5):
            await consumer.seek(EARLIEST)
            topic = real.registry.find(TopicName.parse("t"))
            assert topic is not None
            subscription = topic.subscriptions.get("s")
            assert subscription is not None and len(subscription.consumers) == 1


async def test_a_seek_outlives_the_broker(house: BrokerHouse, real: Broker, ours: Client) -> None:
    ids = await published(ours, 20)
    async with ours.consumer("t", "s", start=EARLIEST) as consumer:
        await consumer.receive(5)
        await house.kill(real)
        seeking = asyncio.create_task(consumer.seek(ids[12]))
        await house.start()
        await seeking
        assert numbers([await consumer.receive(10)]) == [12]


async def test_a_reader_behind_the_last_message_by_time_has_nothing_next(ours: Client) -> None:
    await published(ours, 5)
    async with ours.reader("t", start=EARLIEST) as reader:
        last = await reader.read(5)
        assert await reader.has_next()
        await reader.seek(publish_time_ms=last.publish_time_ms + 60_000)
        assert not await reader.has_next()
        await reader.seek(publish_time_ms=last.publish_time_ms - 60_000)
        assert await reader.has_next()
        assert numbers([await reader.read(5)]) == [0]


async def test_a_reader_leaves_nothing_behind(real: Broker, ours: Client) -> None:
    ids = await published(ours, 5)
    async with ours.reader("t", start=EARLIEST) as reader:
        await reader.read(5)
        await reader.seek(ids[2])
    assert (await real.admin.statistics.stats(NAME)).subscriptions == {}


async def test_a_reader_of_a_topic_that_grows_leaves_nothing_behind(real: Broker) -> None:
    await real.registry.create(NAME, 1)
    async with Client(real.service_url, settings=ClientSettings(partitions_poll_ms=20)) as client:
        async with client.reader("t", start=EARLIEST) as reader:
            await real.partitioned.grow(NAME, 2)
            partition = TopicName.parse(f"{TOPIC}-partition-1")
            async with client.producer(str(partition)) as producer:
                await producer.send(b"7")
            assert (await reader.read(10)).payload == b"7"
            (found,) = (await real.admin.statistics.stats(partition)).subscriptions.values()
            assert not found.is_durable
        assert (await real.admin.statistics.stats(partition)).subscriptions == {}
