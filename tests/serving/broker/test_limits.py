"""What one topic, namespace and tenant may have: who is one too many is told so and counted, the others stay."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from quire.metadata.records import Policies
from quire.runtime.clock import SystemClock
from quire.runtime.errors import AlreadyExists, TooMany
from quire.security.configuration import Configuration, Limits
from quire.security.security import make_security
from quire.serving.broker import Broker
from quire.serving.model.ports import EARLIEST
from quire.serving.names import TopicName
from quire.serving.registry import topic_deletion
from quire.serving.subscription import limits as subscription_limits
from quire.serving.topic import producers
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from tests.serving.conftest import BrokerHouse
from tests.serving.session.test_connection import TOPIC, Client, producer

NAME = TopicName.parse(TOPIC)


def limited(house: BrokerHouse, **limits: int) -> None:
    """Brokers that start now have a security file with these, and nothing else."""
    house.security = make_security(Configuration(limits=Limits(**limits)), SystemClock())


async def prescribe(broker: Broker, topic: TopicName | None = None, **limits: Any) -> None:
    def change(all: Policies) -> Policies:
        return replace(all, **limits)

    policies = broker.admin.policies
    await (
        policies.change_namespace("public", "default", change)
        if topic is None
        else policies.change_topic(topic, change)
    )


async def connected(broker: Broker) -> Client:
    client = Client(broker)
    await client.connect()
    return client


def shared(number: int, subscription: str = "s0", topic: str = TOPIC) -> bytes:
    return commands.subscribe(
        pb.CommandSubscribe(
            topic=topic,
            subscription=subscription,
            subType=pb.CommandSubscribe.Shared,
            consumer_id=number,
            request_id=number,
        )
    )


async def let_in(client: Client, *frames: bytes) -> None:
    for frame in frames:
        client.send(frame)
        (answer,) = await client.answers(1)
        assert not isinstance(answer.body, pb.CommandError), answer.body.message


async def refused(client: Client, frame: bytes, code: int) -> str:
    client.send(frame)
    (answer,) = await client.answers(1)
    assert isinstance(answer.body, pb.CommandError) and answer.body.error == code
    return answer.body.message


def count(broker: Broker, limit: str) -> float:
    return broker.metrics()["quire_serving_limits_met_total"][limit,]


# -- topics ----------------------------------------------------------------------------------------------


async def test_the_server_bears_so_many(house: BrokerHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the policies say."""
    monkeypatch.setattr(subscription_limits, "SUBSCRIPTIONS_PER_TOPIC_MAX", 2)
    monkeypatch.setattr(subscription_limits, "CONSUMERS_PER_SUBSCRIPTION_MAX", 2)
    monkeypatch.setattr(producers, "PRODUCERS_PER_TOPIC_MAX", 2)
    broker = await house.start()
    nobody_cares = {"producers_max": 100, "consumers_per_subscription_max": 0, "subscriptions_max": 100}
    await prescribe(broker, **nobody_cares)
    for name in ("s0", "s1"):
        await broker.admin.subscriptions.create(NAME, name, EARLIEST)
    with pytest.raises(TooMany, match="has 2 subscriptions"):
        await broker.admin.subscriptions.create(NAME, "s2", EARLIEST)
    client = await connected(broker)
    for number in (1, 2):
        await let_in(client, shared(number), producer(number, producer_id=number))
    for frame, code in ((shared(3), pb.ConsumerBusy), (producer(4, producer_id=4), pb.ProducerBusy)):
        assert "which is the limit" in await refused(client, frame, code)
    await broker.admin.subscriptions.delete(NAME, "s1")
    await broker.admin.subscriptions.create(NAME, "s2", EARLIEST)


LEVELS = ("security file", "namespace", "topic")
FIELDS = ("producers_max", "consumers_max", "consumers_per_subscription_max", "subscriptions_max")


