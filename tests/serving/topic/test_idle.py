"""Topics that nobody uses are unloaded by the broker's tick, and loaded again by whoever asks."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pulsar
import pytest
from msgspec.structs import replace

from quire.metadata import paths, topics
from quire.metadata.records import InactiveTopicPolicy, Policies
from quire.runtime.errors import NotFound
from quire.serving.broker import Broker
from quire.serving.names import TopicName
from quire.serving.registry import local_bundles
from tests.serving.conftest import AdvancedClock, BrokerHouse, in_thread, look_after_topics

NAME = TopicName.parse("topic")
IDLE_S = 60.0


@pytest.fixture
async def broker(house: BrokerHouse) -> Broker:
    house.clock = AdvancedClock()
    return await house.start(topic_idle_ms_max=int(1000 * IDLE_S), archive_delay_ms=0, archive_lag_ms=0)


async def let_pass(house: BrokerHouse, broker: Broker, seconds: float) -> None:
    """Time without any use: the broker looks before and after it."""
    assert isinstance(house.clock, AdvancedClock)
    await look_after_topics(broker)
    house.clock.ahead_s += seconds
    await look_after_topics(broker)


def publish(client: pulsar.Client, *payloads: bytes) -> None:
    producer = client.create_producer(str(NAME))
    for payload in payloads:
        producer.send(payload)
    producer.close()


def receive(consumer: pulsar.Consumer) -> bytes:
    message = consumer.receive(10_000)
    consumer.acknowledge(message)
    return bytes(message.data())


async def test_a_topic_that_was_never_written_to_rests_as_one_node(
    house: BrokerHouse, broker: Broker, client: pulsar.Client
) -> None:
    await in_thread(lambda: publish(client))
    topic = broker.registry.find(NAME)
    assert topic is not None
    ledger_id = topic.log.segments()[-1].ledger_id
    await let_pass(house, broker, IDLE_S - 1)
    assert broker.registry.find(NAME) is topic
    await let_pass(house, broker, IDLE_S)
    assert broker.registry.find(NAME) is None
    store = broker.services.store
    assert not (await topics.load(store, NAME.path)).segments
    with pytest.raises(NotFound):
        await store.get(paths.ledger(ledger_id))


async def test_what_is_used_does_not_rest(house: BrokerHouse, broker: Broker, client: pulsar.Client) -> None:
    producer = await in_thread(lambda: client.create_producer(str(NAME)))
    await let_pass(house, broker, 10 * IDLE_S)
    assert broker.registry.find(NAME) is not None
    await in_thread(producer.close)
    consumer = await in_thread(lambda: client.subscribe(str(NAME), "sub"))
    await let_pass(house, broker, 10 * IDLE_S)
    assert broker.registry.find(NAME) is not None
    await in_thread(consumer.close)
    await let_pass(house, broker, IDLE_S)
    assert broker.registry.find(NAME) is None


async def test_a_subscription_at_the_end_of_an_empty_topic_misses_nothing_after_rests(
    house: BrokerHouse, broker: Broker, client: pulsar.Client
) -> None:
    """Its cursor names a ledger that went with a rest; what follows lies behind it."""
    consumer = await in_thread(lambda: client.subscribe(str(NAME), "sub"))
    await in_thread(consumer.close)
    for _ in range(2):
        await let_pass(house, broker, IDLE_S)
        assert broker.registry.find(NAME) is None
        await broker.registry.open(NAME)
    await in_thread(lambda: publish(client, b"first"))
    consumer = await in_thread(lambda: client.subscribe(str(NAME), "sub"))
    assert await in_thread(lambda: receive(consumer)) == b"first"


async def test_ledger_ids_grow_over_rests_at_brokers_that_hold_other_ranges(house: BrokerHouse) -> None:
    low, high = await house.start(), await house.start(listen="127.0.0.1:0")
    found = []
    for broker in (low, high, low, high):
        topic = await broker.registry.open(NAME, create=True)
        found.append(topic.log.segments()[-1].ledger_id)
        await broker.registry.unload_all([NAME], even_used=False)
        assert broker.registry.find(NAME) is None
    assert found == sorted(set(found))


async def test_messages_are_archived_before_a_topic_rests(
    house: BrokerHouse, broker: Broker, client: pulsar.Client
) -> None:
    await in_thread(lambda: publish(client, b"0", b"1"))
    await let_pass(house, broker, IDLE_S)
    topic = broker.registry.find(NAME)
    assert topic is not None, "its segment was sealed, but is not archived yet"
    while broker.registry.find(NAME) is not None:
        await broker.admin.archive.run(seal=False, here=True)
        await let_pass(house, broker, IDLE_S)
    [segment] = (await topics.load(broker.services.store, NAME.path)).segments
    assert segment.archive is not None and not segment.on_bookies
    reader = await in_thread(lambda: client.create_reader(str(NAME), pulsar.MessageId.earliest))
    assert [await in_thread(lambda: bytes(reader.read_next(10_000).data())) for _ in range(2)] == [b"0", b"1"]


async def test_a_topic_rests_while_bookies_keep_what_is_archived_and_is_recalled_to_let_them_go(
    house: BrokerHouse, client: pulsar.Client, broker: Broker
) -> None:
    await house.stop(broker)
    broker = await house.start(
        topic_idle_ms_max=int(1000 * IDLE_S), archive_delay_ms=0, archive_lag_ms=60_000
    )
    await broker.admin.policies.change_namespace(
        "public", "default", lambda old: replace(old, archive_lag_ms=3_600_000)
    )
    await in_thread(lambda: publish(client, b"0"))
    await let_pass(house, broker, IDLE_S)
    assert broker.registry.find(NAME) is not None, "its segment is not archived yet"
    while broker.registry.find(NAME) is not None:
        await broker.admin.archive.run(seal=False, here=True)
        await let_pass(house, broker, 1.0)
    await let_pass(house, broker, 3_400.0)
    assert broker.registry.find(NAME) is None, "nothing is to be done yet"
    await let_pass(house, broker, 200.0)
    assert broker.registry.find(NAME) is not None
    await broker.admin.archive.run(seal=False, here=True)
    [segment, *_] = (await topics.load(broker.services.store, NAME.path)).segments
    assert segment.archive is not None and not segment.on_bookies
    await let_pass(house, broker, IDLE_S)
    await let_pass(house, broker, IDLE_S)
    assert broker.registry.find(NAME) is None


async def test_a_topic_at_rest_is_recalled_sooner_when_a_bookie_has_no_room(
    house: BrokerHouse, client: pulsar.Client, broker: Broker
) -> None:
    await house.stop(broker)
    broker = await house.start(
        topic_idle_ms_max=int(1000 * IDLE_S), archive_delay_ms=0, archive_lag_ms=3_600_000
    )
    await broker.admin.policies.change_namespace(
        "public", "default", lambda old: replace(old, archive_lag_ms=86_400_000)
    )
    await in_thread(lambda: publish(client, b"0"))
    await let_pass(house, broker, IDLE_S)
    while broker.registry.find(NAME) is not None:
        await broker.admin.archive.run(seal=False, here=True)
        await let_pass(house, broker, 1.0)
    house.cluster.bookies[0].is_full = True
    await let_pass(house, broker, 1.0)
    assert broker.registry.find(NAME) is not None
    await broker.admin.archive.run(seal=False, here=True)
    [segment, *_] = (await topics.load(broker.services.store, NAME.path)).segments
    assert segment.archive is not None and not segment.on_bookies


async def test_a_topic_that_was_deleted_while_it_rested_is_recalled_no_more(
    house: BrokerHouse, broker: Broker
) -> None:
    assert broker.offloading is not None
    broker.rounds.idle.load_at(NAME, 0)
    await look_after_topics(broker)
    assert broker.registry.find(NAME) is None and not broker.rounds.idle._due_ms


@pytest.mark.parametrize(
    "policies",
    [
        Policies(message_ttl_ms=1),
        Policies(inactive_topics=InactiveTopicPolicy(enabled=True, inactive_ms_max=10**9)),
    ],
    ids=["ttl", "inactive"],
)
async def test_a_topic_that_a_policy_acts_on_does_not_rest(
    house: BrokerHouse, broker: Broker, client: pulsar.Client, policies: Any
) -> None:
    await broker.namespaces.change("public", "default", lambda _: policies)
    await in_thread(lambda: publish(client))
    topic = broker.registry.find(NAME)
    assert topic is not None
    await let_pass(house, broker, IDLE_S)
    assert broker.registry.find(NAME) is topic


async def test_resting_can_be_turned_off(house: BrokerHouse) -> None:
    house.clock = AdvancedClock()
    broker = await house.start(topic_idle_ms_max=0)
    await broker.registry.open(NAME, create=True)
    await let_pass(house, broker, 1e9)
    assert broker.registry.find(NAME) is not None


async def test_a_topic_that_was_unloaded_is_freed_without_the_collector(
    house: BrokerHouse, client: pulsar.Client, broker: Broker
) -> None:
    """Which does not look at what is old: 59 objects a topic would stay for good."""
    consumer = await in_thread(lambda: client.subscribe(str(NAME), "sub"))
    await in_thread(lambda: publish(client, b"0"))
    assert await in_thread(lambda: receive(consumer)) == b"0"
    await in_thread(consumer.close)
    topic, subscription = broker.registry.find(NAME), await _subscription(broker)
    assert topic is not None
    left = [weakref.ref(one) for one in (topic, topic.log, topic.log.segment_list, subscription)]
    del topic, subscription
    gc.disable()
    try:
        await broker.registry.unload(NAME)
        async with asyncio.timeout(60):
            while any(one() is not None for one in left):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        gc.enable()


async def _subscription(broker: Broker) -> Any:
    topic = await broker.registry.open_persistent(NAME)
    return topic.subscriptions.get("sub")


async def test_many_topics_are_let_go_of_in_several_turns(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody finds them any more from the first moment on; a session that ends may concern a hundred thousand."""
    monkeypatch.setattr(local_bundles, "CLOSED_A_TURN", 4)
    names = [TopicName.parse(f"topic-{number}") for number in range(10)]
    topics_before = [await broker.registry.open(name, create=True) for name in names]
    (bundle,) = {await broker.registry.ownership.bundle_of(name) for name in names}
    broker.bundles.drop([bundle])
    assert not any(map(broker.registry.find, names))
    dropped = []
    for _ in range(3):
        dropped.append(sum(topic.is_closed for topic in topics_before))
        await asyncio.sleep(0)
    assert dropped == [4, 8, 10]
    again = await broker.registry.open(names[-1])
    assert again is not topics_before[-1] and not again.is_closed
