"""The stock Python client against one broker in this process."""

from __future__ import annotations

import uuid

import pulsar
import pytest

from quire.runtime.limits import MESSAGE_BYTES_MAX
from quire.serving.broker import Broker
from quire.serving.names import TopicName
from quire.serving.registry.topic_loader import subscriptions_of
from tests.serving.conftest import BrokerHouse, in_thread, until_durable

WAIT_MS = 10_000


def fresh(name: str = "topic") -> str:
    return f"persistent://public/default/{name}-{uuid.uuid4().hex[:8]}"


def receive(consumer: pulsar.Consumer, count: int) -> list[bytes]:
    """The next `count` messages' data, each acknowledged."""
    found = []
    for _ in range(count):
        message = consumer.receive(WAIT_MS)
        found.append(message.data())
        consumer.acknowledge(message)
    return found


async def test_what_is_sent_arrives_in_order(client: pulsar.Client) -> None:
    def work() -> None:
        topic = fresh()
        consumer = client.subscribe(topic, "s")
        producer = client.create_producer(topic)
        ids = [producer.send(b"message %d" % i) for i in range(20)]
        assert [one.entry_id() for one in ids] == list(range(20))
        assert len({one.ledger_id() for one in ids}) == 1
        assert receive(consumer, 20) == [b"message %d" % i for i in range(20)]

    await in_thread(work)


@pytest.mark.parametrize("codec", ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"])
async def test_batches_in_every_compression(broker: Broker, client: pulsar.Client, codec: str) -> None:
    topic = fresh()

    def work() -> None:
        consumer = client.subscribe(topic, "s")
        producer = client.create_producer(
            topic,
            batching_enabled=True,
            batching_max_messages=100,
            batching_max_publish_delay_ms=50,
            block_if_queue_full=True,
            compression_type=getattr(pulsar.CompressionType, codec),
        )
        for i in range(1000):
            producer.send_async(b"message %d" % i, lambda result, _: None)
        producer.flush()
        assert receive(consumer, 1000) == [b"message %d" % i for i in range(1000)]

    await in_thread(work)
    stats = await broker.admin.statistics.internal(TopicName.parse(topic))
    assert stats.number_of_messages == 1000
    assert stats.number_of_entries < 1000


async def test_receipts_come_in_order(client: pulsar.Client) -> None:
    def work() -> list[int]:
        producer = client.create_producer(fresh(), block_if_queue_full=True)
        order: list[int] = []
        for i in range(2000):
            producer.send_async(b"x" * 100, lambda result, mid, i=i: order.append(i))
        producer.flush()
        return order

    assert await in_thread(work) == list(range(2000))


async def test_five_mebibytes_pass_and_more_is_refused(client: pulsar.Client) -> None:
    def work() -> None:
        topic = fresh()
        consumer = client.subscribe(topic, "s")
        producer = client.create_producer(topic)
        large = bytes(range(256)) * (5 * 4096 - 1)
        producer.send(large)
        assert receive(consumer, 1) == [large]
        with pytest.raises(pulsar.MessageTooBig):
            producer.send(b"x" * (5 * 1024 * 1024 + 1))
        producer.send(b"the next one")
        assert receive(consumer, 1) == [b"the next one"]

    await in_thread(work)


async def test_chunked_messages(client: pulsar.Client) -> None:
    def work() -> None:
        topic = fresh()
        consumer = client.subscribe(topic, "s")
        producer = client.create_producer(topic, chunking_enabled=True)
        large = bytes(range(256)) * 4096 * 12
        producer.send(large)
        assert receive(consumer, 1) == [large]

    await in_thread(work)


async def test_partitioned_topic(broker: Broker, client: pulsar.Client) -> None:
    topic = fresh()
    await broker.registry.create(TopicName.parse(topic), 3)

    def work() -> None:
        consumer = client.subscribe(topic, "s")
        producer = client.create_producer(
            topic, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution
        )
        for i in range(30):
            producer.send(b"message %d" % i)
        assert sorted(receive(consumer, 30)) == sorted(b"message %d" % i for i in range(30))
        assert len(client.get_topic_partitions(topic)) == 3

    await in_thread(work)
    listed = await broker.fan_out.topics("public", "default", "persistent")
    assert [f"{topic}-partition-{i}" for i in range(3)] == [name for name in listed if name.startswith(topic)]
    stats = await broker.admin.statistics.stats(TopicName.parse(topic))
    assert stats.msg_in_counter == 30
    assert [one.msg_in_counter for one in stats.partitions.values()] == [10, 10, 10]


async def test_topics_by_pattern(broker: Broker, client: pulsar.Client) -> None:
    import re

    await broker.registry.create(TopicName.parse("persistent://public/default/pattern-a"))
    await broker.registry.create(TopicName.parse("persistent://public/default/pattern-b"))
    await broker.registry.create(TopicName.parse("persistent://public/default/other"))

    def work() -> None:
        consumer = client.subscribe(re.compile("persistent://public/default/pattern-.*"), "s")
        for name in ("pattern-a", "pattern-b"):
            client.create_producer(name).send(name.encode())
        assert sorted(receive(consumer, 2)) == [b"pattern-a", b"pattern-b"]

    await in_thread(work)


async def test_exclusive_producer_keeps_others_out(client: pulsar.Client) -> None:
    def work() -> None:
        topic = fresh()
        first = client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)
        with pytest.raises(pulsar.ProducerFenced):
            client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)
        with pytest.raises(pulsar.ProducerBusy):
            client.create_producer(topic)
        first.close()
        client.create_producer(topic).send(b"now")

    await in_thread(work)


