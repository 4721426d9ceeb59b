"""Messages in chunks on shared subscriptions: stock clients get them whole; why one waits; what is no chunk."""

from __future__ import annotations

from itertools import chain
from random import Random

import pulsar
import pytest
from pulsar import ConsumerType, InitialPosition

from quire.runtime.limits import (
    CHUNK_UUID_CHARS_MAX,
    FIRST_CHUNK_BYTES_MIN,
    MESSAGE_BYTES_MIN,
    METADATA_LOOKED_INTO_BYTES_MAX,
)
from quire.serving.model.ports import Position
from quire.serving.names import TopicName
from quire.serving.subscription.dispatch import blocked
from quire.wire import message
from quire.wire import pulsar_pb2 as pb
from quire.wire.chunks import Chunk, chunk_of, chunks_of
from tests.serving.conftest import QUIET, BrokerHouse, in_thread
from tests.serving.subscription.fakes import chunked
from tests.serving.subscription.stand import SHARED, Stand

WAIT_MS = 10_000
TOPIC = "persistent://public/default/chunks"


@pytest.fixture
async def small(house: BrokerHouse) -> str:
    """The address of a broker whose clients cut what is larger than 4 KiB."""
    return (await house.start(message_bytes_max=MESSAGE_BYTES_MIN)).service_url


def publish(client: pulsar.Client, texts: list[bytes], producers: int) -> None:
    """From several producers at once, so that chunks lie between those of others and between small messages."""
    made = [client.create_producer(TOPIC, chunking_enabled=True) for _ in range(producers)]
    for at, text in enumerate(texts):
        made[at % producers].send_async(text, lambda *_: None)
    for producer in made:
        producer.flush()


def large_and_small(seed: int, count: int) -> list[bytes]:
    rng = Random(seed)
    return [rng.randbytes(rng.choice([10, 100, 5_000, 20_000, 60_000])) for _ in range(count)]


def shared(client: pulsar.Client, **options: object) -> pulsar.Consumer:
    start = InitialPosition.Earliest
    return client.subscribe(TOPIC, "s", ConsumerType.Shared, initial_position=start, **options)


def receive_all(consumers: list[pulsar.Consumer], count: int, *, ack: bool) -> list[list[bytes]]:
    """`count` messages, whichever of the consumers they come to; by consumer, none of them dispatched twice."""
    found: list[list[bytes]] = [[] for _ in consumers]
    waited_ms = 0
    while sum(map(len, found)) < count:
        for consumer, texts in zip(consumers, found, strict=True):
            try:
                got = consumer.receive(20)
            except pulsar.Timeout:
                waited_ms += 20
                assert waited_ms < WAIT_MS, f"{found=}"[:200]
                continue
            waited_ms = 0
            texts.append(got.data())
            assert got.redelivery_count() == 0
            if ack:
                consumer.acknowledge(got)
    return found


@pytest.mark.parametrize(("queue", "is_behind"), [(1, False), (1_000, False), (1, True), (3, True)])
async def test_stock_consumers_get_every_message_whole(
    house: BrokerHouse, small: str, queue: int, is_behind: bool
) -> None:
    texts = large_and_small(queue, 60)

    def work() -> list[list[bytes]]:
        one, two = [pulsar.Client(small, logger=QUIET) for _ in range(2)]
        if is_behind:
            publish(one, texts, 4)
        consumers = [shared(client, receiver_queue_size=queue) for client in (one, two, two)]
        if not is_behind:
            publish(one, texts, 4)
        found = receive_all(consumers, len(texts), ack=True)
        one.close()
        two.close()
        return found

    found = await in_thread(work)
    assert sorted(chain.from_iterable(found)) == sorted(texts)
    assert sum(map(bool, found)) > 1, "one consumer got all"
    (broker,) = house.running
    assert (await broker.admin.statistics.stats(TopicName.parse(TOPIC))).subscriptions["s"].msg_backlog == 0


async def test_what_a_consumer_held_comes_to_another_whole(small: str) -> None:
    texts = large_and_small(7, 30)

    def work() -> None:
        one, two = [pulsar.Client(small, logger=QUIET) for _ in range(2)]
        consumers = [shared(client) for client in (one, two)]
        publish(two, texts, 3)
        kept, _ = receive_all(consumers, len(texts), ack=False)
        one.close()
        (again,) = receive_all(consumers[1:], len(kept), ack=False)
        assert kept and sorted(again) == sorted(kept)
        two.close()

    await in_thread(work)


async def test_stats_say_that_chunks_wait_for_their_consumer(stand: Stand) -> None:
    one, at_one = await stand.consumer(SHARED, permits=1)
    two, at_two = await stand.consumer(SHARED, permits=10)
    for number in range(2):
        place = Position(1, number)
        stand.topic.publish([1], [chunked("u", number, 2, place, FIRST_CHUNK_BYTES_MIN)])
    found = stand.subscriptions.get("s")
    assert found is not None
    stand.topic.publish([1])
    assert (at_one.positions(), at_two.positions()) == ([(1, 0)], [(1, 2)])
    assert (await found.stats.describe()).blocked_reason == blocked.CHUNKS
    one.flow(1)
    assert at_one.positions() == [(1, 1)]
    assert (await found.stats.describe()).blocked_reason == ""
    two.close()
    one.close()


def sealed(**fields: object) -> memoryview:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, **fields)
    return memoryview(message.seal(metadata, b"payload"))


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        (sealed(uuid="u", chunk_id=0, num_chunks_from_msg=3), Chunk("u", True, False)),
        (sealed(uuid="u", chunk_id=1, num_chunks_from_msg=3), Chunk("u", False, False)),
        (sealed(uuid="u", chunk_id=2, num_chunks_from_msg=3), Chunk("u", False, True)),
        (sealed(), None),
        (sealed(partition_key="\x68\x01\u8001"), None),
        (sealed(uuid="u", chunk_id=0, num_chunks_from_msg=1), None),
        (sealed(uuid="u", chunk_id=3, num_chunks_from_msg=3), None),
        (sealed(uuid="u", chunk_id=-1, num_chunks_from_msg=3), None),
        (sealed(chunk_id=0, num_chunks_from_msg=3), None),
        (sealed(uuid="u" * (CHUNK_UUID_CHARS_MAX + 1), chunk_id=0, num_chunks_from_msg=3), None),
        (
            sealed(
                uuid="u",
                chunk_id=0,
                num_chunks_from_msg=3,
                partition_key="k" * METADATA_LOOKED_INTO_BYTES_MAX,
            ),
            None,
        ),
        (memoryview(b"\x0e\x01"), None),
        (memoryview(b"\x0e\x01\0\0\0\0\0\0\0\x05\xe8\x01\xff\xff\xff"), None),
    ],
)
def test_what_is_a_chunk(entry: memoryview, found: Chunk | None) -> None:
    assert chunk_of(entry) == found
    other = sealed()
    assert chunks_of([other, entry]) == ({} if found is None else {1: found})
