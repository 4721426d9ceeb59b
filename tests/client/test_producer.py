"""Producing: batches, order, receipts, the three ends of a message, reconnects, cancellation."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from quire.client import (
    AuthenticationFailed,
    Client,
    ClientSettings,
    ConnectionLost,
    NotStorable,
    ProducerBusy,
    ProducerSettings,
    PublishFailed,
    PublishUnknown,
    QueueFull,
    TopicTerminated,
    attachment,
    token,
)
from quire.runtime.errors import ConfigurationError, NotFound
from quire.wire import pulsar_pb2 as pb
from quire.wire.hashing import java_string_hash, murmur3_32
from tests.client.conftest import QUICK
from tests.client.fake_broker import LEDGER, FakeBroker

TOPIC = "persistent://public/default/t"


async def test_a_receipt_says_where_the_message_is(broker: FakeBroker, client: Client) -> None:
    async with client.producer("t") as producer:
        first = await producer.send(b"one", key="k", properties={"a": "b"}, event_time_ms=5)
        second = await producer.send(b"two")
    assert (first.message_id[:3], first.sequence_id) == ((LEDGER, 0, -1), 0)
    assert (second.message_id[:3], second.sequence_id) == ((LEDGER, 1, -1), 1)
    one, two = broker.messages(TOPIC)
    assert (one.payload, one.key, one.properties, one.event_time_ms) == (b"one", "k", {"a": "b"}, 5)
    assert (two.payload, two.sequence_id, two.producer_name) == (b"two", 1, producer.name)


@pytest.mark.parametrize("codec", ["none", "lz4", "zlib", "zstd", "snappy"])
async def test_batches_keep_count_bytes_and_order(broker: FakeBroker, client: Client, codec: str) -> None:
    settings = ProducerSettings(compression=codec, batch_messages_max=10, batch_bytes_max=600)
    async with client.producer("t", settings=settings) as producer:
        taken = [producer.send_nowait(b"%03d" % i + bytes(i)) for i in range(100)]
        receipts = await asyncio.gather(*taken)
    stored = broker.messages(TOPIC)
    assert [one.payload for one in stored] == [b"%03d" % i + bytes(i) for i in range(100)]
    assert [one.sequence_id for one in stored] == list(range(100))
    assert max(one.batch_size for one in stored) == 10
    assert sum(one.batch_size for one in stored[-5:]) < 50
    for receipt, one in zip(receipts, stored, strict=True):
        assert (receipt.sequence_id, receipt.message_id.batch_index) == (one.sequence_id, one.batch_index)


async def test_without_batching_every_message_is_an_entry(broker: FakeBroker, client: Client) -> None:
    async with client.producer("t", settings=ProducerSettings(batching=False)) as producer:
        for i in range(5):
            producer.send_nowait(b"%d" % i)
    assert [one.payload for one in broker.messages(TOPIC)] == [b"0", b"1", b"2", b"3", b"4"]
    assert len(broker.topics[TOPIC]) == 5


async def test_by_key_a_batch_has_one_key(broker: FakeBroker, client: Client) -> None:
    async with client.producer("t", settings=ProducerSettings(batch_by_key=True)) as producer:
        for key in "aaabba":
            producer.send_nowait(b"", key=key)
    assert [(one.key, one.batch_size) for one in broker.messages(TOPIC)] == [
        ("a", 3),
        ("a", 3),
        ("a", 3),
        ("b", 2),
        ("b", 2),
        ("a", 1),
    ]


async def test_a_null_value_and_a_delayed_message(broker: FakeBroker, client: Client) -> None:
    async with client.producer("t") as producer:
        producer.send_nowait(b"before")
        producer.send_nowait(None, key="gone")
        producer.send_nowait(b"later", deliver_at_ms=10**15)
    before, gone, later = broker.messages(TOPIC)
    assert (gone.payload, gone.key, before.batch_size, later.batch_size) == (None, "gone", 2, 1)


async def test_sequence_ids_of_the_user(broker: FakeBroker, client: Client) -> None:
    broker.last_sequence_ids[TOPIC, "p"] = 41
    async with client.producer("t", name="p") as producer:
        assert producer.last_sequence_id == 41
        counted = producer.send_nowait(b"a")
        jumped = producer.send_nowait(b"b", sequence_id=50)
        after = producer.send_nowait(b"c")
        with pytest.raises(PublishFailed, match="must be greater than the last one, 51"):
            producer.send_nowait(b"d", sequence_id=51)
        assert [(await one).sequence_id for one in (counted, jumped, after)] == [42, 50, 51]
    assert [one.sequence_id for one in broker.messages(TOPIC)] == [42, 50, 51]


async def test_what_was_published_before_a_restart_is_a_duplicate(broker: FakeBroker, client: Client) -> None:
    broker.deduplicates = True
    broker.last_sequence_ids[TOPIC, "p"] = 1
    async with client.producer("t", name="p", settings=ProducerSettings(batching=False)) as producer:
        receipts = [await producer.send(b"%d" % i, sequence_id=i) for i in range(4)]
    assert [receipt.message_id.entry_id for receipt in receipts] == [-1, -1, 0, 1]
    assert [one.payload for one in broker.messages(TOPIC)] == [b"2", b"3"]


# -- Reconnects ----------------------------------------------------------------------------------------


async def test_pending_messages_are_sent_again_with_the_same_bytes(
    broker: FakeBroker, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    broker.deduplicates = True
    broker.hold_receipts()
    settings = ProducerSettings(batch_messages_max=3)
    with caplog.at_level(logging.INFO):
        async with client.producer("t", name="p", settings=settings) as producer:
            taken = [producer.send_nowait(b"%d" % i) for i in range(9)]
            await broker.until(lambda: len(broker.stored) == 3)
            broker.held = None
            broker.drop()
            receipts = await asyncio.gather(*taken)
    assert broker.stored[:3] == broker.stored[3:]
    assert [one.payload for one in broker.messages(TOPIC)] == [b"%d" % i for i in range(9)]
    assert {receipt.message_id.entry_id for receipt in receipts} == {-1}
    first, again = broker.all(pb.CommandProducer)
    assert (first.epoch, again.epoch, again.producer_name) == (0, 1, "p")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "was lost" in caplog.messages[0] and "1 producers and consumers" in caplog.messages[0]


async def test_a_name_that_the_broker_gave_is_kept(broker: FakeBroker, client: Client) -> None:
    async with client.producer("t") as producer:
        name = producer.name
        broker.drop()
        await producer.send(b"x")
    again = broker.all(pb.CommandProducer)[-1]
    assert (again.producer_name, again.user_provided_producer_name) == (name, False)


async def test_a_broker_that_comes_back_later(broker: FakeBroker, client: Client) -> None:
    async with client.producer("t") as producer:
        port = broker.port
        await broker.stop()
        taken = producer.send_nowait(b"x")
        await broker.start(port)
        assert (await taken).message_id.entry_id == 0


async def test_close_producer_from_the_broker_means_look_up_again(broker: FakeBroker, client: Client) -> None:
    from quire.wire import commands

    async with client.producer("t") as producer:
        lookups = len(broker.all(pb.CommandLookupTopic))
        (session,) = broker.sessions
        (producer_id,) = session.producers
        session.transport.write(commands.close_producer(producer_id, 0))
        await broker.until(lambda: len(broker.all(pb.CommandProducer)) == 2)
        await producer.send(b"x")
    assert len(broker.all(pb.CommandLookupTopic)) == lookups + 1
    assert len(broker.all(pb.CommandConnect)) == 1


async def test_busy_is_final_at_first_and_passes_later(broker: FakeBroker, client: Client) -> None:
    broker.refuse(pb.CommandProducer, pb.ProducerBusy, "the name is taken")
    with pytest.raises(ProducerBusy, match=r"a producer on .*/t was refused: the name is taken"):
        await client.producer("t").start()
    async with client.producer("t") as producer:
        broker.refuse(pb.CommandProducer, pb.ProducerBusy)
        broker.drop()
        await producer.send(b"x")


async def test_not_ready_is_tried_again(broker: FakeBroker, client: Client) -> None:
    broker.refuse(pb.CommandLookupTopic, pb.ServiceNotReady)
    broker.refuse(pb.CommandProducer, pb.ServiceNotReady)
    broker.refuse(pb.CommandPartitionedTopicMetadata, pb.ServiceNotReady)
    async with client.producer("t") as producer:
        await producer.send(b"x")


async def test_a_full_disk_is_told_at_once_and_passes(broker: FakeBroker, client: Client) -> None:
    broker.refuse(pb.CommandProducer, pb.PersistenceError, "the disk is full")
    with pytest.raises(NotStorable, match="the disk is full"):
        await client.producer("t").start()
    async with client.producer("t") as producer:
        broker.hold_receipts()
        publication = await producer.enqueue(b"x")
        await broker.until(lambda: bool(broker.messages(TOPIC)))
        broker.refuse(pb.CommandProducer, pb.PersistenceError, "the disk is full")
        broker.drop()
        with pytest.raises(PublishUnknown, match="the disk is full"):
            await asyncio.wait_for(publication, 5)  # far less than the time-out of a send
        broker.release_receipts()
        await producer.send(b"y")  # attached again, now that it is let in


# -- The three ends ------------------------------------------------------------------------------------


async def test_no_receipt_in_time_is_unknown(broker: FakeBroker, client: Client) -> None:
    broker.hold_receipts()
    async with client.producer("t", settings=ProducerSettings(send_timeout_ms=30)) as producer:
        with pytest.raises(PublishUnknown, match="may or may not be stored"):
            await producer.send(b"x")
        assert producer.in_flight == 0
        broker.release_receipts()  # late: it belongs to nothing any more
        assert (await producer.send(b"y")).message_id.entry_id == 1


async def test_what_never_left_has_failed(broker: FakeBroker, client: Client) -> None:
    async with client.producer("t", settings=ProducerSettings(send_timeout_ms=30)) as producer:
        await broker.stop()
        for _ in range(1_000):  # what is written into a connection that still stands may have left
            if producer._partitions[0].connection is None:
                break
            await asyncio.sleep(0.001)
        with pytest.raises(PublishFailed, match="no receipt"):
            await producer.send(b"x")


async def test_a_refused_message_has_failed_and_the_next_goes_on(broker: FakeBroker, client: Client) -> None:
    broker.send_errors.append((pb.NotAllowedError, "not this one"))
    async with client.producer("t") as producer:
        with pytest.raises(PublishFailed, match="not this one"):
            await producer.send(b"x")
        await producer.send(b"y")
    assert [one.payload for one in broker.messages(TOPIC)] == [b"y"]


async def test_refused_after_a_first_attempt_without_answer_is_unknown(
    broker: FakeBroker, client: Client
) -> None:
    broker.hold_receipts()
    async with client.producer("t") as producer:
        taken = producer.send_nowait(b"x")
        await broker.until(lambda: len(broker.stored) == 1)
        broker.send_errors.append((pb.NotAllowedError, "no"))
        broker.drop()
        with pytest.raises(PublishUnknown):
            await taken


async def test_a_damaged_message_is_sent_again(broker: FakeBroker, client: Client) -> None:
    broker.send_errors.append((pb.ChecksumError, "damaged"))
    async with client.producer("t") as producer:
        await producer.send(b"x")
    assert len(broker.all(pb.CommandConnect)) == 2


async def test_a_terminated_topic_takes_no_more(broker: FakeBroker, client: Client) -> None:
    broker.send_errors.append((pb.TopicTerminatedError, "it ended"))
    async with client.producer("t") as producer:
        with pytest.raises(PublishFailed, match="it ended"):
            await producer.send(b"x")
        with pytest.raises(PublishFailed, match="it ended"):
            await producer.send(b"y")
    broker.refuse(pb.CommandProducer, pb.TopicTerminatedError)
    with pytest.raises(TopicTerminated):
        await client.producer("t").start()


async def test_a_message_that_is_too_large(broker: FakeBroker, client: Client) -> None:
    broker.message_bytes_max = 1_000
    async with client.producer("t") as producer:
        with pytest.raises(PublishFailed, match="too large"):
            await producer.send(bytes(1_001))
        await producer.send(bytes(900))


async def test_text_that_is_none_fails_alone(broker: FakeBroker, client: Client) -> None:
    async with client.producer("t") as producer:
        with pytest.raises(PublishFailed, match="cannot be encoded"):
            await producer.send(b"", key="\ud800")
        await producer.send(b"x")
        assert producer.in_flight == 0


async def test_flush_tells_of_failures_that_nobody_awaited(broker: FakeBroker, client: Client) -> None:
    broker.send_errors.append((pb.NotAllowedError, "no"))
    async with client.producer("t") as producer:
        producer.send_nowait(b"x")
        with pytest.raises(PublishFailed):
            await producer.flush()
        await producer.flush()


async def test_leaving_by_an_exception_gives_up_what_is_pending(broker: FakeBroker, client: Client) -> None:
    broker.hold_receipts()
    with pytest.raises(ZeroDivisionError):
        async with client.producer("t") as producer:
            sent = producer.send_nowait(b"sent")
            await broker.until(lambda: len(broker.stored) == 1)
            unsent = producer.send_nowait(b"unsent")
            raise ZeroDivisionError
    with pytest.raises(PublishUnknown):
        await sent
    with pytest.raises(PublishFailed):
        await unsent
    assert len(broker.stored) == 1


# -- Room and cancellation -----------------------------------------------------------------------------


async def test_senders_wait_for_room(broker: FakeBroker, client: Client) -> None:
    broker.hold_receipts()
    async with client.producer("t", settings=ProducerSettings(in_flight_messages_max=2)) as producer:
        first = [await producer.enqueue(b"%d" % i) for i in range(2)]
        with pytest.raises(QueueFull):
            producer.send_nowait(b"x")
        waiting = asyncio.create_task(producer.send(b"2"))
        await broker.until(lambda: len(broker.stored) == 1)
        assert not waiting.done()
        broker.release_receipts()
        await waiting
        await asyncio.gather(*first)
    assert [one.payload for one in broker.messages(TOPIC)] == [b"0", b"1", b"2"]


async def test_a_cancelled_send_leaves_the_producer_consistent(broker: FakeBroker, client: Client) -> None:
    broker.hold_receipts()
    async with client.producer("t", settings=ProducerSettings(in_flight_messages_max=2)) as producer:
        taken = asyncio.create_task(producer.send(b"taken"))
        beside = asyncio.create_task(producer.send(b"beside"))
        await broker.until(lambda: len(broker.stored) == 1)
        without_room = asyncio.create_task(producer.send(b"never"))
        await asyncio.sleep(0)
        for task in (taken, without_room):
            task.cancel()
        await asyncio.wait([taken, without_room])
        broker.release_receipts()
        assert (await beside).sequence_id == 1
        assert (await producer.send(b"after")).sequence_id == 2
        assert producer.in_flight == 0
    assert [one.payload for one in broker.messages(TOPIC)] == [b"taken", b"beside", b"after"]


async def test_a_cancelled_start_leaves_no_producer_behind(broker: FakeBroker, client: Client) -> None:
    broker.mute.add(pb.CommandProducer)
    starting = asyncio.create_task(client.producer("t").start())
    await broker.until(lambda: len(broker.all(pb.CommandProducer)) == 1)
    starting.cancel()
    await asyncio.wait([starting])
    await broker.until(lambda: len(broker.all(pb.CommandCloseProducer)) == 1)


# -- Partitions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hashing", "hash_of"), [("java", java_string_hash), ("murmur3", lambda k: murmur3_32(k.encode()))]
)
async def test_keys_choose_the_partition(
    broker: FakeBroker, client: Client, hashing: str, hash_of: object
) -> None:
    broker.partitions[TOPIC] = 3
    async with client.producer("t", settings=ProducerSettings(hashing=hashing)) as producer:
        assert producer.partition_count == 3
        receipts = [await producer.send(b"", key=f"key {i}") for i in range(12)]
    assert callable(hash_of)
    assert [one.message_id.partition for one in receipts] == [hash_of(f"key {i}") % 3 for i in range(12)]


async def test_without_keys_batches_go_round(broker: FakeBroker, client: Client) -> None:
    broker.partitions[TOPIC] = 3
    async with client.producer("t", settings=ProducerSettings(batch_messages_max=4)) as producer:
        for i in range(24):
            producer.send_nowait(b"%d" % i)
    sizes = [[one.batch_size for one in broker.messages(f"{TOPIC}-partition-{i}")] for i in range(3)]
    assert sizes == [[4] * 8] * 3


async def test_growth_is_noticed(broker: FakeBroker) -> None:
    settings = ClientSettings(partitions_poll_ms=1, backoff_first_ms=1)
    broker.partitions[TOPIC] = 1
    async with Client(broker.url, settings=settings) as client, client.producer("t") as producer:
        broker.partitions[TOPIC] = 3
        await broker.until(lambda: len(broker.all(pb.CommandProducer)) == 3)
        seen: set[int] = set()
        async with asyncio.timeout(60):
            while len(seen) < 3:
                seen.add((await producer.send(b"")).message_id.partition)
    assert seen == {0, 1, 2}


# -- Connecting ----------------------------------------------------------------------------------------


async def test_a_redirect_is_followed(broker: FakeBroker, client: Client) -> None:
    owner = FakeBroker()
    await owner.start()
    broker.redirect_to = owner.url
    async with client.producer("t") as producer:
        await producer.send(b"x")
    assert len(owner.topics[TOPIC]) == 1 and not broker.topics[TOPIC]
    await client.close()
    await owner.stop()


async def test_credentials_that_are_renewed_late_end_nothing(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.token, tokens = b"first", ["first"]
    renewed = Client(broker.url, authentication=token(lambda: tokens[-1]), settings=QUICK)
    async with renewed as client, client.producer("t") as producer:
        await producer.send(b"0")
        broker.token = b"second"
        broker.drop()
        sent = await producer.enqueue(b"1")
        refused = len(broker.all(pb.CommandConnect)) + 3
        await broker.until(lambda: len(broker.all(pb.CommandConnect)) >= refused)
        tokens.append("second")
        await sent

        monkeypatch.setattr(attachment, "RENEWAL_S_MAX", 0.05)
        broker.token = b"third"
        broker.drop()
        with pytest.raises((PublishFailed, PublishUnknown), match="a wrong token"):
            await (await producer.enqueue(b"2"))
    assert [one.payload for one in broker.messages(TOPIC)] == [b"0", b"1"]


async def test_a_refusal_that_calls_itself_damage_ends(broker: FakeBroker, client: Client) -> None:
    """A broker that deduplicates refuses so what it cannot store; to send it again for ever helps nobody."""
    broker.send_errors += 9 * [(pb.ChecksumError, "half of it is stored")]
    async with client.producer("t") as producer:
        with pytest.raises(PublishUnknown, match="half of it is stored"):
            await producer.send(b"0")


@pytest.mark.parametrize("start", ["earliest", b"earliest", 0])
async def test_a_place_that_is_none_is_refused_at_once(client: Client, start: Any) -> None:
    for make in (lambda: client.reader("t", start=start), lambda: client.consumer("t", "s", start=start)):
        with pytest.raises(ConfigurationError, match="EARLIEST"):
            make()
    async with client.reader("t") as reader:
        with pytest.raises(ConfigurationError, match="EARLIEST"):
            await reader.seek(start)


async def test_a_wrong_token(broker: FakeBroker) -> None:
    broker.token = b"right"
    async with Client(broker.url, authentication=token("wrong"), settings=QUICK) as client:
        with pytest.raises(AuthenticationFailed, match="a wrong token"):
            await client.producer("t").start()
    right = Client(broker.url, authentication=token(lambda: "right"), settings=QUICK)
    async with right as client, client.producer("t") as producer:
        await producer.send(b"x")


async def test_nobody_there() -> None:
    settings = ClientSettings(operation_timeout_ms=30, backoff_first_ms=1)
    async with Client("pulsar://127.0.0.1:1", settings=settings) as client:
        with pytest.raises(ConnectionLost, match=r"cannot connect to pulsar://127\.0\.0\.1:1"):
            await client.producer("t").start()


async def test_the_next_host_is_tried(broker: FakeBroker) -> None:
    url = f"pulsar://127.0.0.1:1,127.0.0.1:{broker.port}"
    async with Client(url, settings=QUICK) as client, client.producer("t") as producer:
        await producer.send(b"x")


async def test_a_silent_broker_is_given_up(broker: FakeBroker) -> None:
    settings = ClientSettings(keep_alive_ms=10, backoff_first_ms=1)
    async with Client(broker.url, settings=settings) as client, client.producer("t"):
        await broker.until(lambda: len(broker.all(pb.CommandPing)) >= 3)
        assert len(broker.all(pb.CommandConnect)) == 1
        broker.mute.add(pb.CommandPing)
        await broker.until(lambda: len(broker.all(pb.CommandConnect)) >= 2)
        broker.mute.clear()


@pytest.mark.parametrize("url", ["127.0.0.1:6650", "http://x:1", "pulsar://", "pulsar://x:port"])
def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a service URL"):
        Client(url)


async def test_refusals_come_as_their_errors(broker: FakeBroker, client: Client) -> None:
    broker.refuse(pb.CommandProducer, pb.TopicNotFound, "no such topic")
    with pytest.raises(NotFound, match="no such topic"):
        await client.producer("t").start()
    with pytest.raises(ConfigurationError, match="is not a topic"):
        client.producer("a/b")
    with pytest.raises(ConfigurationError, match="compression must be one of"):
        client.producer("t", settings=ProducerSettings(compression="zip"))
