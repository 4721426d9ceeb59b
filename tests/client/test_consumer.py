"""Consuming: order, acks, redelivery, seeks, readers, reconnects, cancellation, permits."""

from __future__ import annotations

import asyncio

import pytest

from quire.client import (
    EARLIEST,
    LATEST,
    Client,
    ClientSettings,
    Closed,
    Consumer,
    ConsumerBusy,
    ConsumerSettings,
    Message,
    MessageId,
    MessageUndecodable,
)
from quire.client.entry import from_words, to_words
from quire.client.errors import from_server
from quire.runtime.errors import ConfigurationError, OutcomeUnknown, Unavailable
from quire.wire import message
from quire.wire import pulsar_pb2 as pb
from quire.wire.compression import NAMES
from quire.wire.message import OutgoingMessage
from tests.client.fake_broker import LEDGER, FakeBroker

TOPIC = "persistent://public/default/t"
KEY = TOPIC, "s"
AT_ONCE = ConsumerSettings(ack_delay_ms=0, nack_delay_ms=0)


def batch(first: int, count: int, codec: str = "none", time_ms: int = 1_000) -> bytes:
    """An entry of `count` messages whose payloads are their numbers from `first` on."""
    messages = [OutgoingMessage(b"%d" % i, f"key {i}", {"n": str(i)}) for i in range(first, first + count)]
    return message.encode_batch(messages, "p", first, time_ms, NAMES[codec])


def single(number: int, time_ms: int = 1_000) -> bytes:
    return message.encode_one(OutgoingMessage(b"%d" % number), "p", number, time_ms)


async def take(consumer: Consumer, count: int) -> list[Message]:
    return [await consumer.receive(5) for _ in range(count)]


def numbers(messages: list[Message]) -> list[int]:
    return [int(one.payload or b"") for one in messages]


async def test_messages_come_in_order_with_all_that_they_have(broker: FakeBroker, client: Client) -> None:
    for i, codec in enumerate(NAMES):
        broker.publish(TOPIC, batch(10 * i, 10, codec))
    broker.publish(TOPIC, single(50))
    async with client.consumer("t", "s", start=EARLIEST) as consumer:
        got = await take(consumer, 51)
    assert numbers(got) == list(range(51))
    one = got[23]
    assert (one.id[:3], one.id.batch_size) == ((LEDGER, 2, 3), 10)
    assert (one.key, one.properties, one.sequence_id) == ("key 23", {"n": "23"}, 23)
    assert (one.publish_time_ms, one.producer_name, one.topic) == (1_000, "p", TOPIC)
    assert str(got[50].id) == f"{LEDGER}:5:-1:-1"


async def test_an_entry_is_acked_with_its_last_message(broker: FakeBroker, client: Client) -> None:
    broker.publish(TOPIC, batch(0, 3))
    broker.publish(TOPIC, single(3))
    settings = ConsumerSettings(ack_delay_ms=0, batch_index_ack=False)
    async with client.consumer("t", "s", start=EARLIEST, settings=settings) as consumer:
        first, second, third, alone = await take(consumer, 4)
        await consumer.ack(alone)
        await consumer.ack(first)
        await consumer.ack(third)
        await consumer.ack(third)
        await consumer.flush_acks()
        assert broker.fully_acked(*KEY) == [1]
        await consumer.ack(second)
        await consumer.flush_acks()
        assert broker.fully_acked(*KEY) == [0, 1]
    assert all(not one.ack_set for body in broker.all(pb.CommandAck) for one in body.message_id)


async def test_with_batch_index_acks_only_the_rest_comes_again(broker: FakeBroker, client: Client) -> None:
    broker.publish(TOPIC, batch(0, 70))
    broker.publish(TOPIC, batch(70, 5))
    async with client.consumer("t", "s", start=EARLIEST, type="shared", settings=AT_ONCE) as consumer:
        got = await take(consumer, 75)
        for one in got[70:73]:
            await consumer.ack(one)
        await consumer.flush_acks()
        assert broker.cursors[KEY].unacked[1] == 0b11000
        await consumer.nack(got[73])
        again = await take(consumer, 2)
        assert numbers(again) == [73, 74]
        assert [one.redelivery_count for one in again] == [1, 1]


