"""Compaction: what is left of every key, against a model; and stock clients that read it, then what comes live."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pulsar
import pytest
from msgspec.structs import replace

from quire.ledger import orphans
from quire.metadata.records import RetentionPolicy
from quire.runtime.errors import AlreadyExists, QuireError, Unavailable
from quire.serving.broker import Broker
from quire.serving.model.statistics import CompactionStatus
from quire.serving.names import TopicName
from quire.serving.registry.topic_loader import subscriptions_of
from quire.serving.topic.compaction import compaction
from quire.serving.topic.compaction.compacted import SPAN_ENTRIES
from quire.serving.topic.compaction.compacting import MESSAGES_A_BREATH, LastOfKey
from quire.serving.topic.compaction.compaction import Output
from quire.serving.topic.lifecycle import idle, upkeep
from quire.serving.topic.lifecycle.upkeep import COMPACT_AGAIN_S
from quire.serving.topic.topic import Topic
from quire.wire import pulsar_pb2 as pb
from quire.wire.message import OutgoingMessage, decode, encode_batch, encode_one, seal
from tests.serving.conftest import AdvancedClock, BrokerHouse, in_thread
from tests.serving.silent import publish_silently

NAME = TopicName.parse("table")
QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


# -- the core ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_the_last_message_of_each_key_is_left_and_no_other(seed: int) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    entries, model, number = [], dict[str, bytes](), 0
    keyless = []
    for _ in range(60):
        batch = []
        for _ in range(rng.choice((0, 1, 3, 10))):
            key = rng.choice((None, *"abcdefgh"))
            payload = rng.choice((None, b"", b"%d" % number))
            batch.append(OutgoingMessage(payload, key=key))
            number += 1
            if key is None:
                keyless.append(payload or b"")
            elif payload:
                model[key] = payload
            else:
                model.pop(key, None)
        codec = rng.choice((pb.NONE, pb.ZLIB))
        if len(batch) == 1 and rng.random() < 0.5:
            entries.append(encode_one(batch[0], "p", number, 1, codec))
        elif batch:
            entries.append(encode_batch(batch, "p", number, 1, codec))
    last = LastOfKey()
    for entry in entries:
        last.note(entry)
    left: dict[str, bytes] = {}
    without_key = []
    for entry in entries:
        kept = last.retained(entry)
        if kept is None:
            continue
        retained, bits = kept
        messages = decode(retained)
        assert len(messages) == len(decode(entry)), "message ids stay"
        assert not all(one.compacted_out for one in messages)
        stays = [not one.compacted_out for one in messages]
        assert bits == (0 if all(stays) else sum(1 << i for i, stay in enumerate(stays) if stay))
        for one in messages:
            if one.compacted_out:
                assert not one.payload
            elif one.key is None:
                without_key.append(one.payload or b"")
            else:
                assert one.key not in left and one.payload
                left[one.key] = one.payload
    assert left == model
    assert without_key == keyless


def test_a_large_batch_lets_others_breathe() -> None:
    batch = encode_batch([OutgoingMessage(b"x", key=str(at % 9)) for at in range(10_000)], "p", 0, 1)
    last, breaths = LastOfKey(), list[int]()
    last.note(batch, lambda: breaths.append(1))
    assert len(breaths) > 10_000 // MESSAGES_A_BREATH
    last.retained(batch, lambda: breaths.append(2))
    assert breaths.count(2) > 2 * (10_000 // MESSAGES_A_BREATH), "looked into, and made anew"


def test_what_cannot_be_looked_into_is_kept() -> None:
    sealed = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=2)
    sealed.encryption_keys.add(key="k", value=b"v")
    chunk = pb.MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=1, chunk_id=0, num_chunks_from_msg=2, partition_key="a"
    )
    strange = [_with_key(b"a" + byte) for byte in (b"\xfe", b"\xff")]
    entries = [seal(sealed, b"secret"), seal(chunk, b"half"), b"\x0e\x01damaged", *strange]
    last = LastOfKey()
    for entry in [*entries, encode_one(OutgoingMessage(None, key="a"), "p", 2, 1)]:
        last.note(entry)
    assert [last.retained(entry) for entry in entries] == [(entry, 0) for entry in entries]


def _with_key(key: bytes) -> bytes:
    """An entry whose key is not UTF-8: two such keys differ although their readable forms are equal."""
    entry = encode_one(OutgoingMessage(b"x", key="?" * len(key)), "p", 1, 1)
    return entry.replace(b"?" * len(key), key)


# -- with clients --------------------------------------------------------------------------------------


class Table:
    """A topic with keys, and a client."""

    def __init__(self, broker: Broker, topic: Topic) -> None:
        self.broker = broker
        self.topic = topic
        self.client = pulsar.Client(broker.service_url, logger=QUIET, operation_timeout_seconds=10)

    async def publish(self, *pairs: tuple[str | None, bytes], batch: bool = False) -> None:
        def work() -> None:
            producer = self.client.create_producer(
                str(NAME),
                batching_enabled=batch,
                batching_max_publish_delay_ms=1000,
                block_if_queue_full=True,
            )
            for key, value in pairs:
                producer.send_async(value, lambda *_: None, partition_key=key)
            producer.flush()
            producer.close()

        await in_thread(work)

    async def compact(self) -> None:
        await self.topic.log.compaction.start(self.topic.subscriptions)
        assert self.topic.log.compaction.error == ""

    async def roll(self) -> None:
        rolling = self.topic.log.writing.roll()
        assert rolling is not None
        await rolling

    def reader(self, start: Any = pulsar.MessageId.earliest) -> pulsar.Reader:
        return self.client.create_reader(str(NAME), start, is_read_compacted=True)

    async def read(self, start: Any = pulsar.MessageId.earliest) -> list[tuple[str, bytes]]:
        def work() -> list[tuple[str, bytes]]:
            reader = self.reader(start)
            found = []
            while reader.has_message_available():
                message = reader.read_next(10_000)
                found.append((message.partition_key(), message.data()))
            reader.close()
            return found

        return await in_thread(work)


@pytest.fixture
async def table(house: BrokerHouse) -> AsyncIterator[Table]:
    broker = await house.start()
    await broker.registry.create(NAME)
    made = Table(broker, await broker.registry.open(NAME))
    yield made
    await in_thread(made.client.close)


async def test_a_reader_gets_the_last_of_each_key_then_what_comes_live(table: Table) -> None:
    await table.publish(*((f"k{i % 3}", b"%d" % i) for i in range(10)), (None, b"plain"), ("k1", b""))
    assert len(await table.read()) == 12, "before a compaction it is the whole topic"
    assert (await table.broker.admin.statistics.internal(NAME)).compacted_ledger.ledger_id == -1
    await table.compact()
    assert (await table.broker.admin.statistics.internal(NAME)).compacted_ledger.entries == 3
    assert await table.read() == [("k2", b"8"), ("k0", b"9"), ("", b"plain")]
    reader = await in_thread(table.reader)
    await table.publish(("k0", b"10"), ("k9", b"11"))
    found = await in_thread(lambda: [reader.read_next(10_000).data() for _ in range(5)])
    assert found == [b"8", b"9", b"plain", b"10", b"11"]
    await in_thread(reader.close)


@pytest.mark.parametrize("batch", [False, True])
async def test_it_is_compacted_again_and_outlives_the_segments_it_came_from(
    table: Table, batch: bool
) -> None:
    await table.broker.admin.policies.change_topic(
        NAME, lambda old: replace(old, retention=RetentionPolicy(), compaction_threshold_bytes=1 << 30)
    )
    await table.broker.admin.policies.refresh("public", "default", None)
    model: dict[str, bytes] = {}
    former: set[int] = set()
    for round in range(3):
        pairs = [(f"k{(i * i + round) % 7}", b"%d-%d" % (round, i)) for i in range(20)]
        await table.publish((f"only{round}", b"x"), *pairs, batch=batch)
        model |= {f"only{round}": b"x", **dict(pairs)}
        await table.roll()
        assert await upkeep.trim(table.topic) == 0, "what no compaction has read stays"
        await table.compact()
        assert table.topic.log.compaction.record is not None
        former.add(table.topic.log.compaction.record.ledger_id)
        await upkeep.trim(table.topic)
        assert not table.topic.log.segment_list.sealed
        assert dict(await table.read()) == model and len(await table.read()) == len(model)
    await table.publish(("live", b"y"))
    assert dict(await table.read()) == {**model, "live": b"y"}
    await table.broker.services.tasks.stop()
    left = [ledger_id async for ledger_id in orphans.ledger_ids(table.broker.services.store)]
    assert former & set(left) == {table.topic.log.compaction.record.ledger_id}, "replaced results are deleted"
    assert not await orphans.orphans(table.broker.services.store, now_ms=2**60)


async def test_it_survives_a_restart_and_goes_with_the_topic(house: BrokerHouse, table: Table) -> None:
    await table.publish(("a", b"1"), ("a", b"2"), ("b", b"3"))
    await table.compact()
    await house.kill(table.broker)
    again = await house.start()
    after = Table(again, await again.registry.open(NAME))
    assert await after.read() == [("a", b"2"), ("b", b"3")]
    assert after.topic.log.compaction.status == "SUCCESS"
    assert after.topic.log.compaction.record is not None
    ledger_id = after.topic.log.compaction.record.ledger_id
    await in_thread(after.client.close)
    await again.admin.topics.delete(NAME, force=True)
    assert ledger_id not in [one async for one in orphans.ledger_ids(again.services.store)]


async def test_a_durable_subscription_reads_what_is_left_and_its_backlog_is_exact(table: Table) -> None:
    await table.publish(*((f"k{i % 5}", b"%d" % i) for i in range(50)))
    await table.compact()
    await table.publish(("k0", b"50"))

    def subscribe() -> pulsar.Consumer:
        return table.client.subscribe(
            str(NAME), "view", is_read_compacted=True, initial_position=pulsar.InitialPosition.Earliest
        )

    consumer = await in_thread(subscribe)
    (subscription,) = subscriptions_of(table.topic)
    assert await subscription.stats.backlog() == 6

    def receive(count: int) -> list[bytes]:
        found = []
        for _ in range(count):
            message = consumer.receive(10_000)
            consumer.acknowledge(message)
            found.append(message.data())
        return found

    assert await in_thread(lambda: receive(3)) == [b"45", b"46", b"47"]
    await in_thread(consumer.close)
    assert await subscription.stats.backlog() == 3
    consumer = await in_thread(subscribe)
    assert await in_thread(lambda: receive(3)) == [b"48", b"49", b"50"]
    await in_thread(consumer.close)
    assert await subscription.stats.backlog() == 0
    await in_thread(lambda: table.client.subscribe(str(NAME), "view").close())


async def test_a_new_result_under_a_reader_loses_and_repeats_nothing_that_is_left(table: Table) -> None:
    await table.publish(*((f"k{i}", b"%d" % i) for i in range(200)))
    await table.compact()
    reader = await in_thread(lambda: table.client.create_reader(
        str(NAME), pulsar.MessageId.earliest, is_read_compacted=True, receiver_queue_size=10
    ))  # fmt: skip
    found = await in_thread(lambda: [reader.read_next(10_000).data() for _ in range(20)])
    await table.publish(*((f"k{i}", b"new") for i in range(100, 200)))
    await table.compact()

    def has_more() -> bool:
        while True:
            try:
                return reader.has_message_available()
            except pulsar.ConsumerNotFound:
                pass  # it asked as it was sent away to the new result, and has not come again yet

    def rest() -> list[bytes]:
        got = []
        while has_more():
            got.append(reader.read_next(10_000).data())
        return got

    found += await in_thread(rest)
    await in_thread(reader.close)
    old = [one for one in found if one != b"new"]
    assert old[:100] == [b"%d" % i for i in range(100)] and len(set(old)) == len(old)
    assert found[-100:] == [b"new"] * 100


async def test_seek_and_shared_subscriptions(table: Table) -> None:
    await table.publish(*((f"k{i % 2}", b"%d" % i) for i in range(10)))
    await table.compact()

    def work() -> list[bytes]:
        consumer = table.client.subscribe(str(NAME), "s", is_read_compacted=True)
        consumer.seek(pulsar.MessageId.earliest)
        found = [consumer.receive(10_000).data() for _ in range(2)]
        consumer.close()
        return found

    assert await in_thread(work) == [b"8", b"9"]
    with pytest.raises(pulsar.PulsarException):
        await in_thread(
            lambda: table.client.subscribe(str(NAME), "t", pulsar.ConsumerType.Shared, is_read_compacted=True)
        )


async def test_compacted_to_nothing(table: Table) -> None:
    await table.publish(("a", b"1"), ("a", b""))
    await table.compact()
    assert await table.read() == []
    await table.publish(("b", b"2"))
    assert await table.read() == [("b", b"2")]


async def test_trimming_waits_for_the_first_one_too(
    house: BrokerHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The passes count messages: a segment that goes between them would make others the last of their keys."""
    broker = await house.start(retention_ms=0, retention_bytes=0)
    topic = await broker.registry.open(NAME, create=True)
    assert isinstance(topic, Topic)
    table = Table(broker, topic)
    try:
        await table.publish(("a", b"1"), ("b", b"1"), ("a", b"2"))
        await table.roll()
        await table.publish(("c", b"1"), ("d", b"1"), ("c", b"2"))
        await table.roll()
        begin = Output.begin

        async def trimmed_first(*args: Any) -> Output:
            await upkeep.trim(topic)
            return await begin(*args)

        monkeypatch.setattr(Output, "begin", trimmed_first)
        await table.compact()
        assert await table.read() == [("b", b"1"), ("a", b"2"), ("d", b"1"), ("c", b"2")]
    finally:
        await in_thread(table.client.close)


