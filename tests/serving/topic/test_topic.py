"""A whole topic over bookies in memory: failure of its ledger, loss of ownership, seek by time."""

from __future__ import annotations

import asyncio
from functools import partial
from unittest.mock import AsyncMock

import pulsar
import pytest
from msgspec.structs import replace

from quire.metadata import paths, topics
from quire.metadata.records import (
    PersistencePolicy,
    SegmentRecord,
    StateLogRecord,
    TopicRecord,
    decode,
)
from quire.metadata.store import ANY_VERSION, Node
from quire.runtime.errors import (
    Fenced,
    NotFound,
    OutcomeUnknown,
    QuireError,
    Unavailable,
)
from quire.serving.broker import Broker
from quire.serving.model.ports import EARLIEST, Position
from quire.serving.names import TopicName
from quire.serving.policy.resolved import TopicPolicies
from quire.serving.policy.service import TopicPoliciesService
from quire.serving.registry import bundles, topic_deletion
from quire.serving.subscription.subscriptions import Subscriptions
from quire.serving.topic import log as log_module
from quire.serving.topic import writing
from quire.serving.topic.finding import position_of
from quire.serving.topic.lifecycle.states import State
from quire.serving.topic.topic import Topic
from quire.wire.bookie import Status
from tests.serving.conftest import NAME, BrokerHouse, in_thread, publish, read_all
from tests.serving.silent import publish_silently


async def test_a_failed_ledger_costs_a_pause_and_no_message(
    house: BrokerHouse, broker: Broker, client: pulsar.Client
) -> None:
    """Rule 5: the topic recovers its own ledger and goes on in the next one; the producer notices nothing."""
    producer = await in_thread(lambda: client.create_producer(str(NAME), block_if_queue_full=True))
    await in_thread(lambda: producer.send(b"0"))
    topic = broker.registry.find(NAME)
    assert topic is not None
    first = topic.log.segments()[-1].ledger_id
    # Another process recovers, and so fences, the ledger under the writer's hands.
    await house.cluster.join().recover(first)
    await in_thread(lambda: [producer.send(b"%d" % i) for i in range(1, 20)])
    assert topic.log.segments()[-1].ledger_id > first
    assert await in_thread(lambda: read_all(client)) == list(range(20))
    assert broker.services.budget.held_bytes == 0


