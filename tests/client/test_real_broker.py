"""Our client against the real broker, and beside the stock client: batches, every compression, both directions."""

from __future__ import annotations

import asyncio

import pulsar
import pytest

from quire.client import EARLIEST, Client, ConsumerBusy, ConsumerSettings, ProducerSettings
from quire.serving.broker import Broker
from quire.wire.compression import NAMES
from tests.serving.conftest import BrokerHouse, in_thread

COUNT = 2_000
CODECS = {
    "none": pulsar.CompressionType.NONE,
    "lz4": pulsar.CompressionType.LZ4,
    "zlib": pulsar.CompressionType.ZLib,
    "zstd": pulsar.CompressionType.ZSTD,
    "snappy": pulsar.CompressionType.SNAPPY,
}


@pytest.mark.parametrize("codec", NAMES)
async def test_ours_publishes_the_stock_client_consumes(
    ours: Client, stock: pulsar.Client, codec: str
) -> None:
    consumer = await in_thread(
        lambda: stock.subscribe("t", "s", initial_position=pulsar.InitialPosition.Earliest)
    )
    settings = ProducerSettings(compression=codec, batch_messages_max=100)
    async with ours.producer("t", settings=settings) as producer:
        for i in range(COUNT):
            await producer.enqueue(
                b"payload %d " % i * 10, key=f"k{i % 7}", properties={"n": str(i)}, event_time_ms=9 + i
            )
        lone = await producer.send(b"lone")

    def consume() -> None:
        for i in range(COUNT):
            got = consumer.receive(10_000)
            assert got.data() == b"payload %d " % i * 10
            assert (got.partition_key(), got.properties()) == (f"k{i % 7}", {"n": str(i)})
            assert got.event_timestamp() == 9 + i
            consumer.acknowledge(got)
        last = consumer.receive(10_000)
        assert last.data() == b"lone"
        assert (last.message_id().ledger_id(), last.message_id().entry_id()) == lone.message_id[:2]

    await in_thread(consume)


@pytest.mark.parametrize("codec", CODECS)
async def test_the_stock_client_publishes_ours_consumes(
    ours: Client, stock: pulsar.Client, codec: str
) -> None:
    def publish() -> None:
        producer = stock.create_producer(
            "t", compression_type=CODECS[codec], batching_enabled=True, block_if_queue_full=True
        )
        for i in range(COUNT):
            body = b"payload %d " % i * 10
            producer.send_async(
                body, None, properties={"n": str(i)}, partition_key=f"k{i % 7}", event_timestamp=9 + i
            )
        producer.flush()

    await in_thread(publish)
    async with ours.consumer("t", "s", start=EARLIEST) as consumer:
        for i in range(COUNT):
            got = await consumer.receive(10)
            assert got.payload == b"payload %d " % i * 10
            assert (got.key, got.properties, got.event_time_ms) == (f"k{i % 7}", {"n": str(i)}, 9 + i)
            await consumer.ack(got)
        await consumer.flush_acks()


async def test_acks_last(real: Broker, ours: Client) -> None:
    async with ours.producer("t") as producer:
        for i in range(50):
            producer.send_nowait(b"%d" % i)
    async with ours.consumer("t", "s", start=EARLIEST) as consumer:
        for i in range(50):
            got = await consumer.receive(10)
            if i % 2:
                await consumer.ack(got)
        await consumer.flush_acks()
    async with ours.consumer("t", "s") as consumer:
        again = [int((await consumer.receive(10)).payload or b"") for _ in range(25)]
    assert again == list(range(0, 50, 2))


async def test_a_shared_subscription_dispatches_everything_once(ours: Client) -> None:
    seen: list[int] = []
    done = asyncio.Event()

    async def consume() -> None:
        async with ours.consumer("t", "s", type="shared", start=EARLIEST) as consumer:
            async for one in consumer:
                seen.append(int(one.payload or b""))
                await consumer.ack(one)
                if len(seen) == 300:
                    done.set()

    tasks = [asyncio.create_task(consume()) for _ in range(3)]
    async with ours.producer("t", settings=ProducerSettings(batch_messages_max=5)) as producer:
        for i in range(300):
            producer.send_nowait(b"%d" % i)
    async with asyncio.timeout(60):
        await done.wait()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert sorted(seen) == list(range(300))


async def test_a_negative_ack_brings_it_again(ours: Client) -> None:
    settings = ConsumerSettings(nack_delay_ms=1)
    async with (
        ours.consumer("t", "s", type="shared", start=EARLIEST, settings=settings) as consumer,
        ours.producer("t") as producer,
    ):
        await producer.send(b"x")
        first = await consumer.receive(10)
        await consumer.nack(first)
        again = await consumer.receive(10)
        assert (again.payload, again.redelivery_count) == (b"x", 1)


async def test_readers_and_seeks(ours: Client) -> None:
    async with ours.producer("t", settings=ProducerSettings(batch_messages_max=10)) as producer:
        taken = [producer.send_nowait(b"%d" % i) for i in range(95)]
    ids = [(await one).message_id for one in taken]
    async with ours.reader("t", start=EARLIEST) as reader:
        seen = []
        while await reader.has_next():
            seen.append(await reader.read(10))
        assert [int(one.payload or b"") for one in seen] == list(range(95))
        assert [one.id.place for one in seen] == [one.place for one in ids]
    async with ours.reader("t", start=ids[43]) as reader:
        assert (await reader.read(10)).payload == b"44"
        await reader.seek(ids[17])
        assert (await reader.read(10)).payload == b"17"
    async with ours.consumer("t", "s", start=EARLIEST) as consumer:
        await consumer.receive(10)
        await consumer.seek(ids[60])
        await consumer.seek(ids[50])
        assert (await consumer.receive(10)).payload == b"50"
        await consumer.seek(publish_time_ms=seen[0].publish_time_ms)
        assert (await consumer.receive(10)).payload == b"0"


async def test_the_backlog_is_what_nobody_acknowledged(ours: Client) -> None:
    async with ours.producer("t", settings=ProducerSettings(batch_messages_max=4)) as producer:
        for taken in [producer.send_nowait(b"%d" % i) for i in range(10)]:
            await taken
    async with ours.consumer("t", "s", start=EARLIEST) as consumer:
        got = [await consumer.receive(10) for _ in range(10)]
        for one in (got[1], got[8], got[9]):
            await consumer.ack(one)
        await consumer.flush_acks()
        assert await consumer.backlogs() == {"persistent://public/default/t": 7}
    async with ours.consumer("t", "s") as consumer:
        assert await consumer.backlogs() == {"persistent://public/default/t": 7}


async def test_a_subscription_that_is_taken(ours: Client) -> None:
    async with ours.consumer("t", "s"):
        with pytest.raises(ConsumerBusy):
            await ours.consumer("t", "s").start()


async def test_a_broker_that_crashes_loses_nothing(house: BrokerHouse, real: Broker, ours: Client) -> None:
    async with (
        ours.consumer("t", "s", start=EARLIEST) as consumer,
        ours.producer("t", settings=ProducerSettings(batch_messages_max=10)) as producer,
    ):
        taken = [producer.send_nowait(b"%d" % i) for i in range(100)]
        await house.kill(real)
        taken += [producer.send_nowait(b"%d" % i) for i in range(100, 200)]
        await house.start()
        for one in taken:
            await one
        seen: set[int] = set()
        while len(seen) < 200:
            seen.add(int((await consumer.receive(10)).payload or b""))
    assert seen == set(range(200))
