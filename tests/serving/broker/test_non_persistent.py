"""Topics that keep nothing, through stock clients and raw frames: delivered now or dropped and counted."""

from __future__ import annotations

import asyncio

import pulsar
import pytest

from quire.metadata import paths
from quire.runtime.errors import ConfigurationError, NotFound
from quire.serving.broker import Broker
from quire.serving.model.ports import EARLIEST, NotAllowed
from quire.serving.model.statistics import SubscriptionStats
from quire.serving.names import TopicName
from quire.wire import commands, message
from quire.wire import pulsar_pb2 as pb
from quire.wire.frame import Delivery
from tests.frames import with_entry
from tests.serving.conftest import in_thread
from tests.serving.session.test_connection import Client, entry, kinds, producer

TOPIC = "non-persistent://public/default/now"
NAME = TopicName.parse(TOPIC)


async def connected(broker: Broker) -> Client:
    client = Client(broker)
    await client.connect()
    return client


async def subscribed(
    broker: Broker, kind: str = "Exclusive", consumer_id: int = 1, permits: int = 0
) -> Client:
    client = await connected(broker)
    body = pb.CommandSubscribe(
        topic=TOPIC,
        subscription="s",
        subType=pb.CommandSubscribe.SubType.Value(kind),
        consumer_id=consumer_id,
        request_id=1,
    )
    client.send(commands.subscribe(body))
    assert kinds(await client.answers(2 if kind == "Failover" else 1))[0] == "SUCCESS"
    if permits:
        client.send(commands.flow(consumer_id, permits))
    return client


async def publishing(broker: Broker) -> Client:
    client = await connected(broker)
    client.send(producer(1, topic=TOPIC))
    assert kinds(await client.answers(1)) == ["PRODUCER_SUCCESS"]
    return client


def send(client: Client, *numbers: int) -> None:
    client.send(*[part for n in numbers for part in commands.send(1, n, 1, entry(b"%d" % n))])


async def deliveries(client: Client) -> list[Delivery]:
    await asyncio.sleep(0)
    return [one for one in client.received() if isinstance(one, Delivery)]


async def subscription_stats(broker: Broker) -> SubscriptionStats:
    found = (await broker.admin.statistics.stats(NAME)).subscriptions["s"]
    assert isinstance(found, SubscriptionStats)
    return found


async def test_it_is_answered_without_anything_being_written(broker: Broker) -> None:
    client = await publishing(broker)
    send(client, 0, 1, 2)
    answers = await client.answers(3)
    assert kinds(answers) == ["SEND_RECEIPT"] * 3
    assert [one.body.message_id.entryId for one in answers] == [0, 1, 2]  # type: ignore[attr-defined]
    assert broker.services.budget.held_bytes == 0
    store = broker.services.store
    with pytest.raises(NotFound):
        await store.get(NAME.path)
    assert await store.children(paths.topics_of("public", "default", NAME.domain)) == []
    assert (await broker.admin.statistics.stats(NAME)).msg_in_counter == 3


async def test_what_nobody_can_take_is_dropped_and_counted(broker: Broker) -> None:
    client = await publishing(broker)
    consumer = await subscribed(broker, permits=2)
    send(client, 0, 1, 2, 3, 4)
    found = await deliveries(consumer)
    assert [one.body.message_id.entryId for one in found] == [0, 1]
    stats = await subscription_stats(broker)
    assert (stats.msg_drop_counter, stats.msg_out_counter, stats.msg_backlog) == (3, 2, 0)
    consumer.send(commands.flow(1, 10))
    assert await deliveries(consumer) == [], "what was dropped does not come back"
    send(client, 5)
    assert [one.body.message_id.entryId for one in await deliveries(consumer)] == [5]
    assert (await broker.admin.statistics.stats(NAME)).msg_drop_counter == 3


async def test_a_consumer_that_does_not_read_loses_and_holds_nobody_up(broker: Broker) -> None:
    client = await publishing(broker)
    slow = await subscribed(broker, "Shared", 1, permits=1000)
    quick = await subscribed(broker, "Shared", 2, permits=1000)
    slow.connection.pause_writing()
    send(client, *range(50))
    assert len(await deliveries(quick)) == 50
    assert await deliveries(slow) == []
    quick.connection.pause_writing()
    send(client, *range(50, 60))
    assert kinds(await client.answers(60)) == ["SEND_RECEIPT"] * 60
    assert (await subscription_stats(broker)).msg_drop_counter == 10


