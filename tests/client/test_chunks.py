"""Messages that are larger than an entry: cut, joined, lost pieces, bounds; beside the stock client, both ways."""

from __future__ import annotations

import asyncio
from random import Random

import pulsar
import pytest

from quire.client import (
    EARLIEST,
    Client,
    Consumer,
    ConsumerSettings,
    MessageId,
    ProducerSettings,
    PublishFailed,
)
from quire.client.chunks import Incomplete, Joined, Joiner, cut
from quire.runtime.limits import MESSAGE_BYTES_MIN, MIB
from quire.serving.broker import Broker
from quire.serving.names import TopicName
from quire.wire import commands, message
from quire.wire import pulsar_pb2 as pb
from quire.wire.compression import NAMES
from quire.wire.message import Undecodable
from tests.client.fake_broker import FakeBroker
from tests.serving.conftest import BrokerHouse, in_thread

TOPIC = "persistent://public/default/t"
CHUNKED = ProducerSettings(chunking=True)
LARGE = Random(7).randbytes(11 * MIB)


def chunks(payload: bytes, size: int, sequence_id: int = 0) -> list[tuple[pb.MessageMetadata, bytes]]:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=1)
    made = []
    for piece in cut(metadata, payload, size):
        copy = pb.MessageMetadata()
        copy.CopyFrom(metadata)
        made.append((copy, bytes(piece)))
    return made


def entries(payload: bytes, size: int, sequence_id: int = 0) -> list[bytes]:
    return [message.seal(*one) for one in chunks(payload, size, sequence_id)]


def at(entry_id: int) -> pb.MessageIdData:
    return commands.message_id(3, entry_id)


# -- The core ------------------------------------------------------------------------------------------


def test_what_is_cut_is_joined_in_any_mixture() -> None:
    rng = Random(1)
    joiner = Joiner(10)
    payloads = [rng.randbytes(rng.randrange(1, 100)) for _ in range(8)]
    waiting = [list(chunks(payload, 7, number)) for number, payload in enumerate(payloads)]
    found, entry_id = {}, 0
    while waiting:
        pieces = rng.choice(waiting)
        metadata, piece = pieces.pop(0)
        outcome = joiner.add(metadata, piece, at(entry_id), 0.0)
        entry_id += 1
        if not pieces:
            assert isinstance(outcome, Joined)
            assert len(outcome.before) == metadata.num_chunks_from_msg - 1
            found[metadata.sequence_id] = bytes(outcome.payload)
            waiting.remove(pieces)
    assert [found[i] for i in range(8)] == payloads
    assert not len(joiner)


def test_what_comes_twice_and_what_has_no_beginning() -> None:
    joiner = Joiner(10)
    (first, a), (second, b), (third, c) = chunks(b"abcdef", 2)
    assert joiner.add(second, b, at(0), 0.0) is Incomplete.ORPHANED
    assert joiner.add(first, a, at(1), 0.0) is Incomplete.WAITS
    assert joiner.add(third, c, at(2), 0.0) is Incomplete.ORPHANED
    assert joiner.add(second, b, at(3), 0.0) is Incomplete.WAITS
    assert joiner.add(second, b, at(4), 0.0) is Incomplete.REPEATED
    outcome = joiner.add(third, c, at(5), 0.0)
    assert isinstance(outcome, Joined)
    assert (bytes(outcome.payload), outcome.before) == (b"abcdef", (at(1), at(3)))


def test_a_first_chunk_that_comes_again_begins_again() -> None:
    joiner = Joiner(10)
    (first, a), (second, b) = chunks(b"abcd", 2)
    joiner.add(first, a, at(0), 0.0)
    joiner.add(first, a, at(1), 0.0)
    outcome = joiner.add(second, b, at(2), 0.0)
    assert isinstance(outcome, Joined) and outcome.before == (at(1),)


def test_a_chunk_of_what_was_joined_already() -> None:
    joiner = Joiner(10)
    (first, a), (second, b) = chunks(b"abcd", 2)
    joiner.add(first, a, at(0), 0.0)
    joiner.add(second, b, at(1), 0.0)
    assert joiner.add(second, b, at(2), 0.0) is Incomplete.REPEATED
    assert joiner.add(first, a, at(3), 0.0) is Incomplete.WAITS, "it may be another message of that name"