async def test_who_asks_while_it_is_replaced_gets_the_new_result(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The former one is deleted, and its readers were sent away already."""
    await table.publish(("a", b"1"))
    await table.compact()
    may_load = asyncio.Event()
    load, asked = compaction.load, asyncio.Event()

    async def slow(*args: Any) -> Any:
        found = await load(*args)
        if not asked.is_set():
            asked.set()
            await may_load.wait()
        return found

    monkeypatch.setattr(compaction, "load", slow)
    asking = asyncio.ensure_future(table.topic.log.compacted_view())
    await asked.wait()
    await table.publish(("a", b"2"))
    await table.compact()
    may_load.set()
    view = await asking
    assert view is not None and view._compacted.record == table.topic.log.compaction.record


async def test_a_threshold_starts_it_and_one_runs_at_a_time(table: Table) -> None:
    await table.broker.admin.policies.change_topic(
        NAME, lambda old: replace(old, compaction_threshold_bytes=1000)
    )
    await table.broker.admin.policies.refresh("public", "default", None)
    await table.publish(("a", bytes(300)))
    await upkeep.look(table.topic)
    assert (await table.broker.admin.topics.compaction_status(NAME)).status == "NOT_RUN"
    await table.publish(("a", b"x" * 900))
    await upkeep.look(table.topic)
    assert (await table.broker.admin.topics.compaction_status(NAME)).status == "RUNNING"
    with pytest.raises(AlreadyExists):
        await table.broker.admin.topics.compact(NAME)
    assert table.topic.log.compaction._running is not None
    await table.topic.log.compaction._running
    assert (await table.broker.admin.topics.compaction_status(NAME)).status == "SUCCESS"
    assert [len(value) for _, value in await table.read()] == [900]


async def test_one_that_fails_leaves_the_former_result_and_says_why(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    await table.publish(("a", b"1"), ("a", b"2"))
    await table.compact()
    await table.publish(("a", b"3"))

    async def fail(*_: Any) -> Any:
        raise Unavailable("no bookies")

    monkeypatch.setattr(Output, "room", fail)
    with pytest.raises(QuireError):
        await table.topic.log.compaction.start(table.topic.subscriptions)
    assert await table.broker.admin.topics.compaction_status(NAME) == CompactionStatus("ERROR", "no bookies")
    assert await table.read() == [("a", b"2"), ("a", b"3")]
    monkeypatch.undo()
    await table.compact()
    assert await table.read() == [("a", b"3")]


async def test_one_that_fails_is_not_begun_again_at_every_look(
    house: BrokerHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.clock = clock = AdvancedClock()
    broker = await house.start()
    topic = await broker.registry.open(NAME, create=True)
    assert isinstance(topic, Topic)
    table, begun = Table(broker, topic), 0

    async def fail(*_: Any) -> Any:
        nonlocal begun
        begun += 1
        raise Unavailable("no bookies")

    monkeypatch.setattr(Output, "begin", fail)
    await broker.admin.policies.change_topic(NAME, lambda old: replace(old, compaction_threshold_bytes=1))
    await broker.admin.policies.refresh("public", "default", None)
    await in_thread(table.client.close)
    publish_silently(topic, encode_one(OutgoingMessage(b"x", key="a"), "p", 1, 1))
    await topic.log.publisher.flushed()
    for expected in (1, 1, 2):
        await upkeep.look(topic)
        if topic.log.compaction._running is not None:
            await asyncio.wait([topic.log.compaction._running])
        assert begun == expected
        if expected == 1:
            clock.ahead_s += COMPACT_AGAIN_S / 2


async def test_one_that_is_interrupted_while_it_is_recorded_deletes_the_former_result(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    await table.publish(("a", b"1"))
    await table.compact()
    await table.publish(("a", b"2"))
    meta_store, compaction = table.topic.log.meta_store, table.topic.log.compaction
    update, former = meta_store.update, compaction.record

    async def stopped(change: Any) -> None:
        compaction.stop()
        await asyncio.sleep(0)
        await update(change)

    monkeypatch.setattr(meta_store, "update", stopped)
    running = compaction.start(table.topic.subscriptions)
    await asyncio.wait([running])
    assert running.cancelled()
    async with asyncio.timeout(60):
        while True:
            await asyncio.sleep(0)
            left = [one async for one in orphans.ledger_ids(table.broker.services.store)]
            if former is not None and former.ledger_id not in left:
                break
    assert compaction.record is not None and compaction.record.ledger_id in left
    assert not await orphans.orphans(table.broker.services.store, now_ms=2**60)


async def test_one_that_is_interrupted_leaves_nothing_behind(table: Table, house: BrokerHouse) -> None:
    """Unloading the topic ends it; the topic is as it was, and what was written is deleted."""
    await table.publish(*((f"k{i}", bytes(100)) for i in range(50)))
    running = table.topic.log.compaction.start(table.topic.subscriptions)
    await asyncio.sleep(0)
    assert table.topic.log.compaction.is_running and not idle.is_due(table.topic)
    await table.broker.admin.topics.unload(NAME)
    await asyncio.wait([running])
    assert running.cancelled()
    after = Table(table.broker, await table.broker.registry.open(NAME))
    assert after.topic.log.compaction.status == "NOT_RUN"
    assert len(await after.read()) == 50
    await after.compact()
    assert len(await after.read()) == 50
    await in_thread(after.client.close)
    await house.stop(table.broker)
    again = await house.start()
    assert not await orphans.orphans(again.services.store, now_ms=2**60)


async def test_a_gap_longer_than_a_block_of_the_view_is_passed(table: Table) -> None:
    count = 2 * SPAN_ENTRIES + 100
    await table.publish(("first", b"1"), *(("k", b"%d" % i) for i in range(count)), ("last", b"2"))
    await table.compact()
    assert await table.read() == [("first", b"1"), ("k", b"%d" % (count - 1)), ("last", b"2")]
    await table.publish(("live", b"3"))
    reader = await in_thread(table.reader)
    found = await in_thread(lambda: [reader.read_next(10_000).data() for _ in range(4)])
    assert found == [b"1", b"%d" % (count - 1), b"2", b"3"]
    (subscription,) = subscriptions_of(table.topic)
    assert await subscription.stats.backlog() <= 4
    await in_thread(reader.close)