async def test_acks_by_id_and_cumulative_acks(broker: FakeBroker, client: Client) -> None:
    for i in range(4):
        broker.publish(TOPIC, batch(4 * i, 4))
    async with client.consumer("t", "s", start=EARLIEST, settings=AT_ONCE) as consumer:
        got = await take(consumer, 16)
        await consumer.ack(MessageId(LEDGER, 3))
        await consumer.ack(got[4].id)
        await consumer.flush_acks()
        assert broker.cursors[KEY].unacked == {0: 15, 1: 14, 2: 15, 3: 0}
        await consumer.ack_cumulative(got[9])
        await consumer.flush_acks()
        assert broker.cursors[KEY].unacked == {0: 0, 1: 0, 2: 0b1100, 3: 0}
    async with client.consumer("t", "shared", type="shared") as consumer:
        with pytest.raises(ConfigurationError, match="does not allow cumulative acks"):
            await consumer.ack_cumulative(MessageId(LEDGER, 0))


async def test_flush_acks_has_the_broker_answer_for_acks_already_sent(
    broker: FakeBroker, client: Client
) -> None:
    broker.publish(TOPIC, single(0))
    async with client.consumer("t", "s", start=EARLIEST, settings=AT_ONCE) as consumer:
        await consumer.ack((await take(consumer, 1))[0])
        await broker.until(lambda: len(broker.all(pb.CommandAck)) == 1)
        assert not broker.all(pb.CommandAck)[0].HasField("request_id")
        await consumer.flush_acks()
        assert broker.all(pb.CommandAck)[1].HasField("request_id")
        await consumer.flush_acks()
    assert len(broker.all(pb.CommandAck)) == 2


async def test_who_flushes_acks_waits_for_all_that_were_sent_before(
    broker: FakeBroker, client: Client
) -> None:
    """Also for those that another flush waits for, and for those that were sent while it waited."""
    for number in range(2):
        broker.publish(TOPIC, single(number))
    async with client.consumer("t", "s", start=EARLIEST, settings=AT_ONCE) as consumer:
        first, second = await take(consumer, 2)
        broker.mute.add(pb.CommandAck)
        await consumer.ack(first)
        flushes = [asyncio.ensure_future(consumer.flush_acks()) for _ in range(2)]
        await broker.until(lambda: any(one.HasField("request_id") for one in broker.all(pb.CommandAck)))
        assert not any(one.done() for one in flushes), "nothing was answered yet"
        await consumer.ack(second)
        await broker.until(lambda: broker.all(pb.CommandAck)[-1].message_id[0].entryId == 1)
        broker.mute.clear()
        broker.drop()
        for one in flushes:
            with pytest.raises(OutcomeUnknown):
                await one
        with pytest.raises(OutcomeUnknown):
            await consumer.flush_acks()


async def test_acks_without_an_answer_are_unknown_and_sent_again(broker: FakeBroker, client: Client) -> None:
    broker.publish(TOPIC, single(0))
    broker.mute.add(pb.CommandAck)
    settings = ConsumerSettings(ack_delay_ms=60_000)
    async with client.consumer("t", "s", start=EARLIEST, settings=settings) as consumer:
        await consumer.ack((await take(consumer, 1))[0])
        flushing = asyncio.create_task(consumer.flush_acks())
        await broker.until(lambda: len(broker.all(pb.CommandAck)) == 1)
        broker.mute.clear()
        broker.drop()
        with pytest.raises(OutcomeUnknown):
            await flushing
        await broker.until(lambda: broker.fully_acked(*KEY) == [0])


async def test_acks_under_way_with_a_connection_that_is_lost_are_not_taken_for_answered(
    broker: FakeBroker, client: Client
) -> None:
    """An answer on the next connection says nothing about what the last one took with it."""
    broker.publish(TOPIC, single(0))
    broker.publish(TOPIC, single(1))
    async with client.consumer("t", "s", start=EARLIEST, settings=AT_ONCE) as consumer:
        for message in await take(consumer, 2):
            await consumer.ack(message)
        await broker.until(lambda: len(broker.all(pb.CommandAck)) >= 1)
        broker.drop()
        await broker.until(lambda: len(broker.all(pb.CommandSubscribe)) == 2)
        with pytest.raises(OutcomeUnknown, match="in flight"):
            await consumer.flush_acks()
        await consumer.flush_acks()