@pytest.mark.parametrize("level", LEVELS)
async def test_one_too_many_is_refused_and_counted(house: BrokerHouse, level: str) -> None:
    """Whichever level says so; the ones before it have let in more."""
    at = LEVELS.index(level)
    limited(
        house,
        producers_per_topic=(2, 9, 9)[at],
        consumers_per_topic=(4, 9, 9)[at],
        consumers_per_subscription=(3, 9, 9)[at],
        subscriptions_per_topic=(2, 9, 9)[at],
    )
    broker = await house.start()
    client = await connected(broker)
    await let_in(client, producer(1, 1))
    wanted = dict(zip(FIELDS, (2, 4, 3, 2), strict=True))
    if at:
        await prescribe(broker, **(wanted if at == 1 else dict.fromkeys(FIELDS, 8)))
    if at == 2:
        await prescribe(broker, NAME, **wanted)
    await let_in(client, producer(2, 2), *(shared(number) for number in (1, 2, 3)), shared(4, "s1"))
    assert "has 2 producers" in await refused(client, producer(9, 9), pb.ProducerBusy)
    assert "has 4 consumers" in await refused(client, shared(9, "s1"), pb.ConsumerBusy)
    client.send(close_consumer(4))
    await client.answers(1)
    assert "has 3 consumers" in await refused(client, shared(9), pb.ConsumerBusy)
    assert "has 2 subscriptions" in await refused(client, shared(9, "s2"), pb.NotAllowedError)
    await let_in(client, shared(9, "s1"))
    for limit in (
        "producers_per_topic",
        "consumers_per_topic",
        "consumers_per_subscription",
        "subscriptions_per_topic",
    ):
        assert count(broker, limit) == 1
    assert count(broker, "tenants") == 0


def close_consumer(number: int) -> bytes:
    body = pb.CommandCloseConsumer(consumer_id=number, request_id=number)
    return commands.frame(pb.BaseCommand(type=pb.BaseCommand.CLOSE_CONSUMER, close_consumer=body))


async def test_a_non_persistent_topic_has_so_many_subscriptions(house: BrokerHouse) -> None:
    topic = "non-persistent://public/default/brief"
    broker = await house.start()
    await prescribe(broker, subscriptions_max=2)
    client = await connected(broker)
    await let_in(client, shared(1, "s0", topic), shared(2, "s1", topic), shared(3, "s1", topic))
    assert "has 2 subscriptions" in await refused(client, shared(4, "s2", topic), pb.NotAllowedError)
    assert count(broker, "subscriptions_per_topic") == 1
    await prescribe(broker, TopicName.parse(topic), subscriptions_max=3)
    await let_in(client, shared(5, "s2", topic))


async def test_zero_lifts_the_limit_of_the_level_above(house: BrokerHouse) -> None:
    limited(house, producers_per_topic=1)
    broker = await house.start()
    client = await connected(broker)
    await let_in(client, producer(1, 1))
    await refused(client, producer(2, 2), pb.ProducerBusy)
    await prescribe(broker, producers_max=0)
    await let_in(client, producer(2, 2))


async def test_consumers_that_come_at_once_are_not_let_in_together(house: BrokerHouse) -> None:
    broker = await house.start()
    await prescribe(broker, consumers_max=3, producers_max=3)
    clients = [await connected(broker) for _ in range(10)]
    for number, client in enumerate(clients):
        client.send(shared(1, f"s{number}"), producer(2, 1))
    answers = [answer for client in clients for answer in await client.answers(2)]
    said = [answer.body.error for answer in answers if isinstance(answer.body, pb.CommandError)]
    assert sorted(said) == [pb.ConsumerBusy] * 7 + [pb.ProducerBusy] * 7


# -- namespaces and tenants --------------------------------------------------------------------------------