@pytest.mark.parametrize("kind", ["Shared", "Failover", "Key_Shared"])
async def test_acknowledgements_and_redelivery_change_nothing(broker: Broker, kind: str) -> None:
    client = await publishing(broker)
    consumer = await subscribed(broker, kind, permits=1000)
    for round_ in range(3):
        send(client, *range(10 * round_, 10 * round_ + 10))
        found = await deliveries(consumer)
        assert len(found) == 10
        consumer.send(commands.redeliver(1), commands.ack(1, [found[0].body.message_id], request_id=round_))
        assert kinds(list(await consumer.answers(1))) == ["ACK_RESPONSE"]
    stats = await subscription_stats(broker)
    assert (stats.unacked_messages, stats.msg_out_counter, stats.msg_drop_counter) == (0, 30, 0)


async def test_entry_ids_begin_again_in_a_later_ledger(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.serving.topic.null_log.ENTRIES_PER_LEDGER", 5)
    client = await publishing(broker)
    consumer = await subscribed(broker, "Shared", permits=1000)
    for start in range(0, 12, 3):
        send(client, *range(start, start + 3))
    found = [commands.position(one.body.message_id) for one in await deliveries(consumer)]
    assert len(set(found)) == 12 and found == sorted(found)
    assert len({ledger_id for ledger_id, _ in found}) == 4


async def test_seek_is_refused_and_changes_nothing(broker: Broker) -> None:
    client = await publishing(broker)
    consumer = await subscribed(broker, permits=10)
    consumer.send(commands.seek(1, 5, commands.message_id(*EARLIEST)))
    (answer,) = await consumer.answers(1)
    assert answer.body.error == pb.NotAllowedError  # type: ignore[attr-defined]
    send(client, 1)
    assert len(await deliveries(consumer)) == 1


async def test_what_needs_messages_is_refused_by_name(broker: Broker) -> None:
    await publishing(broker)
    for asked in (
        broker.admin.statistics.internal,
        broker.admin.topics.terminate,
        broker.admin.statistics.segments,
    ):
        with pytest.raises(ConfigurationError, match="not supported for non-persistent topic"):
            await asked(NAME)
    with pytest.raises(NotAllowed, match="is non-persistent"):
        await broker.admin.subscriptions.create(NAME, "s", EARLIEST)


async def test_it_lasts_as_long_as_it_is_loaded(broker: Broker) -> None:
    client, consumer = await publishing(broker), await subscribed(broker)
    assert await broker.fan_out.topics("public", "default", "non-persistent") == [TOPIC]
    assert await broker.fan_out.topics("public", "default", "persistent") == []
    client.send(
        commands.frame(
            pb.BaseCommand(
                type=pb.BaseCommand.GET_TOPICS_OF_NAMESPACE,
                getTopicsOfNamespace=pb.CommandGetTopicsOfNamespace(
                    request_id=3, namespace="public/default", mode=pb.CommandGetTopicsOfNamespace.ALL
                ),
            )
        )
    )
    assert list((await client.answers(1))[0].body.topics) == [TOPIC]  # type: ignore[attr-defined]
    await broker.admin.topics.unload(NAME)
    assert kinds(await client.answers(1)) == ["CLOSE_PRODUCER"]
    assert kinds(await consumer.answers(1)) == ["CLOSE_CONSUMER"]
    with pytest.raises(NotFound):
        await broker.admin.statistics.stats(NAME)


async def test_a_partitioned_one(broker: Broker) -> None:
    await broker.registry.create(NAME, 2)
    assert await broker.fan_out.partitions(NAME) == 2
    refused = await connected(broker)
    refused.send(producer(1, topic=TOPIC))
    assert kinds(await refused.answers(1)) == ["ERROR"]
    client = await connected(broker)
    client.send(producer(1, topic=f"{TOPIC}-partition-1"))
    assert kinds(await client.answers(1)) == ["PRODUCER_SUCCESS"]
    send(client, 0)
    assert (await broker.admin.statistics.stats(NAME)).msg_in_counter == 1
    assert (await broker.registry.catalogue.names("public", "default", "non-persistent"))[1] == [TOPIC]
    await broker.deletion.delete_partitioned(NAME, force=True)
    with pytest.raises(NotFound):
        await broker.fan_out.partitions(NAME)


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Failover", "KeyShared"])
@pytest.mark.parametrize("batched", [False, True])
async def test_stock_clients(broker: Broker, client: pulsar.Client, kind: str, batched: bool) -> None:
    def run() -> list[bytes]:
        consumer = client.subscribe(TOPIC, "s", getattr(pulsar.ConsumerType, kind))
        made = client.create_producer(TOPIC, batching_enabled=batched)
        for number in range(100):
            made.send_async(b"%d" % number, None)
        made.flush()
        found = []
        for _ in range(100):
            message = consumer.receive(5000)
            found.append(message.data())
            consumer.acknowledge(message)
        consumer.unsubscribe()
        return found

    assert await in_thread(run) == [b"%d" % number for number in range(100)]
    assert (await broker.admin.statistics.stats(NAME)).subscriptions == {}


async def test_a_stock_reader_gets_a_large_message(client: pulsar.Client) -> None:
    large = bytes(range(256)) * 4096 * 4

    def run() -> list[bytes]:
        reader = client.create_reader(TOPIC, pulsar.MessageId.latest)
        made = client.create_producer(TOPIC)
        made.send(b"small")
        made.send(large)
        return [reader.read_next(5000).data() for _ in range(2)]

    assert await in_thread(run) == [b"small", large]


async def test_chunks_pass_like_any_other_message(broker: Broker) -> None:
    client, consumer = await publishing(broker), await subscribed(broker, permits=10)
    for chunk in range(3):
        metadata = pb.MessageMetadata(
            producer_name="p", sequence_id=7, publish_time=1, uuid="u", chunk_id=chunk, num_chunks_from_msg=3
        )
        body = pb.CommandSend(producer_id=1, sequence_id=7, is_chunk=True)
        chunked = pb.BaseCommand(type=pb.BaseCommand.SEND, send=body)
        client.send(with_entry(chunked, message.seal(metadata, b"part")))
    assert kinds(await client.answers(3)) == ["SEND_RECEIPT"] * 3
    assert len(await deliveries(consumer)) == 3


async def test_one_that_nobody_uses_is_let_go(broker: Broker) -> None:
    client, consumer = await publishing(broker), await subscribed(broker)
    client.connection.connection_lost(None)
    for _ in range(3):
        await broker.rounds.idle.unload_unused()
    assert broker.registry.find(NAME) is not None
    consumer.connection.connection_lost(None)
    await broker.rounds.idle.unload_unused()
    assert broker.registry.find(NAME) is not None, "not at the first look"
    await broker.rounds.idle.unload_unused()
    assert broker.registry.find(NAME) is None


async def test_a_key_whose_consumer_takes_nothing_is_dropped_alone(broker: Broker) -> None:
    client = await publishing(broker)
    full = await subscribed(broker, "Key_Shared", 1)
    ready = await subscribed(broker, "Key_Shared", 2, permits=1000)
    keys = [f"key {number}" for number in range(40)]
    for number, key in enumerate(keys):
        metadata = pb.MessageMetadata(
            producer_name="p", sequence_id=number, publish_time=1, partition_key=key
        )
        client.send(*commands.send(1, number, 1, message.seal(metadata, b"x")))
    found = await deliveries(ready)
    stats = await subscription_stats(broker)
    assert 0 < len(found) < len(keys) and not await deliveries(full)
    assert (stats.msg_drop_counter, stats.msg_out_counter) == (len(keys) - len(found), len(found))
    full.send(commands.flow(1, 1000))
    assert not await deliveries(full) and (await subscription_stats(broker)).unacked_messages == 0
    client.send(
        *[
            part
            for n in range(50)
            for part in commands.send(
                1,
                100 + n,
                1,
                message.seal(
                    pb.MessageMetadata(
                        producer_name="p", sequence_id=n, publish_time=1, partition_key=f"key {n}"
                    ),
                    b"y",
                ),
            )
        ]
    )
    assert len(await deliveries(full)) + len(await deliveries(ready)) == 50