async def test_leaving_sends_the_acks(broker: FakeBroker, client: Client) -> None:
    broker.publish(TOPIC, single(0))
    settings = ConsumerSettings(ack_delay_ms=60_000)
    async with client.consumer("t", "s", start=EARLIEST, settings=settings) as consumer:
        await consumer.ack((await take(consumer, 1))[0])
    assert broker.fully_acked(*KEY) == [0]


async def test_a_rewind_of_an_exclusive_subscription(broker: FakeBroker, client: Client) -> None:
    for i in range(4):
        broker.publish(TOPIC, single(i))
    async with client.consumer("t", "s", start=EARLIEST, settings=AT_ONCE) as consumer:
        got = await take(consumer, 2)
        await consumer.ack(got[0])
        await consumer.nack(got[1])
        await broker.until(lambda: len(broker.all(pb.CommandRedeliverUnacknowledgedMessages)) == 1)
        assert numbers(await take(consumer, 3)) == [1, 2, 3]


# -- Reconnects and cancellation -----------------------------------------------------------------------


async def test_after_a_reconnect_what_was_not_acked_comes_again(broker: FakeBroker, client: Client) -> None:
    for i in range(6):
        broker.publish(TOPIC, single(i))
    settings = ConsumerSettings(ack_delay_ms=60_000)
    async with client.consumer("t", "s", start=EARLIEST, settings=settings) as consumer:
        got = await take(consumer, 3)
        for one in got[:2]:
            await consumer.ack(one)
        broker.drop()
        await broker.until(lambda: len(broker.all(pb.CommandSubscribe)) == 2)
        assert numbers(await take(consumer, 4)) == [2, 3, 4, 5]
        assert consumer.receive_nowait() is None
        broker.publish(TOPIC, single(6))
        assert numbers(await take(consumer, 1)) == [6]


async def test_a_cancelled_receive_loses_nothing(broker: FakeBroker, client: Client) -> None:
    async with client.consumer("t", "s", start=EARLIEST) as consumer:
        got = []
        for i in range(20):
            waiting = asyncio.create_task(consumer.receive())
            await asyncio.sleep(0)
            broker.publish(TOPIC, single(i))
            waiting.cancel()
            await asyncio.wait([waiting])
            if not waiting.cancelled():
                got.append(waiting.result())
        got += await take(consumer, 20 - len(got))
        assert numbers(got) == list(range(20))
        with pytest.raises(TimeoutError):
            await consumer.receive(0)


async def test_cancelled_in_the_turn_in_which_the_message_came(broker: FakeBroker, client: Client) -> None:
    async with client.consumer("t", "s", start=EARLIEST) as consumer:
        waiting = asyncio.create_task(consumer.receive())
        put = consumer._inbox.put

        def put_and_cancel(arrival: object) -> None:
            put(arrival)  # type: ignore[arg-type]
            waiting.cancel()

        consumer._inbox.put = put_and_cancel  # type: ignore[method-assign,assignment]
        await asyncio.sleep(0)
        broker.publish(TOPIC, single(0))
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        assert numbers(await take(consumer, 1)) == [0]


async def test_several_tasks_share_a_consumer(broker: FakeBroker, client: Client) -> None:
    async with client.consumer("t", "s", start=EARLIEST) as consumer:
        tasks = [asyncio.create_task(consumer.receive(5)) for _ in range(3)]
        await asyncio.sleep(0)
        broker.publish(TOPIC, batch(0, 3))
        assert sorted(numbers(await asyncio.gather(*tasks))) == [0, 1, 2]