async def test_a_full_ledger_is_written_on_while_the_metadata_store_is_silent(
    broker: Broker, client: pulsar.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else publishing would stop with the first segment that is full, long before the session is over."""
    await in_thread(lambda: publish(client, range(5)))
    topic = broker.registry.find(NAME)
    assert topic is not None
    store, answers = broker.services.store, asyncio.Event()
    get = store.get

    async def silent_get(path: str) -> Node:
        await answers.wait()
        return await get(path)

    monkeypatch.setattr(store, "get", silent_get)
    roll = topic.log.writing.roll()
    assert roll is not None
    first = topic.log.segments()[-1].ledger_id
    await in_thread(lambda: publish(client, range(5, 10)))
    assert topic.log.last_confirmed == Position(first, 9)
    assert topic.log.writing.roll() is roll and not roll.done()

    answers.set()
    await roll
    assert topic.log.segments()[-1].ledger_id > first
    assert await in_thread(lambda: read_all(client)) == list(range(10))


async def test_a_lost_topic_sends_its_clients_away(broker: Broker, client: pulsar.Client) -> None:
    """The first version conflict on the list stops this incarnation; the next one has all that was confirmed."""
    await in_thread(lambda: publish(client, range(5)))
    topic = broker.registry.find(NAME)
    assert topic is not None
    store = broker.services.store
    snapshot = await topics.load(store, NAME.path)
    await topics.update(store, snapshot, replace(snapshot.record, properties={"owner": "another"}))
    roll = topic.log.writing.roll()
    assert roll is not None
    await roll
    assert topic.is_closed
    assert broker.registry.find(NAME) is None
    await in_thread(lambda: publish(client, range(5, 10)))
    assert await in_thread(lambda: read_all(client)) == list(range(10))


async def test_any_conflict_on_the_list_stops_the_whole_incarnation(
    broker: Broker, client: pulsar.Client
) -> None:
    """Whoever meets it: not only the next roll."""
    producer = await in_thread(lambda: client.create_producer(str(NAME)))
    await in_thread(lambda: producer.send(b"0"))
    topic = broker.registry.find(NAME)
    assert topic is not None
    store = broker.services.store
    snapshot = await topics.load(store, NAME.path)
    await topics.update(store, snapshot, replace(snapshot.record, properties={"owner": "another"}))
    with pytest.raises(Fenced):
        await topic.log.meta_store.update(lambda record: record)
    await asyncio.sleep(0)
    assert topic.is_closed
    assert broker.registry.find(NAME) is not topic
    await in_thread(lambda: producer.send(b"1"))
    assert await in_thread(lambda: read_all(client)) == [0, 1]


async def test_persistence_by_policy_says_how_many_copies_there_are(
    broker: Broker, client: pulsar.Client
) -> None:
    await broker.namespaces.change(
        "public", "default", lambda old: replace(old, persistence=PersistencePolicy(2, 1))
    )
    await in_thread(lambda: publish(client, range(5)))
    topic = broker.registry.find(NAME)
    assert topic is not None
    record = await broker.services.ledgers.info(topic.log.segments()[-1].ledger_id)
    assert (record.write_quorum, record.ack_quorum, len(record.fragments[-1].bookies)) == (2, 1, 2)

    await broker.namespaces.change(
        "public", "default", lambda old: replace(old, persistence=PersistencePolicy(3, 3))
    )
    async with asyncio.timeout(60):
        while topic.applied.policies.persistence != PersistencePolicy(3, 3):  # noqa: ASYNC110
            await asyncio.sleep(0)
    await topic.log.writing.roll()  # type: ignore[misc]
    record = await broker.services.ledgers.info(topic.log.segments()[-1].ledger_id)
    assert (record.write_quorum, record.ack_quorum, len(record.fragments[-1].bookies)) == (3, 3, 3)


async def test_positions_and_indexes_over_segments(broker: Broker, client: pulsar.Client) -> None:
    for start in (0, 3, 6):
        await in_thread(lambda start=start: publish(client, range(start, start + 3)))
        topic = broker.registry.find(NAME)
        assert topic is not None
        if start < 6:
            await topic.log.writing.roll()  # type: ignore[misc]
    first, second, third = (view.ledger_id for view in topic.log.segments())
    assert topic.log.next_position(Position(first, 2)) == Position(second, 0)
    assert topic.log.next_position(Position(first, 1)) == Position(first, 2)
    assert topic.log.next_position(Position(-1, -1)) == Position(first, 0)
    assert topic.log.next_position(Position(third, 2)) == Position(third, 3)
    assert topic.log.last_confirmed == Position(third, 2)
    assert topic.log.confirmed_index == 9
    assert [await topic.log.index_of(Position(second, entry)) for entry in range(3)] == [3, 4, 5]
    assert [await position_of(topic.log, index) for index in (0, 4, 8, 9)] == [
        Position(first, 0),
        Position(second, 1),
        Position(third, 2),
        Position(third, 3),
    ]
    assert await topic.log.find_time(0) == Position(first, 0)
    assert await topic.log.find_time(2**50) == Position(third, 3)
    assert await topic.log.read(Position(third, 3), 1000) == ()


async def test_an_empty_segment_is_dropped_from_the_list(broker: Broker, client: pulsar.Client) -> None:
    await in_thread(lambda: publish(client, range(3)))
    for _ in range(3):
        await broker.admin.topics.unload(NAME)
        await broker.registry.open_persistent(NAME)
    rows: list[SegmentRecord] = list((await topics.load(broker.services.store, NAME.path)).segments)
    assert [row.messages for row in rows if row.is_sealed] == [3]
    assert len(rows) == 2


async def test_a_topic_that_changes_hands_costs_a_read_and_two_changes(
    broker: Broker, client: pulsar.Client
) -> None:
    """One transaction closes its ledger and seals the segment, one makes the next ledger and lists it."""
    await in_thread(lambda: publish(client, range(5)))
    counts = broker.services.store.counts
    changes = counts.changes
    await broker.registry.unload(NAME)
    assert counts.changes == changes + 1
    reads, changes = counts.reads, counts.changes
    await broker.registry.open(NAME)
    assert (counts.reads, counts.changes) == (reads + 1, changes + 1)


async def test_many_ask_for_one_topic_and_it_is_loaded_once(broker: Broker) -> None:
    found = await asyncio.gather(*(broker.sessions.topics.open("shared-load") for _ in range(50)))
    assert len({id(topic) for topic in found}) == 1
    assert len(found[0].log.segments()) == 1


async def test_bookies_that_come_back_end_a_pause(
    house: BrokerHouse, broker: Broker, client: pulsar.Client
) -> None:
    """Below the ack quorum nothing is confirmed; what was sent meanwhile is there when bookies are back."""
    producer = await in_thread(lambda: client.create_producer(str(NAME), send_timeout_millis=0))
    await in_thread(lambda: producer.send(b"0"))
    for bookie in house.cluster.bookies:
        bookie.unreachable = True
    sent = asyncio.create_task(in_thread(lambda: [producer.send(b"%d" % i) for i in range(1, 5)]))
    # The client publishes from a thread; the loop has to turn until its bytes are here.
    async with asyncio.timeout(60):
        while not broker.services.budget.held_bytes:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert not sent.done()
    for bookie in house.cluster.bookies:
        bookie.unreachable = False
    await sent
    assert await in_thread(lambda: read_all(client)) == list(range(5))


async def test_a_failed_state_log_is_opened_anew(
    house: BrokerHouse, broker: Broker, client: pulsar.Client
) -> None:
    """Its topics are loaded again from what is durable; no message and no subscription is lost."""

    def open_both() -> tuple[pulsar.Producer, pulsar.Consumer]:
        return client.create_producer(str(NAME)), client.subscribe(str(NAME), "s")

    producer, consumer = await in_thread(open_both)
    path = paths.state_log("public", "default", "00000000_ffffffff")
    record = decode(StateLogRecord, (await broker.services.store.get(path)).value, path)
    before = broker.registry.find(NAME)
    # Another process fences the log's ledger: the next cursor cannot be written.
    await house.cluster.join().recover(record.ledgers[-1])

    def use() -> list[bytes]:
        client.subscribe(str(NAME), "other").close()
        found = []
        for number in range(10):
            producer.send(b"%d" % number)
            message = consumer.receive(10_000)
            consumer.acknowledge(message)
            found.append(message.data())
        return list(dict.fromkeys(found))

    assert (await in_thread(use))[-1] == b"9"
    assert broker.registry.find(NAME) is not before
    assert await broker.admin.subscriptions.names(NAME) == ["other", "s"]
    assert await in_thread(lambda: read_all(client)) == list(range(10))


async def test_what_is_refused_while_nothing_can_be_written_works_afterwards(
    house: BrokerHouse, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk: the bundle whose state log failed is closed, and loaded anew as soon as that works."""
    for module, name in ((writing, "END_S"), (log_module, "UNLOAD_PATIENCE_S"), (bundles, "CLOSE_S")):
        monkeypatch.setattr(module, name, 0.01)
    await broker.admin.subscriptions.create(NAME, "before", EARLIEST)
    topic = await broker.registry.open(NAME)
    for bookie in house.cluster.bookies:
        bookie.refuses = Status.READ_ONLY
    with pytest.raises(QuireError):
        async with asyncio.timeout(60):
            await broker.admin.subscriptions.create(NAME, "refused", EARLIEST)
    for bookie in house.cluster.bookies:
        bookie.refuses = None
    async with asyncio.timeout(60):
        while True:
            try:
                await broker.admin.subscriptions.create(NAME, "after", EARLIEST)
            except QuireError:
                await asyncio.sleep(0.01)
            else:
                break
    assert {"before", "after"} <= set(await broker.admin.subscriptions.names(NAME))
    assert await broker.registry.open(NAME) is not topic


async def test_bytes_of_a_topic_that_goes_are_given_back(broker: Broker) -> None:
    """What was not written when a topic was unloaded or deleted must not hold the other clients back for ever."""
    for leave in (broker.registry.unload, partial(topic_deletion.delete, broker.registry)):
        topic = await broker.registry.open(NAME, create=True)
        entries = [b"x" * 100] * 30_000  # more than may be in flight
        publish_silently(topic, *entries)
        assert broker.services.budget.held_bytes >= 3_000_000
        await leave(NAME)
        assert broker.services.budget.held_bytes == 0


async def test_a_topic_whose_ledger_takes_no_writes_can_be_unloaded(
    house: BrokerHouse, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else no other broker could ever have it, nor its bundle, which may be what helps."""
    monkeypatch.setattr(writing, "END_S", 0.01)
    monkeypatch.setattr(log_module, "UNLOAD_PATIENCE_S", 0.01)
    topic = await broker.registry.open(NAME, create=True)
    for bookie in house.cluster.bookies:
        bookie.unreachable = True
    publish_silently(topic, b"x" * 10)
    async with asyncio.timeout(60):
        for closed in await broker.bundles.close_topics(await broker.registry.ownership.bundle_of(NAME)):
            closed.drop()
    assert topic.is_closed and broker.services.budget.held_bytes == 0
    assert not broker.services.ledgers._writers.get(topic.log.segments()[-1].ledger_id)  # type: ignore[attr-defined]
    for bookie in house.cluster.bookies:
        bookie.unreachable = False
    assert not (await broker.registry.open(NAME)).is_closed


async def test_a_bundle_whose_state_log_takes_no_writes_can_be_handed_over(
    house: BrokerHouse, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in ((writing, "END_S"), (log_module, "UNLOAD_PATIENCE_S"), (bundles, "CLOSE_S")):
        monkeypatch.setattr(module, name, 0.01)
    topic = await broker.registry.open(NAME, create=True)
    bundle = await broker.registry.ownership.bundle_of(NAME)
    for bookie in house.cluster.bookies:
        bookie.unreachable = True
    making = asyncio.ensure_future(topic.subscriptions.create("s"))
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        handover = await broker.bundles.hand_over(bundle)
    handover.disconnect_clients("")
    with pytest.raises(OutcomeUnknown):
        await making
    for bookie in house.cluster.bookies:
        bookie.unreachable = False
    await (await broker.registry.open(NAME)).subscriptions.create("t")


async def test_a_topic_whose_ledger_another_owner_deleted_is_loaded_anew(
    broker: Broker, client: pulsar.Client
) -> None:
    topic = await broker.registry.open(NAME, create=True)
    assert isinstance(topic, Topic)
    producer = await in_thread(lambda: client.create_producer(str(NAME)))
    active = topic.log.segment_list.active
    assert active is not None
    store = broker.services.store
    await topics.drop_last(store, await topics.load(store, NAME.path))  # it was empty
    await broker.services.ledgers.delete(active.ledger_id)
    await in_thread(lambda: producer.send(b"7"))
    assert topic.is_closed and await in_thread(lambda: read_all(client)) == [7]
    await in_thread(producer.close)


async def test_an_interrupted_deletion_is_finished_though_nobody_asks_for_it(
    broker: Broker, client: pulsar.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await in_thread(lambda: publish(client, range(5)))
    tries = 0

    async def fail(_: Subscriptions) -> None:
        nonlocal tries
        tries += 1
        raise Unavailable("the state log does not answer")

    monkeypatch.setattr("quire.serving.operations.deletion.RETRY_S", 0.01)
    with monkeypatch.context() as patch:
        patch.setattr(Subscriptions, "forget", fail)
        with pytest.raises(Unavailable):
            await topic_deletion.delete(broker.registry, NAME)
        with pytest.raises(Unavailable, match="is being deleted"):
            await broker.registry.open(NAME, create=True)
        async with asyncio.timeout(60):
            while tries < 3:  # noqa: ASYNC110  nothing tells of a try that failed
                await asyncio.sleep(0.01)
    await until_deleted(broker, NAME)
    with pytest.raises(NotFound):
        await topic_deletion.delete(broker.registry, NAME)
    await in_thread(lambda: publish(client, range(5, 7)))
    assert await in_thread(lambda: read_all(client)) == [5, 6]


async def test_a_deletion_whose_maker_died_is_finished_by_who_meets_it(
    broker: Broker, client: pulsar.Client
) -> None:
    await in_thread(lambda: publish(client, range(5)))
    topic = await broker.registry.open_persistent(NAME)
    [segment] = topic.log.segment_list.listed
    await broker.registry.unload(NAME)
    await interrupt_deletion(broker, NAME)
    with pytest.raises(Unavailable, match="is being deleted"):
        await broker.registry.open(NAME, create=True)
    await until_deleted(broker, NAME)
    with pytest.raises(NotFound):
        await broker.services.ledgers.info(segment.ledger_id)
    await in_thread(lambda: publish(client, range(5, 7)))
    assert await in_thread(lambda: read_all(client)) == [5, 6]


async def test_finishing_a_deletion_spares_a_topic_that_was_made_anew_meanwhile(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.registry.create(NAME)
    await interrupt_deletion(broker, NAME)
    store, read, is_first = broker.services.store, broker.registry.records.find, True

    async def find(name: TopicName) -> TopicRecord | None:
        """Behind the answer another deletes the topic, and makes it again."""
        nonlocal is_first
        record = await read(name)
        if is_first:
            is_first = False
            await store.delete(name.path, ANY_VERSION)
            await broker.registry.create(name)
        return record

    monkeypatch.setattr(broker.registry.records, "find", find)
    await broker.deletion._finish(NAME)
    record = await read(NAME)
    assert record is not None and not record.deleting and not is_first


async def test_a_topic_is_made_anew_only_when_all_of_the_former_one_is_forgotten(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.registry.open(NAME, create=True)
    forget, reached, goes_on = broker.registry.schemas.forget, asyncio.Event(), asyncio.Event()

    async def wait(name: TopicName) -> None:
        reached.set()
        await goes_on.wait()
        await forget(name)

    monkeypatch.setattr(broker.registry.schemas, "forget", wait)
    deletion = asyncio.create_task(topic_deletion.delete(broker.registry, NAME))
    await reached.wait()
    made = asyncio.create_task(broker.registry.open(NAME, create=True))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not made.done(), "what it remembers by now would be forgotten"
    goes_on.set()
    await deletion
    assert await made is broker.registry.find(NAME)


async def interrupt_deletion(broker: Broker, name: TopicName) -> None:
    """The first step of a deletion, whose maker died."""
    snapshot = await topics.load(broker.services.store, name.path)
    await topics.update(broker.services.store, snapshot, replace(snapshot.record, deleting=True))


async def until_deleted(broker: Broker, name: TopicName) -> None:
    async with asyncio.timeout(60):
        while await broker.registry.records.find(name) is not None:  # noqa: ASYNC110  nothing tells of it
            await asyncio.sleep(0)


async def test_deleting_twice_at_once_deletes_once(broker: Broker, client: pulsar.Client) -> None:
    await in_thread(lambda: publish(client, range(5)))
    await broker.registry.unload(NAME)
    answers = await asyncio.gather(
        *[topic_deletion.delete(broker.registry, NAME) for _ in range(3)], return_exceptions=True
    )
    assert [type(answer) for answer in answers].count(NotFound) == 2
    assert await broker.registry.records.find(NAME) is None


async def test_a_ledger_that_came_into_no_list_is_not_left_open(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await broker.registry.open(NAME, create=True)
    before = dict(broker.services.ledgers._writers)  # type: ignore[attr-defined]

    async def fail(*_: object) -> None:
        raise Unavailable("the metadata store does not answer")

    monkeypatch.setattr(topic.log.meta_store, "begin", fail)
    for _ in range(3):
        with pytest.raises(Unavailable):
            await topic.log.writing._begin_next(None)
    assert broker.services.ledgers._writers == before  # type: ignore[attr-defined]


async def test_a_load_that_fails_at_the_end_leaves_no_topic_behind(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.registry.open(NAME, create=True)
    await broker.registry.unload(NAME)
    before = dict(broker.services.ledgers._writers)  # type: ignore[attr-defined]
    policies = broker.registry.policies
    asked = 0

    async def fail_the_second_time(name: TopicName) -> TopicPolicies:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise Unavailable("the metadata store does not answer")
        return await TopicPoliciesService.of(policies, name)

    monkeypatch.setattr(policies, "of", fail_the_second_time)
    with pytest.raises(Unavailable):
        await broker.registry.open(NAME)
    assert asked == 2
    assert broker.services.ledgers._writers == before  # type: ignore[attr-defined]
    assert not (await broker.registry.open(NAME)).is_closed


async def test_a_topic_that_is_lost_while_it_is_loaded_is_not_served(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would ever take it out of the registry: it was told of its loss before it was there."""
    policies, load = broker.registry.policies, Topic.load
    made: list[Topic] = []

    async def remember(topic: Topic) -> None:
        await load(topic)
        made.append(topic)

    async def lose_the_first(name: TopicName) -> TopicPolicies:
        if len(made) == 1 and not made[0].is_closed:
            snapshot = await topics.load(broker.services.store, name.path)
            changed = replace(snapshot.record, properties={"owner": "another"})
            await topics.update(broker.services.store, snapshot, changed)
            roll = made[0].log.writing._roll()
            assert roll is not None
            await roll
        return await TopicPoliciesService.of(policies, name)

    monkeypatch.setattr(Topic, "load", remember)
    monkeypatch.setattr(policies, "of", lose_the_first)
    with pytest.raises(Unavailable, match="look it up again"):
        await broker.registry.open(NAME, create=True)
    assert made[0].state is State.LOST and broker.registry.find(NAME) is None
    assert (await broker.registry.open(NAME)).state is State.SERVING


async def test_a_topic_ends_once(broker: Broker) -> None:
    """Whoever comes later, to close it or because its bundle is gone, finds nothing to do."""
    await broker.registry.create(NAME)
    lost = await broker.registry.open_persistent(NAME)
    lost._lost()
    await lost.unload()
    lost.drop("pulsar://elsewhere:6650")
    assert lost.state is State.LOST
    unloaded = await broker.registry.open_persistent(NAME)
    assert unloaded is not lost
    await unloaded.close()
    assert unloaded.state is State.CLOSING
    unloaded.drop()
    unloaded._lost()
    assert unloaded.state is State.CLOSED
    with pytest.raises(AssertionError, match="a loaded topic in state CLOSED received DELETE"):
        await unloaded.delete(AsyncMock())


async def test_an_entry_of_garbage_does_not_keep_a_deduplicated_topic_from_loading(
    house: BrokerHouse,
) -> None:
    broker = await house.start(deduplication=True)
    topic = await broker.registry.open(NAME, create=True)
    publish_silently(topic, b"\x0e\x01garbage")
    await topic.log.publisher.flushed()
    await house.kill(broker)
    broker = await house.start(deduplication=True)
    assert (await broker.registry.open(NAME)).log.confirmed_index == 1


async def test_who_waits_for_what_is_dropped_is_told(broker: Broker) -> None:
    topic = await broker.registry.open(NAME, create=True)
    publish_silently(topic, b"x")
    terminating = asyncio.ensure_future(topic.terminate())
    await asyncio.sleep(0)
    topic.drop()
    with pytest.raises(Unavailable):
        await asyncio.wait_for(terminating, 5)
