"""Deduplication through the stock client: what is sent twice is written once, also over restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from struct import pack
from typing import Any

import pulsar
import pytest
from msgspec.structs import replace

from quire.client import Client
from quire.runtime.errors import QuireError, Unavailable
from quire.serving.broker import Broker
from quire.serving.names import TopicName
from quire.serving.topic.dedup import INACTIVE_MS_MAX
from quire.serving.topic.lifecycle import upkeep
from quire.serving.topic.reading import TopicReader
from quire.wire import commands, message
from quire.wire import pulsar_pb2 as pb
from quire.wire.checksum import crc32c
from tests.frames import with_entry
from tests.serving.conftest import AdvancedClock, BrokerHouse, in_thread
from tests.serving.session.test_connection import Client as RawClient
from tests.serving.session.test_connection import producer

TOPIC = "persistent://public/default/dedup"
QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


def publish(url: str, numbers: range, *, batched: bool = False) -> int:
    """Send one message per number, with it as sequence id; answers what the broker says was the last before.

    Numbers begin at 1, because the client takes a sequence id of 0 for none.
    """
    client = pulsar.Client(url, logger=QUIET)
    producer = client.create_producer(
        TOPIC, producer_name="p", batching_enabled=batched, batching_max_publish_delay_ms=5000
    )
    last = producer.last_sequence_id()
    for number in numbers:
        producer.send_async(b"%d" % number, lambda result, _: None, sequence_id=number)
    producer.flush()
    client.close()
    return int(last)


def read_all(url: str) -> list[bytes]:
    client = pulsar.Client(url, logger=QUIET)
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(10_000).data())
    client.close()
    return found


@pytest.mark.parametrize("batched", [False, True])
async def test_a_duplicate_is_answered_and_not_written(house: BrokerHouse, batched: bool) -> None:
    broker = await house.start(deduplication=True)
    url = broker.service_url
    assert await in_thread(lambda: publish(url, range(1, 11), batched=batched)) == -1
    assert await in_thread(lambda: publish(url, range(1, 11), batched=batched)) == 10
    assert await in_thread(lambda: publish(url, range(11, 16), batched=batched)) == 10
    assert await in_thread(lambda: read_all(url)) == [b"%d" % i for i in range(1, 16)]
    assert (await broker.admin.statistics.stats(TopicName.parse(TOPIC))).deduplication_status == "Enabled"


async def test_duplicates_that_come_in_one_read_are_written_once(house: BrokerHouse) -> None:
    broker = await house.start(deduplication=True)
    numbers = [number for odd in range(1, 1000, 2) for number in (odd, odd)]

    def send() -> None:
        client = pulsar.Client(broker.service_url, logger=QUIET)
        producer = client.create_producer(TOPIC, producer_name="p", batching_enabled=False)
        for number in numbers:
            producer.send_async(b"%d" % number, lambda *_: None, sequence_id=number)
        producer.flush()
        client.close()

    await in_thread(send)
    assert await in_thread(lambda: read_all(broker.service_url)) == [b"%d" % i for i in range(1, 1000, 2)]


@pytest.mark.parametrize("how", ["stop", "kill", "unload"])
async def test_it_remembers_over_a_restart(house: BrokerHouse, how: str) -> None:
    broker = await house.start(deduplication=True)
    await in_thread(lambda: publish(broker.service_url, range(1, 11)))
    if how == "unload":
        await broker.admin.topics.unload(TopicName.parse(TOPIC))
    else:
        await (house.stop(broker) if how == "stop" else house.kill(broker))
        broker = await house.start(deduplication=True)
    assert await in_thread(lambda: publish(broker.service_url, range(5, 13))) == 10
    assert await in_thread(lambda: read_all(broker.service_url)) == [b"%d" % i for i in range(1, 13)]


async def test_a_namespace_switches_it(house: BrokerHouse) -> None:
    from msgspec.structs import replace

    broker = await house.start()
    await broker.namespaces.change("public", "default", lambda old: replace(old, deduplication=True))
    await in_thread(lambda: publish(broker.service_url, range(1, 4)))
    await in_thread(lambda: publish(broker.service_url, range(1, 4)))
    assert len(await in_thread(lambda: read_all(broker.service_url))) == 3


async def test_switched_on_it_begins_at_the_end(house: BrokerHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = await house.start()
    await in_thread(lambda: publish(broker.service_url, range(1, 50)))
    await house.stop(broker)

    async def refused(*_: object) -> None:
        raise AssertionError("it reads what was there before")

    monkeypatch.setattr(TopicReader, "read", refused)
    broker = await house.start(deduplication=True)
    assert await in_thread(lambda: publish(broker.service_url, range(1, 4))) == -1
    monkeypatch.undo()
    await house.kill(broker)
    broker = await house.start(deduplication=True)
    assert await in_thread(lambda: publish(broker.service_url, range(1, 6))) == 3, "from then on it remembers"
    expected = [b"%d" % i for i in (*range(1, 50), *range(1, 6))]
    assert await in_thread(lambda: read_all(broker.service_url)) == expected


async def test_a_load_replays_what_was_written_before_a_night(house: BrokerHouse) -> None:
    house.clock = AdvancedClock()
    broker = await house.start(deduplication=True)
    await in_thread(lambda: publish(broker.service_url, range(1, 50)))
    await house.kill(broker)
    house.clock.ahead_s = INACTIVE_MS_MAX / 1000 + 60
    broker = await house.start(deduplication=True)
    assert await in_thread(lambda: publish(broker.service_url, range(1, 52))) == 49
    expected = [b"%d" % i for i in range(1, 52)]
    assert await in_thread(lambda: read_all(broker.service_url)) == expected


async def test_switched_off_it_forgets(house: BrokerHouse) -> None:
    broker = await house.start(deduplication=True)
    await in_thread(lambda: publish(broker.service_url, range(1, 4)))
    for switched in (False, True):
        await house.stop(broker)
        url = (await house.start(deduplication=switched)).service_url
        assert await in_thread(lambda url=url: publish(url, range(1, 4))) == -1
        broker = house.running[0]


async def test_without_it_everything_is_written(house: BrokerHouse) -> None:
    broker = await house.start()
    await in_thread(lambda: publish(broker.service_url, range(1, 4)))
    await in_thread(lambda: publish(broker.service_url, range(1, 4)))
    assert len(await in_thread(lambda: read_all(broker.service_url))) == 6


async def test_chunks_of_one_message_are_not_duplicates(house: BrokerHouse) -> None:
    broker = await house.start(deduplication=True)
    large = bytes(range(256)) * 4096 * 12

    def send() -> None:
        client = pulsar.Client(broker.service_url, logger=QUIET)
        producer = client.create_producer(TOPIC, producer_name="c", chunking_enabled=True)
        producer.send(large)
        producer.send(b"small")
        client.close()

    await in_thread(send)
    assert await in_thread(lambda: read_all(broker.service_url)) == [large, b"small"]


def chunk(sequence_id: int, chunk_id: int, total: int) -> list[bytes]:
    """The SEND of one chunk, by producer 1."""
    metadata = pb.MessageMetadata(
        producer_name="c",
        sequence_id=sequence_id,
        publish_time=1,
        uuid=f"c-{sequence_id}",
        chunk_id=chunk_id,
        num_chunks_from_msg=total,
        total_chunk_msg_size=4 * total,
    )
    body = pb.CommandSend(producer_id=1, sequence_id=sequence_id, is_chunk=True)
    sealed = message.seal(metadata, b"%04d" % chunk_id)
    return [with_entry(pb.BaseCommand(type=pb.BaseCommand.SEND, send=body), sealed)]


def sealed(sequence_id: int, name: str = "c", **more: Any) -> bytes:
    """An entry of one message, or of an empty batch."""
    metadata = pb.MessageMetadata(producer_name=name, sequence_id=sequence_id, publish_time=1, **more)
    return message.seal(metadata, b"")


async def chunking(broker: Broker) -> tuple[RawClient, int]:
    """A raw client with producer 1, and what the broker says was its last message."""
    client = RawClient(broker)
    await client.connect()
    client.send(producer(1, topic=TOPIC, producer_name="c", user_provided_producer_name=True))
    (answer,) = await client.answers(1)
    return client, answer.body.last_sequence_id  # type: ignore[attr-defined]


@pytest.mark.parametrize("how", ["kill", "stop", "reconnect"])
async def test_half_a_chunked_message_is_completed_not_repeated(house: BrokerHouse, how: str) -> None:
    broker = await house.start(deduplication=True)
    client, _ = await chunking(broker)
    client.send(*chunk(5, 0, 3), *chunk(5, 1, 3))
    assert len(await client.answers(2)) == 2
    if how == "reconnect":
        client.connection.connection_lost(None)
    else:
        await (house.stop(broker) if how == "stop" else house.kill(broker))
        broker = await house.start(deduplication=True)
    client, last = await chunking(broker)
    assert last == 4, "the message is not there before its last chunk is"
    client.send(*chunk(5, 0, 3), *chunk(5, 1, 3), *chunk(5, 2, 3), *chunk(5, 2, 3))
    entries = [one.body.message_id.entryId for one in await client.answers(4)]  # type: ignore[attr-defined]
    assert [entry == 2**64 - 1 for entry in entries] == [True, True, False, True]
    assert await in_thread(lambda: read_all(broker.service_url)) == [b"000000010002"]


async def test_batches_count_by_their_highest_number(house: BrokerHouse) -> None:
    broker = await house.start(deduplication=True)
    client, _ = await chunking(broker)
    batch = sealed(3, num_messages_in_batch=4, highest_sequence_id=6)
    client.send(*commands.send(1, 3, 4, batch, highest_sequence_id=6))
    client.send(*commands.send(1, 3, 4, batch, highest_sequence_id=6))
    client.send(*commands.send(1, 6, 1, sealed(6)), *commands.send(1, 7, 1, sealed(7)))
    entries = [one.body.message_id.entryId for one in await client.answers(4)]  # type: ignore[attr-defined]
    assert [entry == 2**64 - 1 for entry in entries] == [False, True, True, False]
    client.connection.connection_lost(None)
    _, last = await chunking(broker)
    assert last == 7


async def test_a_batch_that_is_stored_in_part_is_refused_in_words(house: BrokerHouse) -> None:
    """It is neither stored, which would repeat 3 and 4, nor answered, which would lose 5 and 6."""
    broker = await house.start(deduplication=True)
    url = broker.service_url
    assert await in_thread(lambda: publish(url, range(1, 5), batched=True)) == -1
    results: list[pulsar.Result] = []

    def overlap() -> None:
        client = pulsar.Client(url, logger=QUIET)
        producer = client.create_producer(
            TOPIC, producer_name="p", batching_enabled=True, batching_max_publish_delay_ms=5000
        )
        for number in range(3, 7):
            producer.send_async(b"%d" % number, lambda result, _: results.append(result), sequence_id=number)
        with pytest.raises(pulsar.ChecksumError):
            producer.flush()
        producer.send_async(b"7", lambda result, _: results.append(result), sequence_id=7)  # it goes on
        producer.flush()
        client.close()

    await in_thread(overlap)
    assert results == [*4 * [pulsar.Result.ChecksumError], pulsar.Result.Ok]
    assert await in_thread(lambda: read_all(url)) == [b"1", b"2", b"3", b"4", b"7"]

    client, last = await chunking(broker)
    assert last == -1
    for low, high in ((1, 4), (3, 6)):
        entry = sealed(low, num_messages_in_batch=4, highest_sequence_id=high)
        client.send(*commands.send(1, low, 4, entry, highest_sequence_id=high))
    _, answer = await client.answers(2)
    assert isinstance(answer.body, pb.CommandSendError)
    assert "starts at or before sequence id 4" in answer.body.message


async def test_a_batch_that_begins_with_zero_takes_no_numbers_of_later_ones(house: BrokerHouse) -> None:
    """The stock client takes 0 for none: a run that begins again puts a number of its own before 1, 2, 3."""
    url = (await house.start(deduplication=True)).service_url
    for numbers in (range(5), range(10), range(10, 14), range(14, 18)):
        await in_thread(lambda numbers=numbers: publish(url, numbers, batched=True))
    assert {int(one) for one in await in_thread(lambda: read_all(url))} == set(range(18))


async def test_the_own_client_ends_a_batch_where_the_topic_does(house: BrokerHouse) -> None:
    """A program that begins again at its first number loses nothing and repeats nothing."""
    broker = await house.start(deduplication=True)
    for count in (5, 10):
        async with Client(broker.service_url) as own, own.producer(TOPIC, name="p") as producer:
            taken = [await producer.enqueue(b"%d" % number, sequence_id=number) for number in range(count)]
            for one in taken:
                await one
            assert producer.in_flight == 0
    assert await in_thread(lambda: read_all(broker.service_url)) == [b"%d" % i for i in range(10)]


async def test_nobody_puts_another_ones_number_into_the_log(house: BrokerHouse) -> None:
    """What a load learns from the log must be what was admitted: else the other's next message would be dropped."""
    broker = await house.start(deduplication=True)
    client, _ = await chunking(broker)
    garbage = pack(">I", 5) + b"\xff" * 5
    crooked = pack(">HI", message.MAGIC, crc32c(garbage)) + garbage
    foreign = [sealed(2, "victim"), sealed(2**60, "victim"), sealed(2**63), crooked]
    client.send(*commands.send(1, 1, 1, sealed(1)))
    for number, entry in enumerate(foreign, 2):
        client.send(*commands.send(1, number, 1, entry))
    client.send(*commands.send(1, 9, 1, sealed(9)))
    answers = await client.answers(6)
    assert [one.kind for one in answers] == [
        pb.BaseCommand.SEND_RECEIPT,
        *4 * [pb.BaseCommand.SEND_ERROR],
        pb.BaseCommand.SEND_RECEIPT,
    ]
    for number, answer in enumerate(answers[1:-1], 2):
        body = answer.body
        assert isinstance(body, pb.CommandSendError)
        assert (body.producer_id, body.sequence_id, body.error) == (1, number, pb.ChecksumError)
        assert "producer c names another producer" in body.message
    await house.kill(broker)
    broker = await house.start(deduplication=True)
    other = RawClient(broker)
    await other.connect()
    other.send(producer(1, topic=TOPIC, producer_name="victim"))
    (answer,) = await other.answers(1)
    assert answer.body.last_sequence_id == -1  # type: ignore[attr-defined]
    _, last = await chunking(broker)
    assert last == 9


