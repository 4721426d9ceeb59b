"""A partitioned topic is one thing: it grows with its subscriptions, and goes with all its partitions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pulsar
import pytest

from quire.metadata.store import Node
from quire.runtime.errors import AlreadyExists, ConfigurationError, InUse, NotFound, QuireError, Unavailable
from quire.serving.broker import Broker
from quire.serving.model.ports import LATEST
from quire.serving.names import TopicName
from quire.serving.operations.fan_out import PartitionAnswers, TopicRequest
from quire.serving.operations.partitioned import GROWN_MS
from quire.serving.registry.catalogue import NoPartition
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from tests.serving.conftest import AdvancedClock, BrokerHouse, in_thread
from tests.serving.ownership.cluster import Brokers
from tests.serving.session.test_connection import Client, entry, kinds, producer

TOPIC = "persistent://public/default/parts"
NAME = TopicName.parse(TOPIC)
QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


def subscribe(
    request_id: int, partition: int, *, consumer_id: int = 1, name: str = "late", **more: Any
) -> bytes:
    """As stock clients do unless they are told otherwise: from the latest message on."""
    return commands.subscribe(
        pb.CommandSubscribe(
            topic=f"{TOPIC}-partition-{partition}",
            subscription=name,
            subType=pb.CommandSubscribe.Shared,
            consumer_id=consumer_id,
            request_id=request_id,
            initialPosition=pb.CommandSubscribe.Latest,
            force_topic_creation=True,
            **more,
        )
    )


async def publish(broker: Broker, partitions: Iterable[int], count: int = 1) -> None:
    client = Client(broker)
    await client.connect()
    for partition in partitions:
        client.send(producer(partition, partition, f"{TOPIC}-partition-{partition}"))
        assert kinds(await client.answers(1)) == ["PRODUCER_SUCCESS"]
        for number in range(count):
            client.send(b"".join(commands.send(partition, number, 1, entry())))
        await client.answers(count)
    client.connection.connection_lost(None)


async def backlogs(broker: Broker, subscription: str) -> list[int | None]:
    """Of each partition that was used; None where there is no such subscription."""
    shown = (await broker.admin.statistics.stats(NAME)).partitions
    found = (one.subscriptions.get(subscription) for _, one in sorted(shown.items()))
    return [None if one is None else one.msg_backlog for one in found]


def before_prepared(broker: Broker, act: Callable[[], Awaitable[object]]) -> None:
    """Do `act` once, in the moment when a growth has seen which subscriptions there are."""
    each, waiting = broker.fan_out.ask_partitions, [act]

    async def seen(
        names: Iterable[TopicName], request: TopicRequest[Any], refusals: Any = ()
    ) -> PartitionAnswers[Any]:
        found = await each(names, request, refusals)
        if waiting and request.path == "/stats":
            await waiting.pop()()
        return found

    broker.fan_out.ask_partitions = seen  # type: ignore[assignment]


# -- growing -----------------------------------------------------------------------------------------------


async def test_what_a_new_partition_is_sent_waits_for_the_subscriptions_of_the_old(
    house: BrokerHouse,
) -> None:
    """A stock consumer asks for new partitions once a minute, and then for the latest message."""
    broker = await house.start()
    await broker.registry.create(NAME, 1)

    def open_both() -> tuple[pulsar.Client, pulsar.Consumer]:
        client = pulsar.Client(broker.service_url, logger=QUIET)
        return client, client.subscribe(TOPIC, "billing", pulsar.ConsumerType.Shared)

    client, consumer = await in_thread(open_both)
    await broker.partitioned.grow(NAME, 2)

    def go_on() -> set[int]:
        routing = pulsar.PartitionsRoutingMode.RoundRobinDistribution
        sender = client.create_producer(TOPIC, message_routing_mode=routing, batching_enabled=False)
        for number in range(20):
            sender.send(b"%d" % number)
        consumer.close()
        again = client.subscribe(TOPIC, "billing", pulsar.ConsumerType.Shared)
        found = {int(again.receive(10_000).data()) for _ in range(20)}
        client.close()
        return found

    assert await in_thread(go_on) == set(range(20))


async def test_growth_that_was_interrupted_shows_nothing_and_is_taken_up_again(
    house: BrokerHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await house.start()
    await broker.registry.create(NAME, 1)
    for name in ("a", "b"):
        await broker.admin.subscriptions.create(NAME, name, LATEST)
    make, made = broker.partitioned._make_everywhere, []

    async def dies(names: Iterable[TopicName], subscription: str, *more: Any) -> int:
        if made:
            raise Unavailable("the broker was killed")
        made.append(subscription)
        return await make(names, subscription, *more)

    monkeypatch.setattr(broker.partitioned, "_make_everywhere", dies)
    with pytest.raises(Unavailable):
        await broker.partitioned.grow(NAME, 3)
    assert await broker.fan_out.partitions(NAME) == 1
    assert await broker.fan_out.topics("public", "default", "persistent") == [f"{TOPIC}-partition-0"]
    assert await broker.sessions.topics.names("public", "default", "persistent") == [f"{TOPIC}-partition-0"]
    await house.kill(broker)
    broker = await house.start()
    with pytest.raises(ConfigurationError, match="is growing to 3"):
        await broker.partitioned.grow(NAME, 2)
    await broker.partitioned.grow(NAME, 4)
    assert await broker.fan_out.partitions(NAME) == 4
    await publish(broker, range(1, 4))
    assert await backlogs(broker, "a") == await backlogs(broker, "b") == [0, 1, 1, 1]
    await broker.partitioned.grow(NAME, 4)
    with pytest.raises(ConfigurationError, match="can only be increased"):
        await broker.partitioned.grow(NAME, 3)


async def test_a_subscription_made_while_the_topic_grows_is_made_on_the_new_partitions(
    house: BrokerHouse,
) -> None:
    broker = await house.start()
    await broker.registry.create(NAME, 1)
    client = Client(broker)
    await client.connect()

    async def subscribes() -> None:
        client.send(subscribe(1, 0))
        assert kinds(await client.answers(1)) == ["SUCCESS"]
        await broker.admin.subscriptions.create(NAME, "by-rest", LATEST)

    before_prepared(broker, subscribes)
    await broker.partitioned.grow(NAME, 3)
    await publish(broker, range(3))
    assert await backlogs(broker, "late") == [1, 1, 1]
    assert await backlogs(broker, "by-rest") == [1, 1, 1]


async def test_who_asked_before_the_growth_and_subscribes_behind_it_misses_nothing(
    house: BrokerHouse,
) -> None:
    house.clock = clock = AdvancedClock()
    broker = await house.start()
    await broker.registry.create(NAME, 2)
    await broker.partitioned.grow(NAME, 3)
    client = Client(broker)
    await client.connect()
    client.send(subscribe(1, 0))
    assert kinds(await client.answers(1)) == ["SUCCESS"]
    await publish(broker, (1, 2))
    assert await backlogs(broker, "late") == [0, None, 1], "it knows of partition 1 itself"
    clock.ahead_s = GROWN_MS / 1000 + 1
    client.send(subscribe(2, 0, consumer_id=2, name="later"))
    assert kinds(await client.answers(1)) == ["SUCCESS"]
    assert await backlogs(broker, "later") == [0, None, None], (
        "who subscribes now has asked behind the growth"
    )


async def test_a_subscription_that_cannot_be_made_on_new_partitions_is_not_made(
    house: BrokerHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await house.start()
    await broker.registry.create(NAME, 1)
    await broker.partitioned.grow(NAME, 2)

    async def fails(*_: object) -> int:
        raise QuireError("no")

    monkeypatch.setattr(broker.partitioned, "_make_everywhere", fails)
    client = Client(broker)
    await client.connect()
    client.send(subscribe(1, 0))
    assert kinds(await client.answers(1)) == ["ERROR"]
    assert await broker.admin.subscriptions.names(NAME) == []


async def test_a_subscription_that_others_were_told_of_stays_though_one_that_asked_for_it_is_refused(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both find that it is not there. What is published once one has it is kept though the other's check fails."""
    await broker.registry.create(NAME, 1)
    checked, both_check, refused = broker.partitioned.extend_subscription, asyncio.Event(), asyncio.Event()
    asked = 0

    async def fails_late(*args: Any, **kwargs: Any) -> None:
        nonlocal asked
        asked += 1
        if asked == 4:
            both_check.set()
            await refused.wait()
            raise QuireError("no")
        if asked == 3:
            await both_check.wait()
        await checked(*args, **kwargs)

    monkeypatch.setattr(broker.partitioned, "extend_subscription", fails_late)
    client = Client(broker)
    await client.connect()
    client.send(subscribe(1, 0), subscribe(2, 0, consumer_id=2))
    assert kinds(await client.answers(1)) == ["SUCCESS"]
    await publish(broker, [0], 3)
    refused.set()
    assert kinds(await client.answers(1)) == ["ERROR"]
    assert await backlogs(broker, "late") == [3]
    client.send(subscribe(3, 0, consumer_id=2))
    assert kinds(await client.answers(1)) == ["SUCCESS"]
    client.connection.connection_lost(None)


