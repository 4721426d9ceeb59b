"""What clients publish cannot stop the broker's loop, however small it is and however much it means."""

from __future__ import annotations

import asyncio

import pytest
import zstandard

from quire.serving.broker import Broker
from quire.serving.names import TopicName
from quire.serving.topic.compaction import Status
from quire.serving.topic.topic import Topic
from quire.wire import commands, message
from quire.wire import pulsar_pb2 as pb
from tests.serving.conftest import BrokerHouse, Turns
from tests.serving.session.test_connection import Client, producer

TOPIC = "persistent://public/default/hostile"


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
    topic = broker.registry.find(TopicName.parse(TOPIC))
    assert isinstance(topic, Topic)
    async with asyncio.timeout(60):
        await topic.compaction.start()
    assert topic.compaction.status is Status.SUCCESS, topic.compaction.error