async def test_a_namespace_has_so_many_topics(house: BrokerHouse) -> None:
    limited(house, topics_per_namespace=4)
    broker = await house.start()

    async def make(name: str, partitions: int = 0) -> None:
        await broker.registry.create(TopicName.parse(name), partitions)

    await make("one")
    await make("parted", 2)
    with pytest.raises(TooMany, match="has 3 topics"):
        await make("other", 2)
    with pytest.raises(TooMany):
        await broker.partitioned.grow(TopicName.parse("parted"), 4)
    client = await connected(broker)
    await let_in(client, producer(1, 1))
    for name in ("another", "non-persistent://public/default/another"):
        message = await refused(client, producer(2, 2, name), pb.NotAllowedError)
        assert "maxTopicsPerNamespace" in message
    await let_in(client, producer(3, 3, "parted-partition-1"), producer(4, 4, "one"))
    assert count(broker, "topics_per_namespace") == 2, "those that clients asked for"
    await prescribe(broker, topics_max=6)
    await broker.partitioned.grow(TopicName.parse("parted"), 4)
    await let_in(client, producer(5, 5, "parted-partition-3"))
    await refused(client, producer(6, 6, "another"), pb.NotAllowedError)
    await prescribe(broker, topics_max=1)
    await let_in(client, producer(7, 7, "one"))
    await topic_deletion.delete(broker.registry, TopicName.parse("one"))
    await prescribe(broker, topics_max=None)
    with pytest.raises(TooMany):
        await make("again")
    await prescribe(broker, topics_max=0)
    await make("again")


async def test_topics_that_are_made_at_once_are_counted(house: BrokerHouse) -> None:
    limited(house, topics_per_namespace=5)
    broker = await house.start()

    async def make(number: int) -> bool:
        try:
            await broker.registry.create(TopicName.parse(f"t{number % 20}"), number % 2)
        except TooMany:
            return False
        return True

    made = await asyncio.gather(*map(make, range(20)))
    assert made.count(True) == 5
    assert len(await broker.registry.lists.names("public", "default")) == 5


async def test_one_topic_that_is_made_twice_at_once_counts_once(house: BrokerHouse) -> None:
    limited(house, topics_per_namespace=1)
    broker = await house.start()
    name = TopicName.parse("t")
    made = await asyncio.gather(*(broker.registry.create(name) for _ in range(5)), return_exceptions=True)
    assert {type(one) for one in made} <= {type(None), AlreadyExists}
    with pytest.raises(TooMany):
        await broker.registry.create(TopicName.parse("u"))


async def test_a_cluster_has_so_many_tenants_and_a_tenant_so_many_namespaces(house: BrokerHouse) -> None:
    limited(house, tenants=2, namespaces_per_tenant=2)
    broker = await house.start()
    made = await asyncio.gather(
        *(broker.namespaces.create_tenant(f"t{number}") for number in range(3)), return_exceptions=True
    )
    assert kinds_of(made) == ["NoneType", "TooMany", "TooMany"]
    made = await asyncio.gather(
        *(broker.namespaces.create("public", f"n{number}") for number in range(3)), return_exceptions=True
    )
    assert kinds_of(made) == ["NoneType", "TooMany", "TooMany"]
    with pytest.raises(AlreadyExists):
        await broker.namespaces.create("public", "n0")
    await broker.namespaces.delete("public", "n0")
    await broker.namespaces.create("public", "n1")
    await house.stop(broker)
    broker = await house.start()
    assert await broker.namespaces.list("public") == ["public/default", "public/n1"], "it starts all the same"
    for namespace in ("default", "n1"):
        await broker.namespaces.delete("public", namespace)
    await broker.namespaces.delete_tenant("public")
    await broker.namespaces.create_tenant("t1")
    await house.stop(broker)
    broker = await house.start()
    assert sorted(await broker.namespaces.tenants()) == ["t0", "t1"], "and without public, for there are two"


def kinds_of(found: Sequence[Any]) -> list[str]:
    return [type(one).__name__ for one in found]


def test_a_limit_is_a_number_of_at_least_nothing(tmp_path: Path) -> None:
    from quire.runtime.errors import ConfigurationError
    from quire.security.configuration import load

    file = tmp_path / "security.toml"
    file.write_text("[limits]\ntenants = 3\n")
    assert load(str(file)).limits == Limits(tenants=3)
    for wrong in ("tenants = -1", "tenants = true", "tenantz = 1"):
        file.write_text(f"[limits]\n{wrong}\n")
        with pytest.raises(ConfigurationError, match=r"\[limits"):
            load(str(file))
