"""What clients publish cannot stop the broker's loop, however small it is and however much it means."""

from __future__ import annotations

import asyncio

import pytest
import zstandard

from quire.serving.broker import Broker
from quire.serving.names import TopicName
from quire.serving.topic.compaction.compaction import Status
from quire.serving.topic.topic import Topic
from quire.wire import commands, message
from quire.wire import pulsar_pb2 as pb
from quire.wire.checksum import crc32c
from tests.serving.conftest import BrokerHouse, Turns
from tests.serving.session.test_connection import Client, producer

TOPIC = "persistent://public/default/hostile"
NAME = TopicName.parse(TOPIC)


def bomb(messages: int, *, payload_bytes: int = 0) -> bytes:
    """An entry of a few hundred bytes that is a batch of so many messages."""
    single = pb.SingleMessageMetadata(payload_size=payload_bytes, partition_key="k").SerializeToString()
    plain = (len(single).to_bytes(4, "big") + single + bytes(payload_bytes)) * messages
    metadata = pb.MessageMetadata(
        producer_name="p",
        sequence_id=0,
        publish_time=1,
        num_messages_in_batch=messages,
        compression=pb.ZSTD,
        uncompressed_size=len(plain),
    )
    return message.seal(metadata, zstandard.ZstdCompressor(level=19).compress(plain))


def with_key(key: bytes) -> bytes:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, ordering_key=key)
    return message.seal(metadata, b"x")


def with_properties(count: int) -> bytes:
    """An entry whose metadata holds so many empty properties, of two bytes each."""
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=1, deliver_at_time=1, partition_key="k"
    )
    body = metadata.SerializeToString() + b"\x22\x00" * count
    body = len(body).to_bytes(4, "big") + body + b"x"
    return b"\x0e\x01" + crc32c(body).to_bytes(4, "big") + body


async def published(broker: Broker, *entries: bytes) -> Client:
    client = Client(broker)
    await client.connect()
    client.send(producer(1, 1, TOPIC))
    await client.answers(1)
    client.send(*(part for at, entry in enumerate(entries) for part in commands.send(1, at, 1, entry)))
    await client.answers(len(entries))
    return client


@pytest.mark.parametrize(
    "entries",
    [
        [bomb(100_000)] * 40,
        [bomb(1_000_000)] * 3,
        [bomb(10, payload_bytes=12 << 20)] * 10,
        [bomb(1_000)] * 20,
    ],
    ids=["thousands in 122 bytes", "a million in 806", "120 MiB in a few KiB", "small ones, looked into"],
)
async def test_compacting_batches_that_grow(turns: Turns, house: BrokerHouse, entries: list[bytes]) -> None:
    broker = await house.start()
    await published(broker, *entries)
    topic = broker.registry.find(NAME)
    assert isinstance(topic, Topic)
    async with asyncio.timeout(60):
        await topic.log.compaction.start(topic.subscriptions)
    assert topic.log.compaction.status is Status.SUCCESS, topic.log.compaction.error


@pytest.mark.parametrize(
    "entry",
    [with_key(b"k" * 5_000_000), with_properties(2_600_000), bomb(1_000_000)],
    ids=["a key of 5 MB", "2,600,000 properties", "a million in 806"],
)
async def test_dispatching_and_finding_what_is_large_inside(
    turns: Turns, house: BrokerHouse, entry: bytes
) -> None:
    """By key, delayed, again; its time, its place at the end, a seek to its time."""
    broker = await house.start()
    client = await published(broker, entry, entry)
    body = pb.CommandSubscribe(
        topic=TOPIC,
        subscription="s",
        subType=pb.CommandSubscribe.Key_Shared,
        consumer_id=1,
        request_id=2,
        initialPosition=pb.CommandSubscribe.Earliest,
    )
    client.send(commands.subscribe(body))
    await client.answers(1)
    client.send(commands.flow(1, 10_000_000))
    await client.answers(2)
    again = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1)
    command = pb.BaseCommand(type=pb.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    command.redeliverUnacknowledgedMessages.CopyFrom(again)
    client.send(commands.frame(command))
    await client.answers(2)
    topic = broker.registry.find(NAME)
    assert isinstance(topic, Topic)
    assert (await topic.log.last_message())[0] == topic.log.last_confirmed
    await broker.admin.subscriptions.reset_cursor(NAME, "s", 1)
    assert await broker.admin.statistics.stats(NAME)