async def test_what_a_growth_made_is_not_taken_back_for_one_who_subscribes_later(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.registry.create(NAME, 1)
    client = Client(broker)
    await client.connect()
    client.send(subscribe(1, 0))
    assert kinds(await client.answers(1)) == ["SUCCESS"]
    await broker.partitioned.grow(NAME, 2)
    await publish(broker, [1], 3)

    async def fails(*_: Any, **__: Any) -> None:
        raise QuireError("no")

    monkeypatch.setattr(broker.partitioned, "extend_subscription", fails)
    client.send(subscribe(2, 1, consumer_id=2))
    await client.answers(1)
    assert await backlogs(broker, "late") == [0, 3]
    client.connection.connection_lost(None)


async def test_a_subscription_is_made_on_new_partitions_though_its_topic_goes_meanwhile(
    house: BrokerHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client is let in by whoever serves the topic next, and must not find it made here alone."""
    broker = await house.start()
    await broker.registry.create(NAME, 1)
    await broker.partitioned.grow(NAME, 2)
    make, failures = broker.partitioned._make_everywhere, [Unavailable("not now")]

    async def fails_once(*asked: Any) -> int:
        if failures:
            await broker.registry.unload(NAME.of_partition(0))
            raise failures.pop()
        return await make(*asked)

    monkeypatch.setattr(broker.partitioned, "_make_everywhere", fails_once)
    client = Client(broker)
    await client.connect()
    client.send(subscribe(1, 0))
    assert kinds(await client.answers(1)) == ["SUCCESS"]
    assert await backlogs(broker, "late") == [0, 0]


async def test_partitions_of_several_brokers_grow_with_their_subscriptions() -> None:
    brokers = Brokers()
    try:
        one, two = await brokers.start(), await brokers.start()
        await one.broker.registry.create(NAME, 2)
        client = await in_thread(brokers.client)
        await in_thread(lambda: client.subscribe(TOPIC, "billing", pulsar.ConsumerType.Shared).close())
        await two.broker.partitioned.grow(NAME, 12)

        def send() -> None:
            for index in range(12):
                sender = client.create_producer(f"{TOPIC}-partition-{index}")
                sender.send(b"x")
                sender.close()

        await in_thread(send)
        assert one.topics() and two.topics()
        for member in (one, two):
            assert await backlogs(member.broker, "billing") == [1] * 12
            assert await member.broker.admin.subscriptions.names(NAME) == ["billing"]
        await one.broker.admin.subscriptions.create(NAME, "audit", LATEST)
        with pytest.raises(AlreadyExists):
            await two.broker.admin.subscriptions.create(NAME, "audit", LATEST)
        await two.broker.admin.subscriptions.reset_cursor(NAME, "audit", 0)
        assert await backlogs(one.broker, "audit") == [1] * 12
        await one.broker.admin.subscriptions.skip(NAME, "audit", None)
        assert await backlogs(two.broker, "audit") == [0] * 12
        await one.broker.admin.subscriptions.delete(NAME, "audit")
        with pytest.raises(NotFound):
            await two.broker.admin.subscriptions.delete(NAME, "audit")
        assert len(await one.broker.admin.topics.terminate_partitions(NAME)) == 12
        assert (await two.broker.admin.topics.compaction_status(NAME)).status == "NOT_RUN"
        assert len((await two.broker.admin.statistics.partitioned_internal(NAME)).partitions) == 12
        with_consumer = await in_thread(lambda: client.subscribe(TOPIC, "billing"))
        for member in (one, two):
            with pytest.raises(InUse):
                await member.broker.deletion.delete_partitioned(NAME)
        assert await one.broker.fan_out.partitions(NAME) == 12, "a refused deletion leaves no mark"
        await in_thread(with_consumer.close)
        await one.broker.admin.subscriptions.clear_backlog("public", "default", "billing")
        assert await backlogs(two.broker, "billing") == [0] * 12
        await two.broker.admin.topics.unload(NAME)
        assert not one.topics() and not two.topics()
        await two.broker.admin.statistics.stats(NAME)
        await one.broker.bundles.unload_namespace("public", "default")
        await two.broker.deletion.delete_partitioned(NAME)
        assert await one.broker.registry.records.names("public", "default") == []
    finally:
        await brokers.close()


# -- names -------------------------------------------------------------------------------------------------


async def test_a_partition_of_no_topic_is_made_by_nobody(house: BrokerHouse) -> None:
    broker = await house.start()
    partition = f"{TOPIC}-partition-1"
    client = Client(broker)
    await client.connect()
    client.send(producer(1, 1, partition), commands.ask_lookup(2, partition))
    answers = {answer.kind: answer.body for answer in await client.answers(2)}
    assert answers[pb.BaseCommand.ERROR].error == pb.TopicNotFound  # type: ignore[attr-defined]
    found = answers[pb.BaseCommand.LOOKUP_RESPONSE]
    assert found.response == pb.CommandLookupTopicResponse.Connect  # type: ignore[attr-defined]
    with pytest.raises(NoPartition):
        await broker.registry.create(TopicName.parse(partition))
    await broker.registry.create(NAME, 1)
    with pytest.raises(NoPartition, match="has 1 partitions"):
        await broker.registry.create(TopicName.parse(partition))
    with pytest.raises(NoPartition):
        await broker.registry.create(TopicName.parse(f"{TOPIC}-partition-0"), 3)
    await broker.registry.create(TopicName.parse(f"{TOPIC}-partition-0"))
    assert await broker.registry.records.names("public", "default") == [NAME, NAME.of_partition(0)]


async def test_a_topic_that_has_such_a_name_from_former_times_opens_and_keeps_its_name(
    house: BrokerHouse,
) -> None:
    broker = await house.start()
    await broker.registry.records.create(NAME.of_partition(1))
    await publish(broker, [1])
    with pytest.raises(AlreadyExists):
        await broker.registry.create(NAME, 2)
    await broker.registry.create(NAME, 1)
    with pytest.raises(AlreadyExists):
        await broker.partitioned.grow(NAME, 2)
    await broker.admin.topics.delete(TopicName.parse(f"{TOPIC}-partition-1"))
    await broker.partitioned.grow(NAME, 2)


class Growing:
    """A topic that grows while clients subscribe from the latest message on, publish, and die in between."""

    def __init__(self, broker: Broker, seed: int) -> None:
        self.broker = broker
        self.dice = random.Random(seed)
        self.published: dict[int, int] = {}
        """By partition, messages that were acknowledged."""
        self.before: dict[str, dict[int, int]] = {}
        """By subscription, what was when it had been answered everywhere."""
        read = broker.services.store.get

        async def get(path: str) -> Node:
            try:
                return await read(path)
            finally:
                await self.some_turns()

        broker.services.store.get = get  # type: ignore[method-assign]

    async def some_turns(self) -> None:
        for _ in range(self.dice.randrange(12)):
            await asyncio.sleep(0)

    async def subscribe(self, name: str) -> None:
        client = Client(self.broker)
        await client.connect()
        count = await self.broker.sessions.topics.partitions(TOPIC, create=False)
        await self.some_turns()
        for partition in range(count):
            client.send(subscribe(partition, partition, consumer_id=partition, name=name))
        answers = kinds(await client.answers(count))
        if answers == ["SUCCESS"] * count:
            self.before[name] = dict(self.published)

    async def publish(self) -> None:
        for _ in range(10):
            partition = self.dice.randrange(await self.broker.sessions.topics.partitions(TOPIC, create=False))
            await publish(self.broker, [partition])
            self.published[partition] = self.published.get(partition, 0) + 1

    async def grow(self) -> None:
        count = 1
        while count < 6:
            count += self.dice.randrange(1, 3)
            growing = asyncio.ensure_future(self.broker.partitioned.grow(NAME, count))
            if self.dice.random() < 0.3:
                await self.some_turns()
                growing.cancel()
                await asyncio.wait([growing])
            else:
                await growing
            await self.some_turns()
        count = (await self.broker.fan_out.record(NAME)).extent
        await self.broker.partitioned.grow(NAME, count)

    async def check(self) -> None:
        shown = (await self.broker.admin.statistics.stats(NAME)).partitions
        for name, before in self.before.items():
            for partition, sent in self.published.items():
                stats = shown[f"{TOPIC}-partition-{partition}"].subscriptions.get(name)
                waits = -1 if stats is None else stats.msg_backlog
                assert waits >= sent - before.get(partition, 0), (name, partition)


@pytest.mark.parametrize("seed", range(12))
async def test_whoever_subscribes_while_a_topic_grows_gets_what_is_published_from_then_on(
    house: BrokerHouse, seed: int
) -> None:
    broker = await house.start()
    await broker.registry.create(NAME, 1)
    world = Growing(broker, seed)
    subscribers = [world.subscribe(f"s{number}") for number in range(6)]
    await asyncio.gather(world.grow(), *subscribers, world.publish(), world.publish())
    await world.publish()
    await world.check()
    assert world.before
