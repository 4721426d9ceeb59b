"""The stock Python client's consumers against one broker: every kind, redelivery, seek, readers, restarts."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterable
from itertools import chain

import pulsar
import pytest
from pulsar import ConsumerType, InitialPosition

from quire.serving.broker import Broker
from quire.serving.names import TopicName
from quire.serving.registry.topic_loader import subscriptions_of
from quire.wire.hashing import key_slot
from tests.serving.conftest import BrokerHouse, in_thread, until_durable

WAIT_MS = 10_000
QUIET_MS = 300
"""How long nothing must come for us to say that nothing comes."""


def fresh() -> str:
    return f"persistent://public/default/sub-{uuid.uuid4().hex[:8]}"


def publish(
    client: pulsar.Client, topic: str, texts: Iterable[str], **options: object
) -> list[pulsar.MessageId]:
    producer = client.create_producer(topic, **options)
    found: list[pulsar.MessageId] = []
    for text in texts:
        producer.send_async(text.encode(), lambda result, one: found.append(one))
    producer.flush()
    producer.close()
    return found


def numbers(count: int, first: int = 0) -> list[str]:
    return [f"{number:04}" for number in range(first, first + count)]


def receive(consumer: pulsar.Consumer, count: int, *, ack: bool = False) -> list[pulsar.Message]:
    found = []
    for _ in range(count):
        found.append(consumer.receive(WAIT_MS))
        if ack:
            consumer.acknowledge(found[-1])
    return found


def texts(messages: Iterable[pulsar.Message]) -> list[str]:
    return [message.data().decode() for message in messages]


def drain(consumer: pulsar.Consumer | pulsar.Reader) -> list[pulsar.Message]:
    """What comes until nothing does."""
    found = []
    try:
        while True:
            receive_ = consumer.receive if isinstance(consumer, pulsar.Consumer) else consumer.read_next
            found.append(receive_(QUIET_MS))
    except pulsar.Timeout:
        return found


async def test_exclusive_refuses_a_second_consumer(
    client: pulsar.Client, clients: Callable[..., pulsar.Client]
) -> None:
    def work() -> None:
        topic = fresh()
        client.subscribe(topic, "s", ConsumerType.Exclusive)
        other = clients()
        with pytest.raises(pulsar.ConsumerBusy):
            other.subscribe(topic, "s", ConsumerType.Exclusive)
        with pytest.raises(pulsar.ConsumerBusy):
            other.subscribe(topic, "s", ConsumerType.Shared)
        other.close()

    await in_thread(work)


async def test_shared_dispatches_each_message_to_one_consumer(client: pulsar.Client) -> None:
    def work() -> None:
        topic = fresh()
        consumers = [
            client.subscribe(topic, "s", ConsumerType.Shared, receiver_queue_size=50) for _ in range(3)
        ]
        publish(client, topic, numbers(600), block_if_queue_full=True)
        got = [texts(drain(consumer)) for consumer in consumers]
        assert sorted(chain.from_iterable(got)) == numbers(600)
        assert all(len(one) >= 50 for one in got)

    await in_thread(work)


async def test_what_a_shared_consumer_held_goes_to_the_others(client: pulsar.Client) -> None:
    def work() -> None:
        topic = fresh()
        first = client.subscribe(topic, "s", ConsumerType.Shared)
        publish(client, topic, numbers(100))
        got = receive(first, 60)
        for message in got[::2]:
            first.acknowledge(message)
        second = client.subscribe(topic, "s", ConsumerType.Shared)
        first.close()
        expected = sorted(set(numbers(100)) - set(texts(got[::2])))
        messages = receive(second, 70, ack=True)
        assert sorted(texts(messages)) == expected
        assert not drain(second)

    await in_thread(work)


async def test_a_negative_acknowledgement_redelivers_and_counts(client: pulsar.Client) -> None:
    def work() -> None:
        topic = fresh()
        consumer = client.subscribe(topic, "s", ConsumerType.Shared, negative_ack_redelivery_delay_ms=50)
        publish(client, topic, numbers(10))
        for message in receive(consumer, 10):
            if message.data() in (b"0003", b"0007"):
                consumer.negative_acknowledge(message)
            else:
                consumer.acknowledge(message)
        for count in (1, 2):
            again = receive(consumer, 2)
            assert sorted(texts(again)) == ["0003", "0007"]
            assert [message.redelivery_count() for message in again] == [count, count]
            for message in again:
                consumer.negative_acknowledge(message)
        receive(consumer, 2, ack=True)
        assert not drain(consumer)

    await in_thread(work)


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared, ConsumerType.Failover])
async def test_redeliver_all(client: pulsar.Client, kind: ConsumerType) -> None:
    def work() -> None:
        topic = fresh()
        consumer = client.subscribe(topic, "s", kind)
        publish(client, topic, numbers(20))
        got = receive(consumer, 20)
        for message in got[:5]:
            consumer.acknowledge(message)
        consumer.redeliver_unacknowledged_messages()
        assert sorted(texts(receive(consumer, 15))) == numbers(15, 5)
        assert not drain(consumer)

    await in_thread(work)


async def test_dead_letters(client: pulsar.Client) -> None:
    def work() -> None:
        topic, dead = fresh(), fresh()
        graveyard = client.subscribe(dead, "s")
        policy = pulsar.ConsumerDeadLetterPolicy(max_redeliver_count=2, dead_letter_topic=dead)
        consumer = client.subscribe(
            topic, "s", ConsumerType.Shared, negative_ack_redelivery_delay_ms=50, dead_letter_policy=policy
        )
        publish(client, topic, ["poison"])
        for _ in range(3):
            consumer.negative_acknowledge(consumer.receive(WAIT_MS))
        assert texts(receive(graveyard, 1)) == ["poison"]

    await in_thread(work)


async def test_failover_hands_over(client: pulsar.Client, clients: Callable[..., pulsar.Client]) -> None:
    def work() -> None:
        topic = fresh()
        first = client.subscribe(topic, "s", ConsumerType.Failover, consumer_name="z")
        other = clients()
        second = other.subscribe(topic, "s", ConsumerType.Failover, consumer_name="a")
        publish(client, topic, numbers(30))
        assert texts(receive(first, 10, ack=True)) == numbers(10)
        assert not drain(second)
        first.close()
        assert texts(receive(second, 20, ack=True)) == numbers(20, 10)
        other.close()

    await in_thread(work)


async def test_cumulative_acknowledgement(client: pulsar.Client, broker: Broker) -> None:
    topic = fresh()

    def work() -> None:
        consumer = client.subscribe(topic, "s")
        publish(client, topic, numbers(50))
        got = receive(consumer, 30)
        consumer.acknowledge_cumulative(got[-1])
        consumer.close()
        assert texts(receive(client.subscribe(topic, "s"), 20)) == numbers(20, 30)

    await in_thread(work)
    assert (await broker.admin.statistics.stats(TopicName.parse(topic))).subscriptions["s"].msg_backlog == 20


async def test_single_messages_of_batches(client: pulsar.Client, broker: Broker) -> None:
    topic = fresh()

    def work() -> None:
        options = {"batch_index_ack_enabled": True}
        consumer = client.subscribe(topic, "s", ConsumerType.Shared, **options)
        publish(client, topic, numbers(40), batching_enabled=True, batching_max_publish_delay_ms=100)
        for message in receive(consumer, 40):
            if int(message.data()) % 4:
                consumer.acknowledge(message)
        consumer.close()
        consumer = client.subscribe(topic, "s", ConsumerType.Shared, **options)
        assert texts(drain(consumer)) == numbers(40)[::4]

    await in_thread(work)
    assert (await broker.admin.statistics.stats(TopicName.parse(topic))).subscriptions["s"].msg_backlog == 10


async def test_a_small_receiver_queue_gets_everything(client: pulsar.Client) -> None:
    def work() -> None:
        topic = fresh()
        publish(client, topic, numbers(300))
        for size in (1, 3):
            consumer = client.subscribe(
                topic, f"s{size}", receiver_queue_size=size, initial_position=InitialPosition.Earliest
            )
            assert texts(receive(consumer, 300, ack=True)) == numbers(300)

    await in_thread(work)


async def test_seek_by_id(client: pulsar.Client) -> None:
    def work() -> None:
        topic = fresh()
        consumer = client.subscribe(topic, "s")
        ids = publish(client, topic, numbers(20))
        receive(consumer, 20, ack=True)
        consumer.seek(ids[12])
        assert texts(drain(consumer)) in (numbers(8, 12), numbers(7, 13))
        consumer.seek(pulsar.MessageId.earliest)
        assert texts(receive(consumer, 20)) == numbers(20)
        consumer.seek(pulsar.MessageId.latest)
        publish(client, topic, ["new"])
        assert texts(drain(consumer)) == ["new"]

    await in_thread(work)


async def test_seek_by_time(client: pulsar.Client) -> None:
    def work() -> None:
        topic = fresh()
        consumer = client.subscribe(topic, "s")
        publish(client, topic, numbers(5))
        receive(consumer, 5, ack=True)
        # The client's clock counts milliseconds: the next message is of a later one.
        between_ms = int(time.time() * 1000) + 1
        while time.time() * 1000 <= between_ms:
            pass
        publish(client, topic, numbers(5, 5))
        receive(consumer, 5, ack=True)
        consumer.seek(between_ms)
        assert texts(drain(consumer)) == numbers(5, 5)
        consumer.seek(0)
        assert texts(drain(consumer)) == numbers(10)

    await in_thread(work)


async def test_readers(client: pulsar.Client, broker: Broker) -> None:
    topic = fresh()

    def work() -> None:
        ids = publish(client, topic, numbers(10))
        earliest = client.create_reader(topic, pulsar.MessageId.earliest)
        assert earliest.has_message_available()
        assert texts(drain(earliest)) == numbers(10)
        assert not earliest.has_message_available()
        latest = client.create_reader(topic, pulsar.MessageId.latest)
        assert not latest.has_message_available()
        behind = client.create_reader(topic, ids[3])
        assert texts(drain(behind)) == numbers(6, 4)
        at = client.create_reader(topic, ids[3], start_message_id_inclusive=True)
        assert texts(drain(at)) == numbers(7, 3)
        at.seek(ids[8])
        assert texts(drain(at)) in (numbers(2, 8), numbers(1, 9))
        at.seek(0)
        assert texts(drain(at)) == numbers(10)
        publish(client, topic, ["new"])
        assert texts(drain(latest)) == ["new"]
        for reader in (earliest, latest, behind, at):
            reader.close()

    await in_thread(work)
    assert (await broker.admin.statistics.stats(TopicName.parse(topic))).subscriptions == {}


async def test_readers_in_the_middle_of_a_batch(client: pulsar.Client) -> None:
    def work() -> None:
        topic = fresh()
        ids = publish(client, topic, numbers(10), batching_enabled=True, batching_max_publish_delay_ms=100)
        behind = client.create_reader(topic, ids[3])
        assert texts(drain(behind)) == numbers(6, 4)
        at = client.create_reader(topic, ids[3], start_message_id_inclusive=True)
        assert texts(drain(at)) == numbers(7, 3)

    await in_thread(work)


async def test_unsubscribe_deletes(client: pulsar.Client, broker: Broker) -> None:
    topic = fresh()

    def work() -> None:
        consumer = client.subscribe(topic, "s")
        publish(client, topic, numbers(3))
        consumer.unsubscribe()

    await in_thread(work)
    assert (await broker.admin.statistics.stats(TopicName.parse(topic))).subscriptions == {}


async def test_stats_count_exactly(client: pulsar.Client, broker: Broker) -> None:
    topic = fresh()

    def work() -> pulsar.Consumer:
        consumer = client.subscribe(
            topic, "s", ConsumerType.Shared, consumer_name="c", receiver_queue_size=30
        )
        publish(client, topic, numbers(100), batching_enabled=True, batching_max_publish_delay_ms=100)
        publish(client, topic, numbers(50))
        receive(consumer, 20)
        return consumer

    consumer = await in_thread(work)
    stats = (await broker.admin.statistics.stats(TopicName.parse(topic))).subscriptions["s"]
    assert (stats.type, stats.msg_backlog) == ("Shared", 150)
    assert stats.consumers[0].consumer_name == "c"
    assert stats.unacked_messages == stats.consumers[0].unacked_messages >= 20
    await in_thread(lambda: receive(consumer, 130))


@pytest.mark.parametrize("batching", [False, True])
async def test_key_shared_keeps_each_key_in_order_while_consumers_come_and_go(
    client: pulsar.Client, clients: Callable[..., pulsar.Client], batching: bool
) -> None:
    def work() -> None:
        topic, others = fresh(), clients()
        make = pulsar.ConsumerType.KeyShared
        consumers = [client.subscribe(topic, "s", make, receiver_queue_size=20)]
        options = {"batching_enabled": batching}
        if batching:
            options["batching_type"] = pulsar.BatchingType.KeyBased
        producer = client.create_producer(topic, block_if_queue_full=True, **options)
        seen: dict[str, list[int]] = {}
        for turn in range(4):
            for number in range(100):
                producer.send_async(f"{100 * turn + number}".encode(), None, partition_key=f"k{number % 17}")
            producer.flush()
            if turn < 2:
                consumers.append(others.subscribe(topic, "s", make, receiver_queue_size=20))
            for message in chain.from_iterable(some_of(one, 30) for one in consumers):
                seen.setdefault(message.partition_key(), []).append(int(message.data()))
        consumers.pop(0).close()
        while messages := [one for consumer in consumers for one in some_of(consumer, 100)]:
            for message in messages:
                seen.setdefault(message.partition_key(), []).append(int(message.data()))
        got = sorted(chain.from_iterable(seen.values()))
        # A batch of which the consumer that left had acknowledged only some comes again as a whole.
        assert (sorted(set(got)) if batching else got) == list(range(400))
        for of_key in seen.values():
            first_times = list(dict.fromkeys(of_key))
            assert (first_times if batching else of_key) == sorted(first_times)

    await in_thread(work)


def some_of(consumer: pulsar.Consumer, count: int) -> list[pulsar.Message]:
    """Up to `count` messages, acknowledged; fewer when no more come."""
    found = []
    try:
        while len(found) < count:
            found.append(consumer.receive(QUIET_MS))
            consumer.acknowledge(found[-1])
    except pulsar.Timeout:
        pass
    return found


async def test_sticky_ranges_of_key_shared_consumers(client: pulsar.Client, broker: Broker) -> None:
    topic = fresh()

    def work() -> None:
        def subscribe(*ranges: tuple[int, int]) -> pulsar.Consumer:
            policy = pulsar.ConsumerKeySharedPolicy(pulsar.KeySharedMode.Sticky, sticky_ranges=list(ranges))
            return client.subscribe(topic, "s", pulsar.ConsumerType.KeyShared, key_shared_policy=policy)

        low, high = subscribe((0, 20_000), (20_001, 32_767)), subscribe((32_768, 65_535))
        with pytest.raises(pulsar.PulsarException):
            subscribe((30_000, 40_000))
        with pytest.raises(pulsar.ConsumerBusy):
            client.subscribe(topic, "s", pulsar.ConsumerType.KeyShared)
        producer = client.create_producer(topic)
        for number in range(60):
            producer.send(f"{number}".encode(), partition_key=f"key-{number}")
        expected = [f"{number}" for number in range(60) if key_slot(f"key-{number}".encode()) < 32_768]
        assert texts(some_of(low, 60)) == expected
        assert len(some_of(high, 60)) == 60 - len(expected)

    await in_thread(work)


@pytest.mark.parametrize(
    "kind",
    [ConsumerType.Exclusive, ConsumerType.Shared, ConsumerType.Failover, ConsumerType.KeyShared],
)
@pytest.mark.parametrize("ending", ["stop", "kill"])
async def test_a_restart_redelivers_exactly_what_was_not_acknowledged(
    house: BrokerHouse, kind: ConsumerType, ending: str
) -> None:
    broker = await house.start()
    topic = fresh()
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(broker.service_url, logger=quiet, operation_timeout_seconds=20)

    def before() -> None:
        consumer = client.subscribe(topic, "s", kind)
        publish(client, topic, numbers(200))
        for message in receive(consumer, 150):
            if int(message.data()) % 3:
                consumer.acknowledge(message)
        client.close()

    await in_thread(before)
    expected = [text for text in numbers(200) if int(text) >= 150 or int(text) % 3 == 0]
    async with asyncio.timeout(60):
        name, stats = TopicName.parse(topic), broker.admin.statistics.stats
        while (await stats(name)).subscriptions["s"].msg_backlog != len(expected):  # noqa: ASYNC110
            await asyncio.sleep(0)
    if ending == "kill":
        subscription = subscriptions_of(await broker.sessions.topics.open(topic)).get("s")
        assert subscription is not None
        await until_durable(subscription)
    await (house.stop(broker) if ending == "stop" else house.kill(broker))
    broker = await house.start()
    assert (await broker.admin.statistics.stats(TopicName.parse(topic))).subscriptions[
        "s"
    ].msg_backlog == len(expected)
    client = pulsar.Client(broker.service_url, logger=quiet, operation_timeout_seconds=20)

    def after() -> None:
        consumer = client.subscribe(topic, "s", kind)
        assert sorted(texts(receive(consumer, len(expected), ack=True))) == expected
        assert not drain(consumer)
        client.close()

    await in_thread(after)