async def test_what_was_trimmed_is_still_a_duplicate_after_a_crash(house: BrokerHouse) -> None:
    """Nothing but a snapshot remembers what is not in the log any more."""
    broker = await house.start(deduplication=True, retention_ms=0, retention_bytes=0)
    await in_thread(lambda: publish(broker.service_url, range(1, 11)))
    topic = await broker.registry.open_persistent(TopicName.parse(TOPIC))
    await topic.log.writing.roll()  # type: ignore[misc]
    (row, _) = (await broker.admin.statistics.explain(TopicName.parse(TOPIC))).segments
    assert [one.by for one in row.kept_by] == ["deduplication"]

    trimmed = 0
    async with asyncio.timeout(30):
        while not trimmed:  # the first time it asks for a snapshot
            trimmed = await upkeep.trim(topic)
            await asyncio.sleep(0)
    assert trimmed == 1 and topic.log.segment_list.sealed == []

    await house.kill(broker)
    broker = await house.start(deduplication=True)
    assert await in_thread(lambda: publish(broker.service_url, range(8, 13))) == 10
    assert await in_thread(lambda: read_all(broker.service_url)) == [b"11", b"12"]


async def test_a_snapshot_is_taken_when_the_policys_interval_is_over(
    house: BrokerHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And messages have arrived since the last one."""
    house.clock = clock = AdvancedClock()
    broker = await house.start(deduplication=True)
    await in_thread(lambda: publish(broker.service_url, range(1, 11)))
    topic = await broker.registry.open_persistent(TopicName.parse(TOPIC))
    assert topic.log.dedup is not None and not upkeep.is_due(topic)
    await broker.admin.policies.change_topic(
        TopicName.parse(TOPIC), lambda old: replace(old, deduplication_snapshot_s=60)
    )
    assert upkeep.is_due(topic)
    taken: list[int] = []
    monkeypatch.setattr(
        topic.log.dedup_log, "put", lambda _topic, one, _done: taken.append(one.position.entry_id)
    )
    await upkeep.look(topic)
    assert not taken
    clock.ahead_s += 61
    for _ in range(2):
        await upkeep.look(topic)
    (last,) = taken
    assert last == topic.log.last_confirmed.entry_id
    clock.ahead_s += 61
    await upkeep.look(topic)
    assert len(taken) == 1, "nothing has arrived"
    await in_thread(lambda: publish(broker.service_url, range(11, 12)))
    await upkeep.look(topic)
    assert len(taken) == 2


async def test_a_segment_stays_while_its_snapshot_is_not_durable(
    house: BrokerHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await house.start(deduplication=True, retention_ms=0, retention_bytes=0)
    await in_thread(lambda: publish(broker.service_url, range(1, 11)))
    topic = await broker.registry.open_persistent(TopicName.parse(TOPIC))
    assert topic.log.dedup is not None
    await topic.log.writing.roll()  # type: ignore[misc]
    asked: list[Callable[[QuireError | None], None]] = []
    monkeypatch.setattr(topic.log.dedup_log, "put", lambda _topic, _snapshot, done: asked.append(done))
    assert [await upkeep.trim(topic) for _ in range(3)] == [0, 0, 0]
    (done,) = asked  # one snapshot, however often it is looked at
    done(Unavailable("the state log is dead"))
    assert await upkeep.trim(topic) == 0
    done(None)
    assert await upkeep.trim(topic) == 1
