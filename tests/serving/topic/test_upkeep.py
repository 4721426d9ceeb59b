"""What policies do to a topic by themselves: time to live, quotas, what nobody uses; with a stock client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from unittest import mock

import pulsar
import pytest
from msgspec.structs import replace

from quire.metadata.records import BacklogQuota, InactiveTopicPolicy, Policies, RetentionPolicy
from quire.runtime.errors import NotFound
from quire.serving.broker import Broker
from quire.serving.model.ports import EARLIEST, LATEST, Position, SegmentView
from quire.serving.names import TopicName
from quire.serving.registry import topic_deletion
from quire.serving.registry.topic_loader import subscriptions_of
from quire.serving.topic.lifecycle import quota, upkeep
from quire.serving.topic.lifecycle.upkeep import is_active
from quire.serving.topic.topic import Topic
from tests.serving.conftest import AdvancedClock, BrokerHouse, in_thread, look_after_topics

NAME = TopicName.parse("kept")
QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


class House:
    """A broker whose clock a test moves, with a topic `kept` and a client."""

    def __init__(self, broker: Broker, clock: AdvancedClock) -> None:
        self.broker = broker
        self.clock = clock
        self.client = pulsar.Client(broker.service_url, logger=QUIET, operation_timeout_seconds=5)
        self.topic: Topic

    async def publish(self, count: int, size: int = 10) -> None:
        def work() -> None:
            producer = self.client.create_producer(str(NAME))
            for _ in range(count):
                producer.send(bytes(size))
            producer.close()

        await in_thread(work)

    async def prescribe(self, **policies: Any) -> None:
        await self.broker.admin.policies.change_topic(NAME, lambda old: replace(old, **policies))
        await self.broker.admin.policies.refresh("public", "default", None)

    async def backlog(self, name: str) -> int:
        found = subscriptions_of(self.topic).get(name)
        assert found is not None
        return await found.stats.backlog()

    async def subscribe(self, *names: str) -> None:
        for name in names:
            await self.broker.admin.subscriptions.create(NAME, name, EARLIEST)


@pytest.fixture
async def kept(house: BrokerHouse) -> AsyncIterator[House]:
    house.clock = clock = AdvancedClock()
    broker = await house.start()
    await broker.registry.create(NAME)
    made = House(broker, clock)
    made.topic = await broker.registry.open(NAME)
    yield made
    await in_thread(made.client.close)


async def test_what_is_older_than_its_time_to_live_is_acknowledged_in_every_subscription(kept: House) -> None:
    await kept.prescribe(message_ttl_ms=60_000)
    await kept.subscribe("a", "b")
    await kept.publish(5)
    kept.clock.ahead_s = 40
    await kept.publish(3)
    await upkeep.look(kept.topic)
    assert [await kept.backlog(name) for name in "ab"] == [8, 8]
    kept.clock.ahead_s = 70
    await upkeep.look(kept.topic)
    assert [await kept.backlog(name) for name in "ab"] == [3, 3]
    kept.topic.log.writing.roll()
    kept.clock.ahead_s = 200
    await upkeep.look(kept.topic)
    assert [await kept.backlog(name) for name in "ab"] == [0, 0]
    before = [one.mark_delete for one in kept.topic.subscriptions]
    await upkeep.look(kept.topic)
    assert [one.mark_delete for one in kept.topic.subscriptions] == before


async def test_expiry_goes_over_segments_and_by_hand_for_one_subscription(kept: House) -> None:
    await kept.subscribe("a", "b")
    for ahead_s in (0, 100, 200):
        kept.clock.ahead_s = ahead_s
        await kept.publish(2)
        rolling = kept.topic.log.writing.roll()
        assert rolling is not None
        await rolling
    await kept.broker.admin.subscriptions.expire(NAME, "a", 50_000)
    assert [await kept.backlog(name) for name in "ab"] == [2, 6]
    await kept.broker.admin.subscriptions.expire(NAME, None, 150_000)
    assert [await kept.backlog(name) for name in "ab"] == [2, 4]
    with pytest.raises(NotFound):
        await kept.broker.admin.subscriptions.expire(NAME, "nobody", 0)


async def test_a_consumer_goes_on_behind_what_expired_under_its_hands(kept: House) -> None:
    await kept.subscribe("a")
    await kept.publish(5)

    def first() -> tuple[pulsar.Consumer, Any]:
        consumer = kept.client.subscribe(str(NAME), "a", pulsar.ConsumerType.Shared, receiver_queue_size=1)
        return consumer, consumer.receive(5000)

    consumer, message = await in_thread(first)
    kept.clock.ahead_s = 100
    await upkeep.expire(kept.topic, 50_000)
    await kept.publish(1, size=7)

    def last() -> int:
        consumer.acknowledge(message)
        while True:
            got = consumer.receive(5000)
            consumer.acknowledge(got)
            if len(got.data()) == 7:
                return len(got.data())

    assert await in_thread(last) == 7
    await in_thread(consumer.close)
    assert await kept.backlog("a") == 0


@pytest.mark.parametrize(
    ("action", "error"),
    [
        ("producer_request_hold", pulsar.ProducerBlockedQuotaExceededError),
        ("producer_exception", pulsar.ProducerBlockedQuotaExceededException),
    ],
)
async def test_a_quota_holds_producers_off_until_subscriptions_caught_up(
    kept: House, action: str, error: type[Exception]
) -> None:
    await kept.prescribe(backlog_quota=BacklogQuota(limit_bytes=1000, action=action))
    await kept.subscribe("slow")
    producer = await in_thread(lambda: kept.client.create_producer(str(NAME)))
    await in_thread(lambda: producer.send(bytes(800)))
    await upkeep.look(kept.topic)
    await in_thread(lambda: producer.send(bytes(800)))
    await upkeep.look(kept.topic)
    assert not kept.topic.producers.all(), "those that are there are sent away"
    with pytest.raises(error):
        await in_thread(lambda: kept.client.create_producer(str(NAME)))
    assert (
        "backlog quota of 1000 bytes" in (await kept.broker.admin.statistics.explain(NAME)).producers_held_off
    )
    await kept.broker.admin.subscriptions.skip(NAME, "slow", None)
    await upkeep.look(kept.topic)
    assert (await kept.broker.admin.statistics.explain(NAME)).producers_held_off == ""
    await kept.publish(1)


async def test_an_age_quota_holds_producers_off_and_ends_with_the_policy(kept: House) -> None:
    await kept.prescribe(age_quota=BacklogQuota(limit_ms=60_000))
    await kept.subscribe("slow")
    await kept.publish(1)
    await upkeep.look(kept.topic)
    assert kept.topic.round_state.refusal is None
    kept.clock.ahead_s = 70
    await upkeep.look(kept.topic)
    assert (
        kept.topic.round_state.refusal is not None and kept.topic.round_state.refusal[0] is quota.BacklogHeld
    )
    await kept.prescribe(age_quota=None)
    await upkeep.look(kept.topic)
    await kept.publish(1)


async def test_eviction_by_size_and_by_age_lets_the_slow_skip_and_the_fast_be(kept: House) -> None:
    await kept.prescribe(backlog_quota=BacklogQuota(limit_bytes=2000, action="consumer_backlog_eviction"))
    await kept.subscribe("slow")
    await kept.publish(9, size=500)
    await kept.broker.admin.subscriptions.create(NAME, "fast", LATEST)
    await kept.publish(1, size=500)
    await upkeep.look(kept.topic)
    assert [await kept.backlog(name) for name in ("slow", "fast")] == [3, 1]
    assert kept.topic.round_state.refusal is None
    await kept.prescribe(
        backlog_quota=None, age_quota=BacklogQuota(limit_ms=60_000, action="consumer_backlog_eviction")
    )
    kept.clock.ahead_s = 70
    await upkeep.look(kept.topic)
    assert [await kept.backlog(name) for name in ("slow", "fast")] == [0, 0]


@pytest.mark.parametrize(
    ("mode", "outlives_subscription"),
    [("delete_when_no_subscriptions", True), ("delete_when_subscriptions_caught_up", False)],
)
async def test_a_topic_that_nobody_uses_is_deleted_when_the_policy_says_so(
    kept: House, mode: str, outlives_subscription: bool
) -> None:
    policy = InactiveTopicPolicy(enabled=True, mode=mode, inactive_ms_max=60_000)
    await kept.subscribe("s")
    await kept.publish(2)
    kept.clock.ahead_s = 1000
    assert not await upkeep.look(kept.topic), "off by default"
    await kept.prescribe(inactive_topics=policy)
    assert not await upkeep.look(kept.topic), "it has a backlog"
    await kept.broker.admin.subscriptions.skip(NAME, "s", None)
    kept.clock.ahead_s = 1059
    assert not await upkeep.look(kept.topic)
    kept.clock.ahead_s = 1061
    assert await upkeep.look(kept.topic) is not outlives_subscription
    await kept.broker.admin.subscriptions.delete(NAME, "s")
    kept.clock.ahead_s = 2000
    await look_after_topics(kept.broker)
    assert kept.broker.registry.find(NAME) is None
    assert await kept.broker.registry.records.find(NAME) is None


async def test_a_topic_with_limits_of_its_own_is_not_deleted_because_nobody_uses_it(kept: House) -> None:
    """An administrator of its tenant could have it deleted so, and create it again without them."""
    policy = InactiveTopicPolicy(enabled=True, mode="delete_when_no_subscriptions", inactive_ms_max=60_000)
    await kept.prescribe(inactive_topics=policy, producers_max=1)
    kept.clock.ahead_s = 61
    assert await upkeep.look(kept.topic)
    await look_after_topics(kept.broker)
    assert kept.broker.registry.find(NAME) is kept.topic
    await kept.prescribe(producers_max=None)
    await look_after_topics(kept.broker)
    assert kept.broker.registry.find(NAME) is None


async def test_a_producer_or_a_consumer_keeps_a_topic(kept: House) -> None:
    await kept.prescribe(inactive_topics=InactiveTopicPolicy(enabled=True, inactive_ms_max=1000))
    producer = await in_thread(lambda: kept.client.create_producer(str(NAME)))
    kept.clock.ahead_s = 100
    assert not await upkeep.look(kept.topic)
    await topic_deletion.delete(kept.broker.registry, NAME, unless=is_active)
    assert kept.broker.registry.find(NAME) is kept.topic, "who came in the last moment is not robbed"
    await in_thread(producer.close)
    assert not await upkeep.look(kept.topic)
    kept.clock.ahead_s = 102
    assert await upkeep.look(kept.topic)


async def test_a_topic_that_is_used_between_two_looks_stays(kept: House) -> None:
    """Its producers and consumers come and go, and none of them is there when the broker looks."""
    await kept.prescribe(inactive_topics=InactiveTopicPolicy(enabled=True, inactive_ms_max=20_000))

    async def read_one() -> None:
        def work() -> None:
            reader = kept.client.create_reader(str(NAME), pulsar.MessageId.earliest)
            reader.read_next(10_000)
            reader.close()

        await in_thread(work)

    for turn, use in enumerate([lambda: kept.publish(1), read_one] * 3, 1):
        await use()
        assert not is_active(kept.topic)
        kept.clock.ahead_s = 19 * turn
        assert not await upkeep.look(kept.topic)
    kept.clock.ahead_s += 21
    assert await upkeep.look(kept.topic)

    await kept.publish(1)  # between the look and the deletion that it asks for
    look = upkeep.look

    async def publish_after_look(topic: Topic) -> bool:
        found = await look(topic)
        await kept.publish(1)
        return found

    kept.clock.ahead_s += 21
    with mock.patch.object(upkeep, "look", publish_after_look):
        await look_after_topics(kept.broker)
    assert kept.broker.registry.find(NAME) is kept.topic


async def test_a_subscription_that_is_used_between_two_looks_stays(kept: House) -> None:
    await kept.subscribe("billing")
    await kept.publish(10)
    await kept.prescribe(subscription_expiration_ms=60_000)
    for turn in range(1, 4):
        await in_thread(lambda: kept.client.subscribe(str(NAME), "billing").close())
        kept.clock.ahead_s = 59 * turn
        await upkeep.look(kept.topic)
        assert await kept.backlog("billing") == 10
    kept.clock.ahead_s += 2
    await upkeep.look(kept.topic)
    assert len(kept.topic.subscriptions) == 0


async def test_a_subscription_that_nobody_uses_expires(kept: House) -> None:
    await kept.subscribe("used", "forgotten")
    await kept.prescribe(subscription_expiration_ms=60_000)
    consumer = await in_thread(lambda: kept.client.subscribe(str(NAME), "used"))
    await upkeep.look(kept.topic)
    kept.clock.ahead_s = 59
    await upkeep.look(kept.topic)
    assert len(kept.topic.subscriptions) == 2
    kept.clock.ahead_s = 61
    await upkeep.look(kept.topic)
    assert [one.name for one in subscriptions_of(kept.topic)] == ["used"]
    await in_thread(consumer.close)


@pytest.mark.parametrize(("level", "left"), [("namespace", 1), ("topic", 3)])
async def test_retention_by_size_counts_at_either_level_and_the_topic_s_own_first(
    kept: House, level: str, left: int
) -> None:
    small = RetentionPolicy(retention_ms=-1, retention_bytes=1000)

    def change(old: Policies) -> Policies:
        return replace(old, retention=small)

    await kept.broker.namespaces.change("public", "default", change)
    if level == "topic":
        await kept.prescribe(retention=RetentionPolicy(retention_ms=-1, retention_bytes=-1))
    await kept.broker.admin.policies.refresh("public", "default", None)
    for _ in range(3):
        await kept.publish(1, size=800)
        rolling = kept.topic.log.writing.roll()
        assert rolling is not None
        await rolling
    await upkeep.look(kept.topic)
    assert len(kept.topic.log.segment_list.sealed) == left


def test_backlog_in_bytes_by_share_of_entries() -> None:
    segments = [SegmentView(1, 9, 0, 10, 1000), SegmentView(3, -1, 10, 0, 0), SegmentView(4, 3, 10, 4, 800)]
    assert quota.backlog_bytes(segments, Position(-1, -1)) == 1800
    assert quota.backlog_bytes(segments, Position(1, 4)) == 500 + 800
    assert quota.backlog_bytes(segments, Position(2, 7)) == 800
    assert quota.backlog_bytes(segments, Position(4, 3)) == 0
    for limit in range(0, 1800, 50):
        first = quota.first_within(segments, limit)
        behind = Position(first.ledger_id, first.entry_id - 1)
        assert quota.backlog_bytes(segments, behind) <= limit
        if first.entry_id:
            assert quota.backlog_bytes(segments, Position(behind.ledger_id, behind.entry_id - 1)) > limit
    assert quota.first_within(segments, 1800) == (-1, -1)


async def test_a_quota_holds_from_the_moment_when_it_is_set(kept: House) -> None:
    await kept.subscribe("slow")
    producer = await in_thread(lambda: kept.client.create_producer(str(NAME)))
    await in_thread(lambda: producer.send(bytes(2000)))
    await kept.prescribe(backlog_quota=BacklogQuota(limit_bytes=1000, action="producer_exception"))
    assert not kept.topic.producers.all(), "those that are there are sent away"
    await in_thread(producer.close)


async def test_a_quota_is_looked_at_for_whoever_comes_or_comes_again(kept: House) -> None:
    """Between two looks: a full topic lets nobody in, and one that was emptied does."""
    await kept.prescribe(backlog_quota=BacklogQuota(limit_bytes=1000, action="producer_exception"))
    await kept.subscribe("slow")
    producer = await in_thread(lambda: kept.client.create_producer(str(NAME)))
    await in_thread(lambda: producer.send(bytes(2000)))
    with pytest.raises(pulsar.ProducerBlockedQuotaExceededException):
        await in_thread(lambda: kept.client.create_producer(str(NAME)))
    await kept.broker.admin.subscriptions.skip(NAME, "slow", None)
    again = await in_thread(lambda: kept.client.create_producer(str(NAME)))
    await in_thread(again.close)
    await in_thread(producer.close)


async def test_a_topic_whose_archive_hangs_holds_up_nobody(
    house: BrokerHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one is rolled, tended and looked at each time, the one that hangs not once more."""
    broker = await house.start(segment_age_ms_max=1)
    names = [TopicName.parse(name) for name in ("hangs", "goes-on")]
    for name in names:
        await broker.registry.create(name)
        await broker.admin.policies.change_topic(name, lambda old: replace(old, message_ttl_ms=1))
    await broker.admin.policies.refresh("public", "default", None)
    hanging, other = [await broker.registry.open(name) for name in names]
    assert isinstance(hanging, Topic) and isinstance(other, Topic)
    looks = {hanging: 0, other: 0}
    comes_back = asyncio.Event()

    def look(topic: Topic) -> Callable[[int], Awaitable[Position]]:
        async def find_clock(_: int) -> Position:
            looks[topic] += 1
            if topic is hanging:
                await comes_back.wait()
            return EARLIEST

        return find_clock

    for topic in (hanging, other):
        monkeypatch.setattr(topic.log, "find_clock", look(topic))
    client = pulsar.Client(broker.service_url, logger=QUIET)
    try:
        for expected in range(1, 4):
            await in_thread(lambda: client.create_producer(str(names[1])).send(b"x"))
            active = other.log.segment_list.active
            await broker.rounds.roll_ledgers()
            await broker.rounds.enforce_policies()
            async with asyncio.timeout(60):
                while looks[other] < expected or other.log.segment_list.active is active:
                    await asyncio.sleep(0.01)
                    await broker.rounds.roll_ledgers()
        assert looks[hanging] == 1
        comes_back.set()
        async with asyncio.timeout(60):
            while looks[hanging] < 2:
                await asyncio.sleep(0.01)
                await broker.rounds.enforce_policies()
    finally:
        await in_thread(client.close)