async def test_the_iteration_ends_with_the_consumer(broker: FakeBroker, client: Client) -> None:
    broker.publish(TOPIC, batch(0, 3))
    seen = []
    async with client.consumer("t", "s", start=EARLIEST) as consumer:
        async for one in consumer:
            seen.append(one)
            if len(seen) == 3:
                await consumer.close()
    assert numbers(seen) == [0, 1, 2]
    with pytest.raises(Closed):
        await consumer.receive()


async def test_a_refused_subscription(broker: FakeBroker, client: Client) -> None:
    broker.refuse(pb.CommandSubscribe, pb.ConsumerBusy, "somebody is there")
    with pytest.raises(ConsumerBusy, match=r"the subscription s on .* was refused: somebody is there"):
        await client.consumer("t", "s").start()
    with pytest.raises(ConfigurationError, match="type must be one of"):
        client.consumer("t", "s", type="lone")
    with pytest.raises(ConfigurationError, match="name of a subscription"):
        client.consumer("t", "")


# -- Entries that are none -----------------------------------------------------------------------------


async def test_an_undecodable_entry_is_named_and_the_rest_goes_on(broker: FakeBroker, client: Client) -> None:
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=1, compression=pb.ZSTD, uncompressed_size=9
    )
    broker.publish(TOPIC, message.seal(metadata, b"not zstd"))
    damaged = bytearray(single(1))
    damaged[-1] ^= 1
    broker.publish(TOPIC, bytes(damaged))
    broker.publish(TOPIC, single(2))
    async with client.consumer("t", "s", start=EARLIEST, settings=AT_ONCE) as consumer:
        with pytest.raises(MessageUndecodable, match=rf"message {LEDGER}:0:-1:-1 of .*decompress") as caught:
            await consumer.receive(5)
        with pytest.raises(MessageUndecodable, match="checksum"):
            await consumer.receive(5)
        assert numbers(await take(consumer, 1)) == [2]
        assert isinstance(caught.value.message_id, MessageId)
        await consumer.ack(caught.value.message_id)
        await consumer.flush_acks()
    assert broker.fully_acked(*KEY) == [0]


# -- Seeks and readers ---------------------------------------------------------------------------------


async def test_seek_to_an_id_and_to_a_time(broker: FakeBroker, client: Client) -> None:
    for i in range(10):
        broker.publish(TOPIC, single(i, 1_000 + i))
    async with client.consumer("t", "s", start=EARLIEST, settings=AT_ONCE) as consumer:
        got = await take(consumer, 5)
        await consumer.ack(got[0])
        await consumer.seek(got[2].id)
        assert numbers(await take(consumer, 8)) == [2, 3, 4, 5, 6, 7, 8, 9]
        await consumer.seek(publish_time_ms=1_007)
        assert numbers(await take(consumer, 3)) == [7, 8, 9]
        await consumer.seek(EARLIEST)
        assert numbers(await take(consumer, 1)) == [0]
        await consumer.seek(LATEST)
        broker.publish(TOPIC, single(10))
        assert numbers(await take(consumer, 1)) == [10]


async def test_an_entry_without_any_message_left_is_acked(broker: FakeBroker, client: Client) -> None:
    gone = pb.SingleMessageMetadata(payload_size=0, compacted_out=True).SerializeToString()
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=2)
    broker.publish(TOPIC, message.seal(metadata, 2 * (len(gone).to_bytes(4, "big") + gone)))
    broker.publish(TOPIC, single(1))
    async with client.consumer("t", "s", start=EARLIEST, settings=AT_ONCE) as consumer:
        assert numbers(await take(consumer, 1)) == [1]
        await consumer.flush_acks()
    assert broker.fully_acked(*KEY) == [0]


async def test_seek_into_a_batch(broker: FakeBroker, client: Client) -> None:
    broker.publish(TOPIC, batch(0, 4))
    broker.publish(TOPIC, batch(4, 4))
    async with client.consumer("t", "s", start=EARLIEST) as consumer:
        got = await take(consumer, 8)
        await consumer.seek(got[6].id)
        assert numbers(await take(consumer, 2)) == [6, 7]