async def test_a_generated_name_leaves_room_for_a_message(house: BrokerHouse, client: pulsar.Client) -> None:
    """Applications that leave 32 bytes for what a client adds publish messages of all sizes that Pulsar takes."""
    producer = await in_thread(lambda: client.create_producer("t", batching_enabled=False))
    await in_thread(lambda: producer.send(bytes(MESSAGE_BYTES_MAX - 32)))
    name = producer.producer_name()
    assert len(name) <= len("standalone-0000-12")
    house.port = 0
    other = await house.start()
    assert other.sessions.topics.new_producer_name().rpartition("-")[0] != name.rpartition("-")[0]


async def test_a_producer_name_is_used_once(client: pulsar.Client) -> None:
    def work() -> None:
        topic = fresh()
        client.create_producer(topic, producer_name="p")
        with pytest.raises(pulsar.ProducerBusy):
            client.create_producer(topic, producer_name="p")

    await in_thread(work)


async def test_reader_from_the_beginning_and_from_a_message(client: pulsar.Client) -> None:
    def work() -> None:
        topic = fresh()
        producer = client.create_producer(topic)
        ids = [producer.send(b"%d" % i) for i in range(10)]
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(WAIT_MS).data())
        assert found == [b"%d" % i for i in range(10)]
        behind = client.create_reader(topic, ids[6])
        assert behind.read_next(WAIT_MS).data() == b"7"

    await in_thread(work)


async def test_unknown_namespace_is_refused(client: pulsar.Client) -> None:
    def work() -> None:
        with pytest.raises(pulsar.TopicNotFound):
            client.create_producer("persistent://public/nowhere/topic")

    await in_thread(work)


async def test_unload_moves_clients_without_loss(broker: Broker, client: pulsar.Client) -> None:
    topic = fresh()

    def open_both() -> tuple[pulsar.Producer, pulsar.Consumer]:
        return client.create_producer(topic), client.subscribe(topic, "s")

    producer, consumer = await in_thread(open_both)
    await in_thread(lambda: [producer.send(b"before %d" % i) for i in range(5)])
    await broker.admin.topics.unload(TopicName.parse(topic))
    await in_thread(lambda: [producer.send(b"after %d" % i) for i in range(5)])
    found = await in_thread(lambda: receive(consumer, 10))
    assert list(dict.fromkeys(found)) == [b"before %d" % i for i in range(5)] + [
        b"after %d" % i for i in range(5)
    ]
    stats = await broker.admin.statistics.internal(TopicName.parse(topic))
    assert [row.state for row in stats.ledgers][-1] == "active"
    assert len(stats.ledgers) == 2