def test_bounds_of_what_is_incomplete() -> None:
    joiner = Joiner(2)
    for number in range(3):
        metadata, piece = chunks(b"abcd", 2, number)[0]
        joiner.add(metadata, piece, at(number), float(number))
    assert joiner.first_id == at(0)
    assert joiner.overflowing() == [at(0)]
    assert joiner.expired(2.0) == [at(1)]
    assert joiner.expired(2.0) == []
    metadata, _ = chunks(b"abcd", 2, 7)[0]
    metadata.total_chunk_msg_size = 1 << 30
    with pytest.raises(Undecodable, match="announces"):
        joiner.add(metadata, b"ab", at(9), 0.0)
    (first, a), (second, _) = chunks(b"abcd", 2, 8)
    joiner.add(first, a, at(10), 0.0)
    with pytest.raises(Undecodable, match="belong"):
        joiner.add(second, b"more than there is", at(11), 0.0)


def test_ids_of_messages_in_chunks_as_text() -> None:
    one = MessageId(12, 9, -1, 2, first_chunk=(12, 7))
    assert str(one) == "12:7:2:-1;12:9:2:-1"
    assert MessageId.parse(str(one)) == one
    assert one.beginning == MessageId(12, 7, -1, 2)


# -- A fake broker -------------------------------------------------------------------------------------


async def test_only_chunks_without_a_receipt_are_sent_again(broker: FakeBroker, client: Client) -> None:
    broker.message_bytes_max = 10_000
    broker.hold_receipts()
    payload = Random(2).randbytes(35_000)
    async with client.producer("t", settings=CHUNKED) as producer:
        sending = producer.send_nowait(payload)
        await broker.until(lambda: len(broker.stored) == 4)
        assert broker.held is not None
        for give in broker.held[:2]:
            give()
        await client.partitions("t")  # its answer comes behind the receipts
        broker.held = None
        broker.drop()
        receipt = await sending
    assert [entry for _, entry in broker.stored[4:]] == [entry for _, entry in broker.stored[2:4]]
    assert receipt.message_id.first_chunk == (3, 0)
    async with client.consumer("t", "s", start=EARLIEST) as consumer:
        found = await consumer.receive(5)
        assert (found.payload, found.id.first_chunk, found.id[:2]) == (payload, (3, 0), (3, 3))
        await consumer.ack(found)
        with pytest.raises(TimeoutError):
            await consumer.receive(0.2)  # what was sent twice
        await consumer.flush_acks()
        assert broker.fully_acked(TOPIC, "s") == [0, 1, 2, 3, 4, 5]


async def test_chunks_whose_others_never_come_are_acknowledged(broker: FakeBroker, client: Client) -> None:
    for entry in entries(b"abcdef", 2)[:2]:
        broker.publish(TOPIC, entry)
    settings = ConsumerSettings(chunks_expire_ms=50, ack_delay_ms=0)
    async with client.consumer("t", "s", start=EARLIEST, settings=settings) as consumer:
        with pytest.raises(TimeoutError):
            await consumer.receive(0.01)
        await broker.until(lambda: broker.fully_acked(TOPIC, "s") == [0, 1])


async def test_a_reader_that_comes_back_begins_with_the_first_chunk(
    broker: FakeBroker, client: Client
) -> None:
    first, *others = entries(b"abcdef", 2)
    broker.publish(TOPIC, first)
    broker.publish(TOPIC, message.encode_one(message.OutgoingMessage(b"between"), "q", 0, 1))
    async with client.reader("t", start=EARLIEST) as reader:
        assert (await reader.read(5)).payload == b"between"
        broker.drop()
        await broker.until(lambda: len(broker.all(pb.CommandSubscribe)) == 2)
        for entry in others:
            broker.publish(TOPIC, entry)
        assert (await reader.read(5)).payload == b"abcdef"


async def test_a_shared_consumer_gives_back_what_has_no_beginning(broker: FakeBroker, client: Client) -> None:
    first, *others = entries(b"abcdef", 2)
    for entry in [*others, first]:
        broker.publish(TOPIC, entry)
    settings = ConsumerSettings(nack_delay_ms=10)
    async with client.consumer("t", "s", start=EARLIEST, type="shared", settings=settings) as consumer:
        assert (await consumer.receive(5)).payload == b"abcdef"