async def test_one_seek_right_after_another(broker: FakeBroker, client: Client) -> None:
    for i in range(4):
        broker.publish(TOPIC, single(i))
    async with client.consumer("t", "s", start=LATEST) as consumer:
        for to in (EARLIEST, LATEST, MessageId(LEDGER, 2)):
            await consumer.seek(to)
        assert await consumer.last_message_id() == MessageId(LEDGER, 3, topic=TOPIC)
        assert numbers(await take(consumer, 2)) == [2, 3]


@pytest.mark.parametrize(
    ("start", "inclusive", "first"),
    [
        (EARLIEST, False, 0),
        (MessageId(LEDGER, 1, 1, -1, 4), False, 6),
        (MessageId(LEDGER, 1, 1, -1, 4), True, 5),
        (MessageId(LEDGER, 1), False, 8),
        (MessageId(LEDGER, 1), True, 4),
        (MessageId(LEDGER, 3), True, 12),
    ],
)
async def test_a_reader_starts_where_it_is_told(
    broker: FakeBroker, client: Client, start: MessageId, inclusive: bool, first: int
) -> None:
    for i in range(3):
        broker.publish(TOPIC, batch(4 * i, 4))
    broker.publish(TOPIC, single(12))
    seen = []
    async with client.reader("t", start=start, inclusive=inclusive) as reader:
        while await reader.has_next():
            seen.append(await reader.read(5))
    assert numbers(seen) == list(range(first, 13))
    assert not broker.all(pb.CommandSubscribe)[0].durable


async def test_a_reader_does_not_get_a_single_message_again_after_a_reconnect(
    broker: FakeBroker, client: Client
) -> None:
    for i in range(3):
        broker.publish(TOPIC, single(i))
    async with client.reader("t", start=EARLIEST) as reader:
        assert numbers([await reader.read(5) for _ in range(2)]) == [0, 1]
        broker.drop()
        await broker.until(lambda: len(broker.all(pb.CommandSubscribe)) == 2)
        assert numbers([await reader.read(5)]) == [2]


def test_a_consumer_that_the_broker_has_just_closed_is_to_be_tried_again() -> None:
    assert isinstance(from_server(pb.ConsumerNotFound, "", "a seek"), Unavailable)


async def test_a_reader_with_messages_at_hand_does_not_ask_for_the_end(
    broker: FakeBroker, client: Client
) -> None:
    for i in range(25):
        broker.publish(TOPIC, batch(4 * i, 4))
    seen = []
    async with client.reader("t", start=EARLIEST) as reader:
        while await reader.has_next():
            seen.append(await reader.read(5))
            if len(seen) == 100:
                broker.publish(TOPIC, single(100))
    assert numbers(seen) == list(range(101))
    assert len(broker.all(pb.CommandGetLastMessageId)) < 10


async def test_a_reader_of_compacted_data_says_so(broker: FakeBroker, client: Client) -> None:
    broker.publish(TOPIC, single(0))
    async with client.reader("t", start=EARLIEST, compacted=True) as reader:
        assert numbers([await reader.read(5)]) == [0]
    async with client.reader("t", start=EARLIEST) as reader:
        assert numbers([await reader.read(5)]) == [0]
    assert [one.read_compacted for one in broker.all(pb.CommandSubscribe)] == [True, False]


async def test_a_reader_goes_on_behind_what_it_read(broker: FakeBroker, client: Client) -> None:
    broker.publish(TOPIC, batch(0, 4))
    broker.publish(TOPIC, batch(4, 4))
    async with client.reader("t", start=EARLIEST) as reader:
        assert numbers([await reader.read(5) for _ in range(6)]) == [0, 1, 2, 3, 4, 5]
        broker.drop()
        await broker.until(lambda: len(broker.all(pb.CommandSubscribe)) == 2)
        assert numbers([await reader.read(5) for _ in range(2)]) == [6, 7]
        assert not await reader.has_next()
        await reader.seek(EARLIEST)
        assert await reader.has_next()
        assert numbers([await reader.read(5)]) == [0]
    assert {one.ack_type for one in broker.all(pb.CommandAck)} == {pb.CommandAck.Cumulative}


async def test_an_empty_topic(broker: FakeBroker, client: Client) -> None:
    async with client.reader("t", start=EARLIEST) as reader:
        assert await reader.last_message_id() == EARLIEST
        assert not await reader.has_next()