async def test_rolled_segments_are_one_topic(house: BrokerHouse) -> None:
    broker = await house.start(segment_bytes_max=20_000)
    topic = fresh()

    def work() -> list[bytes]:
        client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        producer = client.create_producer(topic, block_if_queue_full=True)
        for i in range(500):
            producer.send_async(b"%05d" % i + b"x" * 995, lambda result, _: None)
            if i % 10 == 0:
                producer.flush()
        producer.flush()
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        found = [reader.read_next(WAIT_MS).data()[:5] for _ in range(500)]
        client.close()
        return found

    assert await in_thread(work) == [b"%05d" % i for i in range(500)]
    stats = await broker.admin.statistics.internal(TopicName.parse(topic))
    assert len(stats.ledgers) > 5
    assert sum(row.messages for row in stats.ledgers) == 500
    firsts = [row.first_index for row in stats.ledgers]
    assert firsts == sorted(firsts)


async def test_archived_segments_are_read_back(house: BrokerHouse) -> None:
    broker = await house.start(archive_lag_ms=0)
    topic = fresh()

    def publish() -> None:
        client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        producer = client.create_producer(topic)
        for i in range(50):
            producer.send(b"%d" % i)
        client.close()

    def read() -> list[bytes]:
        client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        found = [reader.read_next(WAIT_MS).data() for _ in range(50)]
        client.close()
        return found

    await in_thread(publish)
    report = await broker.admin.archive.run(seal=True, here=True)
    assert (report.archived, report.failed) == (1, 0)
    await broker.admin.archive.run(seal=False, here=True)
    rows = (await broker.admin.statistics.internal(TopicName.parse(topic))).ledgers
    assert [row.state for row in rows] == ["released", "active"]
    await broker.admin.topics.unload(TopicName.parse(topic))
    assert await in_thread(read) == [b"%d" % i for i in range(50)]


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_a_restart_keeps_everything(house: BrokerHouse, how: str) -> None:
    broker = await house.start()
    topic = fresh()
    client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))

    def before() -> None:
        consumer = client.subscribe(topic, "s")
        producer = client.create_producer(topic)
        for i in range(20):
            producer.send(b"%d" % i)
        receive(consumer, 10)
        client.close()

    await in_thread(before)
    if how == "kill":
        (subscription,) = subscriptions_of(await broker.sessions.topics.open(topic))
        await until_durable(subscription)
    await (house.stop(broker) if how == "stop" else house.kill(broker))
    broker = await house.start()

    def after() -> list[bytes]:
        client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        consumer = client.subscribe(topic, "s")
        producer = client.create_producer(topic)
        producer.send(b"20")
        found = receive(consumer, 11)
        client.close()
        return found

    assert await in_thread(after) == [b"%d" % i for i in range(10, 21)]
    stats = await broker.admin.statistics.internal(TopicName.parse(topic))
    assert stats.number_of_messages == 21


async def test_deleted_topic_begins_anew(broker: Broker, client: pulsar.Client) -> None:
    topic = fresh()

    def use() -> list[bytes]:
        consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
        producer = client.create_producer(topic)
        producer.send(b"one")
        found = receive(consumer, 1)
        consumer.close()
        producer.close()
        return found

    assert await in_thread(use) == [b"one"]
    await broker.admin.topics.delete(TopicName.parse(topic))
    assert topic not in await broker.fan_out.topics("public", "default", "persistent")
    assert await in_thread(use) == [b"one"]
    assert (await broker.admin.statistics.internal(TopicName.parse(topic))).number_of_messages == 1


async def test_terminated_topic_takes_no_producer(broker: Broker, client: pulsar.Client) -> None:
    topic = fresh()
    await in_thread(lambda: client.create_producer(topic).send(b"last"))
    position = await broker.admin.topics.terminate(TopicName.parse(topic))
    assert position.entry_id == 0

    def work() -> None:
        with pytest.raises(pulsar.TopicTerminated):
            client.create_producer(topic)

    await in_thread(work)