# -- A real one ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", NAMES)
async def test_large_messages_between_small_ones(ours: Client, codec: str) -> None:
    settings = ProducerSettings(chunking=True, compression=codec)
    async with ours.producer("t", settings=settings) as producer, ours.producer("t") as beside:
        first = await producer.send(LARGE, key="k", properties={"a": "b"})
        await beside.send(b"small")
        await producer.send(b"end")
    assert first.message_id.first_chunk is not None
    async with ours.consumer("t", "s", start=EARLIEST) as consumer:
        large = await consumer.receive(10)
        assert (large.payload, large.key, large.properties) == (LARGE, "k", {"a": "b"})
        assert large.id == first.message_id
        assert [(await consumer.receive(10)).payload for _ in range(2)] == [b"small", b"end"]
        await consumer.seek(large.id)
        assert (await consumer.receive(10)).payload == LARGE
    async with ours.reader("t", start=large.id, inclusive=True) as reader:
        assert (await reader.read(10)).payload == LARGE
    async with ours.reader("t", start=large.id) as reader:
        assert (await reader.read(10)).payload == b"small"


async def test_an_ack_covers_all_chunks(real: Broker, ours: Client) -> None:
    async with ours.producer("t", settings=CHUNKED) as producer:
        await producer.send(LARGE)
        await producer.send(LARGE)
    async with ours.consumer("t", "s", start=EARLIEST, type="shared") as consumer:
        one, two = [await consumer.receive(10) for _ in range(2)]
        await consumer.ack(one)
        await consumer.ack(two.id)
        await consumer.flush_acks()
        assert (await real.admin.statistics.stats(TopicName.parse(TOPIC))).subscriptions["s"].msg_backlog == 0


async def test_shared_consumers_get_whole_messages_and_nothing_twice(house: BrokerHouse) -> None:
    broker = await house.start(message_bytes_max=MESSAGE_BYTES_MIN)
    settings = ConsumerSettings(prefetch_messages_max=2)
    large = LARGE[: 4 * MESSAGE_BYTES_MIN]
    async with Client(broker.service_url) as ours:
        async with ours.producer("t", settings=CHUNKED) as producer, ours.producer("t") as beside:
            for _ in range(4):
                await producer.send(large)
                await beside.send(b"small")
        async with (
            ours.consumer("t", "s", start=EARLIEST, type="shared", settings=settings) as one,
            ours.consumer("t", "s", start=EARLIEST, type="shared", settings=settings) as two,
            asyncio.timeout(60),
        ):
            found: list[bytes | None] = []

            async def take(consumer: Consumer[bytes]) -> None:
                while len(found) < 8:
                    try:
                        message = await consumer.receive(0.1)
                    except TimeoutError:
                        continue
                    assert message.redelivery_count == 0
                    found.append(message.payload)
                    await consumer.ack(message)
                await consumer.flush_acks()

            await asyncio.gather(take(one), take(two))
            assert sorted(found, key=len) == [b"small"] * 4 + [large] * 4
            subscription = (await broker.admin.statistics.stats(TopicName.parse(TOPIC))).subscriptions["s"]
            assert subscription.msg_backlog == 0
            assert subscription.msg_out_counter == 4 * 5 + 4, (
                "five chunks each, and what is small, dispatched once"
            )


async def test_a_nack_brings_the_whole_message_again(ours: Client) -> None:
    settings = ConsumerSettings(nack_delay_ms=1)
    async with ours.producer("t", settings=CHUNKED) as producer:
        await producer.send(LARGE)
    async with ours.consumer("t", "s", start=EARLIEST, type="shared", settings=settings) as consumer:
        await consumer.nack(await consumer.receive(10))
        again = await consumer.receive(10)
        assert (again.payload == LARGE, again.redelivery_count) == (True, 1)


async def test_without_chunking_what_is_too_large_fails(ours: Client) -> None:
    async with ours.producer("t") as producer:
        with pytest.raises(PublishFailed, match="too large"):
            await producer.send(LARGE)


async def test_the_stock_client_joins_what_we_cut(ours: Client, stock: pulsar.Client) -> None:
    consumer = await in_thread(lambda: stock.subscribe("t", "s"))
    async with ours.producer("t", settings=CHUNKED) as producer:
        receipt = await producer.send(LARGE)
        await producer.send(b"small")
    got = await in_thread(lambda: [consumer.receive(20_000) for _ in range(2)])
    assert [one.data() for one in got] == [LARGE, b"small"]
    last = got[0].message_id()
    assert (last.ledger_id(), last.entry_id()) == receipt.message_id[:2]


async def test_we_join_what_the_stock_client_cuts(ours: Client, stock: pulsar.Client) -> None:
    producer = await in_thread(lambda: stock.create_producer("t", chunking_enabled=True))
    async with ours.consumer("t", "s", start=EARLIEST) as consumer:
        sent = await in_thread(lambda: producer.send(LARGE))
        got = await consumer.receive(10)
        assert got.payload == LARGE
        assert got.id[:2] == (sent.ledger_id(), sent.entry_id())