async def test_unsubscribe(broker: FakeBroker, client: Client) -> None:
    async with client.consumer("t", "s") as consumer:
        await consumer.unsubscribe()
    assert not broker.cursors


# -- Several topics and partitions ---------------------------------------------------------------------


async def test_partitions_and_topics_together(broker: FakeBroker, client: Client) -> None:
    broker.partitions[TOPIC] = 2
    for i in range(2):
        broker.publish(f"{TOPIC}-partition-{i}", single(i))
    broker.publish("persistent://public/default/u", single(2))
    async with client.consumer(["t", "u"], "s", start=EARLIEST, settings=AT_ONCE) as consumer:
        got = await take(consumer, 3)
        assert sorted(numbers(got)) == [0, 1, 2]
        for one in got:
            await consumer.ack(one)
        await consumer.flush_acks()
        assert {one.id.partition for one in got} == {-1, 0, 1}
        assert len(await consumer.last_message_ids()) == 3
        with pytest.raises(ConfigurationError, match="is not from a topic"):
            await consumer.ack(MessageId(1, 1))
    for i in range(2):
        assert broker.fully_acked(f"{TOPIC}-partition-{i}", "s") == [0]


async def test_a_new_partition_is_read_from_its_beginning(broker: FakeBroker) -> None:
    broker.partitions[TOPIC] = 1
    settings = ClientSettings(partitions_poll_ms=1)
    async with Client(broker.url, settings=settings) as client, client.consumer("t", "s") as consumer:
        broker.publish(f"{TOPIC}-partition-1", single(7))
        broker.partitions[TOPIC] = 2
        assert numbers(await take(consumer, 1)) == [7]


async def test_a_reader_reads_a_new_partition_as_it_reads_the_others(broker: FakeBroker) -> None:
    broker.partitions[TOPIC] = 1
    settings = ClientSettings(partitions_poll_ms=1)
    async with (
        Client(broker.url, settings=settings) as client,
        client.reader("t", start=LATEST, compacted=True) as reader,
    ):
        broker.publish(f"{TOPIC}-partition-1", single(7))
        broker.partitions[TOPIC] = 2
        assert numbers([await reader.read(5)]) == [7]
    first, grown = broker.all(pb.CommandSubscribe)
    assert (first.durable, first.read_compacted) == (grown.durable, grown.read_compacted) == (False, True)


# -- Permits and bits ----------------------------------------------------------------------------------


async def test_permits_are_bounded_by_number_and_by_bytes(broker: FakeBroker, client: Client) -> None:
    settings = ConsumerSettings(prefetch_messages_max=50, prefetch_bytes_max=40_000)
    for i in range(200):
        body = OutgoingMessage(b"%d" % i if i < 50 else bytes(4_000))
        broker.publish(TOPIC, message.encode_one(body, "p", i, 1))
    async with client.consumer("t", "s", start=EARLIEST, settings=settings) as consumer:
        dispatching = next(iter(broker.dispatches()))
        cursor = broker.cursors[KEY]
        await broker.until(lambda: len(cursor.unacked) == 50)
        assert dispatching.permits == 0
        for i in range(200):
            await consumer.receive(5)
            if i > 125:
                assert len(cursor.unacked) - i <= 14
        assert dispatching.permits <= 12


@pytest.mark.parametrize("size", [1, 63, 64, 65, 200])
def test_words_of_a_bit_set(size: int) -> None:
    for bits in (0, 1, (1 << size) - 1, 1 << size - 1):
        words = to_words(bits, size)
        assert len(words) == -(-size // 64)
        assert all(-(1 << 63) <= word < 1 << 63 for word in words)
        assert from_words(words) == bits


def test_message_ids_as_text() -> None:
    one = MessageId(12, 3, 4, 5)
    assert MessageId.parse(str(one)) == one
    assert MessageId.parse("12:3") == MessageId(12, 3)
    for text in ("12", "a:b", "1:2:3:4:5"):
        with pytest.raises(ValueError):
            MessageId.parse(text)
