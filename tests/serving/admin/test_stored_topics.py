"""Truncating, trimming, offloading and describing what topics store, over REST as Pulsar's admin clients ask."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pulsar
import pytest
from msgspec.structs import replace

from quire.metadata.records import RetentionPolicy
from quire.runtime.clock import SystemClock
from quire.runtime.errors import NotFound, Unavailable
from quire.serving.broker import Broker
from quire.serving.model.ports import EARLIEST, Position
from quire.serving.names import TopicName
from quire.serving.subscription import analysis
from quire.serving.topic.lifecycle import upkeep
from quire.serving.topic.services import TIME_SEARCHES_MAX
from quire.serving.topic.topic import PersistentTopic
from quire.testing.objects import MemoryObjectStore
from quire.testing.place import TrustedPlace
from quire.tiering.archive import Archive
from quire.wire import block
from tests.serving.admin.conftest import TOPIC, Rest
from tests.serving.conftest import BrokerHouse, in_thread
from tests.serving.ownership.cluster import Brokers, Member

NAME = "persistent://public/default/orders"
PARTS = "/admin/v2/persistent/public/default/parts"
PARTITION = "persistent://public/default/parts-partition-{}"
AUDIT = f"{TOPIC}/subscription/audit"


async def publish(
    client: pulsar.Client, count: int, topic: str = NAME, **options: Any
) -> list[pulsar.MessageId]:
    """Each message is an entry of its own."""

    def work() -> list[pulsar.MessageId]:
        producer = client.create_producer(topic, **options)
        sent = [producer.send(b"%d" % number) for number in range(count)]
        producer.close()
        return sent

    return await in_thread(work)


async def opened(broker: Broker, name: str = NAME) -> PersistentTopic:
    return await broker.registry.open_persistent(TopicName.parse(name))


async def seal(broker: Broker, name: str = NAME) -> int:
    """Seal the active segment; return its ledger."""
    topic = await opened(broker, name)
    await broker.admin.topics.seal(TopicName.parse(name))
    return topic.log.segment_list.sealed[-1].ledger_id


async def until(condition: Callable[[], Awaitable[Any]]) -> Any:
    """Ask until there is an answer that is true."""
    async with asyncio.timeout(60):
        while True:
            if found := await condition():
                return found
            await asyncio.sleep(0.001)


async def status(rest: Rest, topic: str = TOPIC) -> dict[str, Any]:
    """The status of an offload that ended."""

    async def ended() -> dict[str, Any] | None:
        answer = await rest.get(f"{topic}/offload")
        assert answer.status == 200, answer
        return None if answer.body["status"] == "RUNNING" else answer.body

    return dict(await until(ended))


# -- truncating ------------------------------------------------------------------------------------------


async def test_truncating_deletes_all_segments_whatever_retention(
    rest: Rest, broker: Broker, client: pulsar.Client
) -> None:
    """By default everything is kept for ever; neither what is not acknowledged nor the active segment stays."""
    await rest.put(TOPIC)
    for name in ("audit", "other"):
        await rest.put(f"{TOPIC}/subscription/{name}", "earliest")
    await publish(client, 3)
    ledgers = [await seal(broker)]
    await publish(client, 2)
    topic = await opened(broker)
    active = topic.log.segment_list.active
    assert active is not None
    ledgers.append(active.ledger_id)
    assert await rest.delete(f"{TOPIC}/truncate") == (204, None)
    record = await broker.registry.records.load(topic.topic_name)
    assert not {one.ledger_id for one in record.segments} & set(ledgers)
    for ledger in ledgers:
        with pytest.raises(NotFound):
            await broker.services.ledgers.info(ledger)
    stats = (await rest.get(f"{TOPIC}/stats")).body
    assert stats["storageSize"] == 0
    assert {one["msgBacklog"] for one in stats["subscriptions"].values()} == {0}
    (after,) = await publish(client, 1)

    def receive() -> pulsar.MessageId:
        consumer = client.subscribe(NAME, "audit")
        found = consumer.receive(10_000).message_id()
        consumer.close()
        return found

    assert str(await in_thread(receive)) == str(after)


async def test_what_was_truncated_stays_truncated_after_a_crash(
    rest: Rest, house: BrokerHouse, broker: Broker, client: pulsar.Client
) -> None:
    await rest.put(TOPIC)
    await rest.put(AUDIT, "earliest")
    await publish(client, 3)
    assert (await rest.delete(f"{TOPIC}/truncate")).status == 204
    await house.kill(broker)
    other = await house.start()
    topic = await opened(other)
    assert topic.log.confirmed_index == 3 and not any(one.messages for one in topic.log.segments())
    (audit,) = topic.subscriptions
    assert topic.log.next_position(audit.mark_delete) >= topic.log.first_position()


async def test_truncating_a_topic_that_moves_away_is_refused(
    rest: Rest, broker: Broker, client: pulsar.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rest.put(TOPIC)
    await publish(client, 1)
    topic = await opened(broker)
    rolls, reached = asyncio.Event(), asyncio.Event()

    async def reach() -> None:
        rolls.set()
        await reached.wait()

    monkeypatch.setattr(topic.log.writing._meta_store, "reach", reach)
    truncating = asyncio.ensure_future(upkeep.truncate(topic))
    await rolls.wait()
    topic.drop()
    with pytest.raises(Unavailable, match="was unloaded"):
        await truncating


async def test_truncating_keeps_what_deduplication_knows(
    rest: Rest, house: BrokerHouse, broker: Broker, client: pulsar.Client
) -> None:
    """The entries are the only record of sequence ids until a snapshot has them."""
    await rest.put(TOPIC)
    await rest.post(f"{TOPIC}/deduplicationEnabled", True)
    await publish(client, 5, producer_name="p")
    assert (await rest.delete(f"{TOPIC}/truncate")).status == 204
    assert not (await opened(broker)).log.segment_list.sealed
    await house.kill(broker)
    other = await house.start()
    topic = await opened(other)
    assert topic.log.dedup is not None and topic.log.dedup.last_sequence_id("p") == 4


async def test_a_subscription_that_is_moved_back_meanwhile_keeps_its_messages(
    rest: Rest, broker: Broker, client: pulsar.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rest.put(TOPIC)
    await rest.put(AUDIT, "earliest")
    await publish(client, 3)
    topic = await opened(broker)
    (audit,) = topic.subscriptions
    skip = audit.skip_up_to

    async def skip_and_seek(*position: Any) -> None:
        await skip(*position)
        await broker.admin.subscriptions.reset_cursor(topic.topic_name, "audit", EARLIEST)

    monkeypatch.setattr(audit, "skip_up_to", skip_and_seek)
    assert (await rest.delete(f"{TOPIC}/truncate")).status == 204
    assert (await rest.get(f"{TOPIC}/stats")).body["subscriptions"]["audit"]["msgBacklog"] == 3
    assert len(topic.log.segment_list.sealed) == 1


async def test_truncating_waits_for_no_compaction(
    rest: Rest, broker: Broker, client: pulsar.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rest.put(TOPIC)
    await publish(client, 3)
    topic = await opened(broker)
    may_end = asyncio.Event()
    write = type(topic.log.compaction)._write

    async def slowly(*arguments: Any) -> Any:
        await may_end.wait()
        return await write(*arguments)

    monkeypatch.setattr(type(topic.log.compaction), "_write", slowly)
    assert (await rest.put(f"{TOPIC}/compaction")).status == 204
    refused = await rest.delete(f"{TOPIC}/truncate")
    assert refused.status == 412 and "is being compacted" in refused.body["reason"]
    may_end.set()
    await until(lambda: compacted(rest))
    await publish(client, 1)
    assert (await rest.delete(f"{TOPIC}/truncate")).status == 204
    assert not topic.log.segment_list.sealed, "entries after the compaction are truncated, too"


async def compacted(rest: Rest) -> bool:
    return bool((await rest.get(f"{TOPIC}/compaction")).body["status"] == "SUCCESS")


@pytest.mark.parametrize(
    ("method", "action"),
    [
        ("DELETE", "truncate"),
        ("POST", "trim"),
        ("PUT", "offload"),
        ("GET", "offload"),
        ("GET", "internal-info"),
    ],
)
async def test_only_topics_that_exist_and_keep_messages(rest: Rest, method: str, action: str) -> None:
    assert (await rest.ask(method, f"{TOPIC}/{action}")).status == 404
    passing = TOPIC.replace("persistent", "non-persistent", 1)
    await rest.put(passing)
    assert (await rest.ask(method, f"{passing}/{action}")).status == 400
    assert (await rest.get(TOPIC.rpartition("/")[0])).body == [], "nothing was created"


# -- trimming --------------------------------------------------------------------------------------------


async def test_trimming_follows_the_retention_policy_now(
    rest: Rest, broker: Broker, client: pulsar.Client
) -> None:
    await rest.put(TOPIC)
    await rest.put(AUDIT, "earliest")
    await publish(client, 3)
    await seal(broker)
    topic = await opened(broker)

    async def left_after_trim() -> int:
        assert await rest.post(f"{TOPIC}/trim") == (204, None)
        return len(topic.log.segment_list.sealed)

    assert await left_after_trim() == 1, "retention keeps everything"
    nothing = RetentionPolicy(retention_ms=0, retention_bytes=0)
    await broker.admin.policies.change_topic(topic.topic_name, lambda old: replace(old, retention=nothing))
    assert await left_after_trim() == 1, "a subscription needs it"
    await rest.post(f"{AUDIT}/skip_all")
    assert await left_after_trim() == 0


# -- offloading ------------------------------------------------------------------------------------------


async def test_offloading_archives_the_segments_before_that_of_a_message(
    rest: Rest, broker: Broker, client: pulsar.Client
) -> None:
    await rest.put(TOPIC)
    nothing = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
    assert await status(rest) == {"status": "NOT_RUN", "lastError": "", "firstUnoffloadedMessage": nothing}
    ledgers = []
    for _ in range(3):
        await publish(client, 2)
        ledgers.append(await seal(broker))
    topic = await opened(broker)
    end = {"ledgerId": ledgers[1], "entryId": 0, "partitionIndex": -1}
    assert await rest.put(f"{TOPIC}/offload", end) == (204, None)
    first = {"ledgerId": ledgers[1], "entryId": 0, "partitionIndex": -1}
    assert await status(rest) == {"status": "SUCCESS", "lastError": "", "firstUnoffloadedMessage": first}
    assert [one.archive is not None for one in topic.log.segment_list.sealed] == [True, False, False]
    assert (await rest.put(f"{TOPIC}/offload")).status == 204, "without a message, all of them"
    assert (await status(rest))["status"] == "SUCCESS"
    assert all(one.archive is not None for one in topic.log.segment_list.sealed)
    info = (await rest.get(f"{TOPIC}/internal-info")).body
    assert [one["isOffloaded"] for one in info["ledgers"]] == [True, True, True, False]


async def test_an_offload_that_fails_says_why_and_a_second_one_waits(
    rest: Rest, house: BrokerHouse, broker: Broker, client: pulsar.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rest.put(TOPIC)
    await publish(client, 2)
    await seal(broker)
    may_fail = asyncio.Event()

    async def fail(*_: Any) -> None:
        await may_fail.wait()
        raise OSError("the store is away")

    monkeypatch.setattr(house.archive, "offload", fail)
    assert (await rest.put(f"{TOPIC}/offload")).status == 204
    assert (await rest.get(f"{TOPIC}/offload")).body["status"] == "RUNNING"
    refused = await rest.put(f"{TOPIC}/offload")
    assert refused.status == 409 and "already being offloaded" in refused.body["reason"]
    may_fail.set()
    ended = await status(rest)
    assert ended["status"] == "ERROR" and "the store is away" in ended["lastError"]
    monkeypatch.undo()
    assert (await rest.put(f"{TOPIC}/offload")).status == 204
    assert (await status(rest))["status"] == "SUCCESS"


# -- backlogs --------------------------------------------------------------------------------------------


async def test_a_backlog_is_analyzed_by_reading_it(rest: Rest, broker: Broker, client: pulsar.Client) -> None:
    await rest.put(TOPIC)
    await rest.put(AUDIT, "earliest")
    empty = (await rest.post(f"{AUDIT}/analyzeBacklog")).body
    assert empty == {
        "entries": 0, "messages": 0,
        "filterRejectedEntries": 0, "filterAcceptedEntries": 0, "filterRescheduledEntries": 0,
        "filterRejectedMessages": 0, "filterAcceptedMessages": 0, "filterRescheduledMessages": 0,
        "aborted": False, "firstMessageId": None, "lastMessageId": None,
    }  # fmt: skip
    sent = await publish(client, 4)
    await seal(broker)
    last = (await publish(client, 1))[0]
    await rest.post(f"{AUDIT}/skip/2")
    found = (await rest.post(f"{AUDIT}/analyzeBacklog")).body
    assert (found["entries"], found["messages"], found["aborted"]) == (3, 3, False)
    assert (found["filterAcceptedEntries"], found["filterAcceptedMessages"]) == (3, 3)
    assert found["firstMessageId"] == f"{sent[2].ledger_id()}:{sent[2].entry_id()}"
    assert found["lastMessageId"] == f"{last.ledger_id()}:{last.entry_id()}"
    start = {"ledgerId": sent[3].ledger_id(), "entryId": sent[3].entry_id(), "partitionIndex": -1}
    assert (await rest.post(f"{AUDIT}/analyzeBacklog", start)).body["entries"] == 2
    assert (await rest.post(f"{AUDIT}/analyzeBacklog", {**start, "isExcluded": True})).body["entries"] == 1
    assert (await rest.post(f"{TOPIC}/subscription/none/analyzeBacklog")).status == 404
    assert (await rest.get(f"{TOPIC}/stats")).body["subscriptions"]["audit"]["msgBacklog"] == 3


async def test_the_messages_of_a_batch_that_are_acknowledged_do_not_count(
    rest: Rest, client: pulsar.Client
) -> None:
    await rest.put(TOPIC)
    await rest.put(AUDIT, "earliest")

    def batch() -> None:
        producer = client.create_producer(NAME, batching_enabled=True, batching_max_publish_delay_ms=10_000)
        for number in range(5):
            producer.send_async(b"%d" % number, lambda *_: None)
        producer.flush()
        producer.close()

    await in_thread(batch)
    await rest.post(f"{AUDIT}/skip/2")
    found = (await rest.post(f"{AUDIT}/analyzeBacklog")).body
    assert (found["entries"], found["messages"]) == (1, 3)


async def test_an_analysis_has_bounds(
    rest: Rest, client: pulsar.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rest.put(TOPIC)
    await rest.put(AUDIT, "earliest")
    await publish(client, 5)
    monkeypatch.setattr(analysis, "ENTRIES_MAX", 3)
    found = (await rest.post(f"{AUDIT}/analyzeBacklog")).body
    assert (found["entries"], found["aborted"]) == (3, True)
    monkeypatch.setattr(analysis, "ENTRIES_MAX", 5)
    found = (await rest.post(f"{AUDIT}/analyzeBacklog")).body
    assert (found["entries"], found["aborted"]) == (5, False)
    monkeypatch.setattr(analysis, "SCAN_S", 0.0)
    found = (await rest.post(f"{AUDIT}/analyzeBacklog")).body
    assert (found["entries"], found["aborted"]) == (0, True)


async def test_an_analysis_reads_in_the_turns_and_slots_of_searches(
    rest: Rest, broker: Broker, client: pulsar.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rest.put(TOPIC)
    await rest.put(AUDIT, "earliest")
    await publish(client, 2)
    topic = await opened(broker)
    services = topic.round_state.services
    cached, turn, steps = topic.log.cached, services.slices.turn, list[str]()

    async def taking_turn() -> None:
        steps.append("turn")
        await turn()

    def reading(position: Position) -> Any:
        steps.append(f"read in slot {TIME_SEARCHES_MAX - services.time_searches._value}")
        return cached(position)

    monkeypatch.setattr(services.slices, "turn", taking_turn)
    monkeypatch.setattr(topic.log, "cached", reading)
    assert (await rest.post(f"{AUDIT}/analyzeBacklog")).body["entries"] == 2
    assert steps and steps == ["turn", "read in slot 1"] * (len(steps) // 2)


async def test_an_analysis_of_lost_entries_ends_in_time(
    rest: Rest, client: pulsar.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rest.put(TOPIC)
    await rest.put(AUDIT, "earliest")
    await publish(client, 1)
    monkeypatch.setattr(block, "is_blank", lambda _: True)
    found = (await rest.post(f"{AUDIT}/analyzeBacklog")).body
    assert (found["entries"], found["aborted"]) == (0, False)
    monkeypatch.setattr(analysis, "SCAN_S", 0.0)
    assert (await rest.post(f"{AUDIT}/analyzeBacklog")).body["aborted"]


# -- the record ------------------------------------------------------------------------------------------


async def test_a_topics_record_is_shown_as_pulsar_shows_it(
    rest: Rest, broker: Broker, client: pulsar.Client
) -> None:
    await rest.put(TOPIC, {"team": "till"})
    await rest.put(AUDIT, "earliest")
    sent = await publish(client, 4)
    ledger = await seal(broker)

    def acknowledge_the_third() -> None:
        consumer = client.subscribe(NAME, "audit", consumer_type=pulsar.ConsumerType.Shared)
        for _ in range(3):
            message = consumer.receive(10_000)
        consumer.acknowledge(message)
        consumer.close()

    await in_thread(acknowledge_the_third)
    topic = await opened(broker)
    await until(lambda: acknowledged(topic))
    info = (await rest.get(f"{TOPIC}/internal-info")).body
    sealed, active = info["ledgers"]
    assert (sealed["ledgerId"], sealed["entries"], sealed["isOffloaded"]) == (ledger, 4, False)
    assert sealed["size"] > 0 and sealed["timestamp"] > 0 and active["entries"] is None
    assert info["properties"] == {"team": "till"} and info["creationDate"].endswith("+00:00")
    assert info["version"] == topic.log.segment_list.snapshot.version and info["terminatedPosition"] is None
    cursor = info["cursors"]["audit"]
    run = {"from": {"ledgerId": ledger, "entryId": 1}, "to": {"ledgerId": ledger, "entryId": 2}}
    assert cursor["individualDeletedMessages"] == [run]
    assert cursor["markDelete"] == {"ledgerId": ledger, "entryId": -1}
    last = (await rest.post(f"{TOPIC}/terminate")).body
    assert last["entryId"] == sent[-1].entry_id()
    info = (await rest.get(f"{TOPIC}/internal-info")).body
    assert info["terminatedPosition"] == {"ledgerId": ledger, "entryId": 3}


async def acknowledged(topic: PersistentTopic) -> bool:
    (audit,) = topic.subscriptions
    return bool(audit.cursor.acked.by_ledger)  # type: ignore[attr-defined]


# -- partitions, on any broker ---------------------------------------------------------------------------


@pytest.fixture
async def brokers() -> AsyncIterator[Brokers]:
    made = Brokers()
    made.archive = Archive(TrustedPlace(MemoryObjectStore(), made.cluster.store), SystemClock())
    yield made
    await made.close()


async def ask(member: Member, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session:
        url = f"{member.broker.addresses.http_url}{path}"
        async with session.request(method, url, json=body) as answer:
            text = await answer.text()
            return answer.status, await answer.json() if text else None


async def test_all_partitions_are_asked_wherever_they_are(brokers: Brokers) -> None:
    one, two = await brokers.start(), await brokers.start()
    assert (await ask(one, "PUT", f"{PARTS}/partitions", 12))[0] == 204
    names = [PARTITION.format(index) for index in range(12)]
    client = brokers.client()
    for name in names:
        await publish(client, 2, name)
    assert one.topics() and two.topics(), "each broker has some"
    assert (await ask(one, "PUT", f"{PARTS}/subscription/audit", "earliest"))[0] == 204

    analyzed = (await ask(two, "POST", f"{PARTS}/subscription/audit/analyzeBacklog"))[1]
    assert (analyzed["entries"], analyzed["messages"], analyzed["firstMessageId"]) == (24, 24, None)
    at = {"ledgerId": 1, "entryId": 0}
    assert (await ask(two, "POST", f"{PARTS}/subscription/audit/analyzeBacklog", at))[0] == 405

    for member in (one, two):
        for topic in member.broker.registry.persistent():
            await member.broker.admin.topics.seal(topic.topic_name)
    assert (await ask(two, "PUT", f"{PARTS}/offload", at))[0] == 405
    assert (await ask(two, "PUT", f"{PARTS}/offload"))[0] == 204

    async def archived() -> bool:
        return bool((await ask(one, "GET", f"{PARTS}/offload"))[1]["status"] == "SUCCESS")

    await until(archived)
    info = (await ask(one, "GET", f"{PARTS}/internal-info"))[1]
    assert info["partitions"].keys() == set(names)
    assert all(each["ledgers"][0]["isOffloaded"] for each in info["partitions"].values())

    assert (await ask(two, "POST", f"{PARTS}/trim"))[0] == 204
    assert (await ask(two, "DELETE", f"{PARTS}/truncate"))[0] == 204
    for member in (one, two):
        for topic in member.broker.registry.persistent():
            assert not topic.log.segment_list.sealed, topic.name
    stats = (await ask(one, "GET", f"{PARTS}/partitioned-stats"))[1]
    assert stats["storageSize"] == 0 and stats["subscriptions"]["audit"]["msgBacklog"] == 0


async def test_a_request_at_another_broker_is_sent_to_the_owner(brokers: Brokers) -> None:
    one, two = await brokers.start(), await brokers.start()
    client = brokers.client()
    names = [f"persistent://public/default/topic-{index}" for index in range(12)]
    for name in names:
        await publish(client, 1, name)
    assert one.topics() and two.topics()
    for name in names:
        path = f"/admin/v2/{name.replace('://', '/')}"
        assert (await ask(one, "DELETE", f"{path}/truncate"))[0] == 204
    for member in (one, two):
        for topic in member.broker.registry.persistent():
            assert not any(view.messages for view in topic.log.segments()), topic.name
