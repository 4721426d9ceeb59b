"""A bundle is split under its clients: nobody notices, nothing is forgotten, and the halves go where they may."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext
from typing import Any
from unittest import mock

import pulsar
import pytest

from quire.ledger.state_log import StateLog
from quire.metadata import paths
from quire.metadata.records import StateLogRecord, decode
from quire.runtime.errors import InUse, NotFound, OutcomeUnknown, Unavailable
from quire.serving.names import TopicName
from quire.serving.registry.bundles import bundle_of, hash_of
from tests.machine_speed import times_slower
from tests.serving.ownership.cluster import Brokers, Member, until

WHOLE = "public/default/00000000_ffffffff"
NAMESPACE = paths.namespace("public", "default")
TOPICS = [f"persistent://public/default/topic-{index}" for index in range(8)]


@pytest.fixture
async def brokers() -> AsyncIterator[Brokers]:
    made = Brokers()
    yield made
    await made.close()


async def start(brokers: Brokers) -> Member:
    return await brokers.start(namespace_bundles=1, deduplication=True)


class Traffic:
    """A producer and a consumer for each topic, which send and acknowledge without a pause."""

    def __init__(self, client: pulsar.Client) -> None:
        self.connect(client)
        self.sent = dict.fromkeys(TOPICS, 0)
        self.slowest_s = 0.0
        self.again = 0
        """Messages that came once more: the client keeps acknowledgements back for a tenth of a second."""

    def connect(self, client: pulsar.Client) -> None:
        self.producers = {
            topic: client.create_producer(topic, producer_name=f"of-{topic[-1]}") for topic in TOPICS
        }
        self.consumers = {
            topic: client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
            for topic in TOPICS
        }

    def turn(self) -> None:
        for topic in TOPICS:
            began = time.monotonic()
            self.producers[topic].send(b"%d" % self.sent[topic], sequence_id=self.sent[topic])
            while True:
                message = self.consumers[topic].receive(10_000)
                self.consumers[topic].acknowledge(message)
                if int(message.data()) == self.sent[topic]:
                    break
                assert int(message.data()) < self.sent[topic], "none is left out"
                self.again += 1
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)
            self.sent[topic] += 1

    def turns(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.turn()


async def split_under_traffic(brokers: Brokers, one: Member) -> tuple[Traffic, list[str]]:
    traffic = await asyncio.to_thread(Traffic, brokers.client())
    going = asyncio.create_task(asyncio.to_thread(traffic.turns, 1.0))
    await until(lambda: min(traffic.sent.values()) > 0)
    parts = list(await one.broker.bundles.split(WHOLE))
    await going
    assert traffic.again == 0
    return traffic, parts


async def test_clients_notice_nothing_and_each_half_knows_its_own_after_a_move(brokers: Brokers) -> None:
    one = await start(brokers)
    traffic, parts = await split_under_traffic(brokers, one)
    assert [row.bundle for row in one.ownership.bundles()] == sorted(parts)
    assert [row.topics for row in one.ownership.bundles()] == [4, 4], "half of what is loaded"
    assert traffic.slowest_s < times_slower()
    two = await start(brokers)
    await one.ownership.release(parts[1], "to see what went with it")
    await until(lambda: two.ownership.holds(parts[1]))
    await asyncio.to_thread(traffic.turn)
    assert len(two.topics()) == len(one.topics()) == 4
    loaded = two.broker.registry.find(TopicName.parse(two.topics()[0]))
    assert loaded is not None and loaded.log.dedup is not None
    name, sent = loaded.name, traffic.sent[loaded.name]
    assert loaded.log.dedup.last_sequence_id(f"of-{name[-1]}") == sent - 1, "it knows what was sent before"


async def all_acknowledged(*members: Member) -> None:
    async with asyncio.timeout(10):
        for topic in (topic for member in members for topic in member.broker.registry.persistent()):
            subscription = topic.subscriptions.get("s")
            assert subscription is not None
            while await subscription.stats.backlog():  # noqa: ASYNC110  a stock client's threads acknowledge
                await asyncio.sleep(0.005)
            await subscription._store.save(subscription.cursor)


async def test_what_was_acknowledged_is_known_to_both_after_a_crash(brokers: Brokers) -> None:
    one = await start(brokers)
    traffic, _ = await split_under_traffic(brokers, one)
    await all_acknowledged(one)
    await brokers.kill(one)
    await start(brokers)
    await asyncio.to_thread(traffic.connect, brokers.client())
    await asyncio.to_thread(traffic.turn)
    assert traffic.again == 0


async def test_the_log_of_the_whole_is_marked_and_nobody_opens_it(brokers: Brokers) -> None:
    one = await start(brokers)
    _, parts = await split_under_traffic(brokers, one)
    path = paths.state_log("public", "default", "00000000_ffffffff")
    record = decode(StateLogRecord, (await one.store.get(path)).value, path)
    assert record.split_into == tuple(paths.state_log(*part.split("/")) for part in parts)
    two = await start(brokers)
    namespace = await two.broker.namespaces.get("public", "default")
    with pytest.raises(Unavailable, match="was split"):
        await two.broker.registry.bundles._opened(WHOLE, namespace)
    with pytest.raises(NotFound):
        await one.broker.bundles.split(WHOLE)


@pytest.mark.parametrize(
    ("is_done", "attempts", "bundles"),
    [(False, 1, 1), (True, 1, 2), (True, 2, 2)],
    ids=["not done", "done, and never told", "done, and told late"],
)
async def test_whatever_the_metadata_store_answers_nothing_is_lost(
    brokers: Brokers, is_done: bool, attempts: int, bundles: int
) -> None:
    one = await start(brokers)
    traffic = await asyncio.to_thread(Traffic, brokers.client())
    await asyncio.to_thread(traffic.turn)
    transact = one.store.transact

    async def unanswered(steps: Any) -> None:
        if not any(step.path == NAMESPACE for step in steps):
            await transact(steps)
            return
        one.store.transact = transact  # type: ignore[method-assign]
        if is_done:
            await transact(steps)
        raise OutcomeUnknown("the connection broke")

    one.store.transact = unanswered  # type: ignore[method-assign]
    namespace = await one.broker.namespaces.get("public", "default")
    (await one.broker.registry.bundles._opened(WHOLE, namespace)).log._node.attempts_max = attempts
    with pytest.raises(OutcomeUnknown) if attempts == 1 else nullcontext():
        await one.broker.bundles.split(WHOLE)
    await asyncio.to_thread(traffic.turns, 0.5)
    assert len((await one.broker.namespaces.get("public", "default")).boundaries) == bundles + 1
    await brokers.kill(one)
    two = await start(brokers)
    await asyncio.to_thread(traffic.connect, brokers.client())
    await asyncio.to_thread(traffic.turn)
    assert len(two.ownership.bundles()) == bundles


def fail_whole(one: Member, whole: StateLog, part: StateLog) -> None:
    whole.fail(Unavailable("too few bookies are left"))


def fail_part(one: Member, whole: StateLog, part: StateLog) -> None:
    part.fail(Unavailable("too few bookies are left"))


def lose_session(one: Member, whole: StateLog, part: StateLog) -> None:
    one.ownership._session_lost()


def drop_when_divided(one: Member, whole: StateLog, part: StateLog) -> None:
    """So late that no log has heard of it when the bundle is to go on as another one."""
    assert whole._rolling is not None
    whole._rolling.add_done_callback(lambda _: one.broker.bundles.drop([WHOLE]))


@pytest.mark.parametrize("harm", [fail_whole, fail_part, lose_session, drop_when_divided])
async def test_a_bundle_that_ends_while_it_is_split_is_loaded_again_as_two(
    brokers: Brokers, harm: Callable[[Member, StateLog, StateLog], None]
) -> None:
    one = await start(brokers)
    traffic = await asyncio.to_thread(Traffic, brokers.client())
    await asyncio.to_thread(traffic.turn)
    transact, registry, logs = one.store.transact, one.broker.registry, []

    async def harmed(steps: Any) -> None:
        await transact(steps)
        if any(step.path == NAMESPACE for step in steps):
            bundles = {id(topic.log.dedup_log): topic.log.dedup_log for topic in registry.persistent()}
            whole, part = sorted((bundle for bundle in bundles.values()), key=lambda each: each.name)
            logs.extend((whole.log, part.log))
            harm(one, *logs)

    one.store.transact = harmed  # type: ignore[method-assign]
    with pytest.raises((Unavailable, OutcomeUnknown)):
        await one.broker.bundles.split(WHOLE)
    await asyncio.to_thread(traffic.turns, 0.5)
    assert len((await one.broker.namespaces.get("public", "default")).boundaries) == 3
    assert all(log.error is not None for log in logs), "neither is written to"
    assert {topic.log.dedup_log.log.error for topic in registry.persistent()} == {None}


async def test_of_two_splits_at_once_one_is_refused_and_loads_wait_for_the_other(brokers: Brokers) -> None:
    one = await start(brokers)
    await asyncio.to_thread(Traffic, brokers.client())
    registry = one.broker.registry
    names = [TopicName.parse(f"persistent://public/default/later-{index}") for index in range(8)]
    done, refused, *_ = await asyncio.gather(
        one.broker.bundles.split(WHOLE),
        one.broker.bundles.split(WHOLE),
        *(registry.open(name, create=True) for name in names),
        return_exceptions=True,
    )
    assert isinstance(done, tuple)
    assert isinstance(refused, InUse)
    namespace = await one.broker.namespaces.get("public", "default")
    for name in names:
        assert name in registry.in_bundle(bundle_of(namespace, name))


async def test_who_has_not_heard_of_it_is_led_to_the_owner(brokers: Brokers) -> None:
    one, two = await start(brokers), await start(brokers)
    stale = await two.broker.namespaces.get("public", "default")
    traffic, parts = await split_under_traffic(brokers, one)
    assert (await two.ownership.owner_of(WHOLE)).broker_id == one.name, "for a while"
    assert stale.boundaries == ("00000000", "ffffffff")
    assert (await two.ownership.owner_of(parts[0])).broker_id == one.name
    assert traffic.slowest_s < times_slower()


async def test_brokers_of_another_version_keep_bundles_whole(brokers: Brokers) -> None:
    one = await start(brokers)
    other = mock.patch.object(one.ownership.reports, "of_other_versions", lambda: ["old:6650"])
    with other, pytest.raises(InUse, match="old:6650"):
        await one.broker.bundles.split(WHOLE)
    assert one.ownership.holds(WHOLE)


async def test_five_thousand_topics_pause_for_a_second_or_two(brokers: Brokers) -> None:
    """Most of them have a subscription and no client; the pause is that of those that have clients."""
    one = await start(brokers)
    names = [TopicName.parse(f"persistent://public/default/many-{index}") for index in range(5_000)]
    for begin in range(0, len(names), 500):
        opened = await asyncio.gather(
            *(one.broker.registry.open(name, create=True) for name in names[begin : begin + 500])
        )
        await asyncio.gather(*(topic.subscriptions.create("s", earliest=True) for topic in opened))
    traffic, parts = await split_under_traffic(brokers, one)
    print(f"slowest publish, receive and acknowledge: {traffic.slowest_s:.3f} s")
    assert traffic.slowest_s < 2 * times_slower(), "other tests share the machine"
    split = one.broker.registry
    assert abs(len(split.in_bundle(parts[0])) - len(split.in_bundle(parts[1]))) <= 1
    at = parts[1].rpartition("/")[2].partition("_")[0]
    assert all(hash_of(str(name)) >= at for name in split.in_bundle(parts[1]))
