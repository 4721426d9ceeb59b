"""A consumer of all topics whose names match: those that come, those that go, partitions, letters."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import pytest

from quire.client import EARLIEST, Client, ClientSettings, ConsumerSettings, DeadLetterPolicy
from quire.client.pattern import Pattern
from quire.runtime.errors import ConfigurationError, Unavailable
from quire.serving.broker import Broker
from quire.serving.names import TopicName
from tests.client.fake_broker import FakeBroker
from tests.serving.conftest import BrokerHouse

NEVER = ClientSettings(partitions_poll_ms=600_000, backoff_first_ms=1, backoff_max_ms=20)
"""So whoever learns of a new topic was told."""


@pytest.fixture
async def told(real: Broker) -> AsyncIterator[Client]:
    async with Client(real.service_url, settings=NEVER) as made:
        yield made


async def publish(client: Client, topic: str, *payloads: bytes) -> None:
    async with client.producer(topic) as producer:
        for payload in payloads:
            await producer.send(payload)


def test_what_a_pattern_is_about() -> None:
    names = [
        "persistent://public/default/orders-eu-partition-0",
        "persistent://public/default/orders-eu-partition-1",
        "persistent://public/default/orders-us",
        "persistent://public/default/other",
        "persistent://acme/shop/orders-us",
    ]
    short = Pattern(re.compile("orders-.*"))
    assert short.namespace == "public/default"
    assert short.matching(names) == {
        "persistent://public/default/orders-eu",
        "persistent://public/default/orders-us",
    }
    for text in ("acme/shop/orders-.*", "persistent://acme/shop/ORDERS-.*"):
        other = Pattern(re.compile(text, re.IGNORECASE))
        assert (other.namespace, other.matching(names)) == ("acme/shop", {names[4]})
    for wrong in ("a/b", "a/b/c/d", "non-persistent://a/b/c"):
        with pytest.raises(ConfigurationError, match="not a topic pattern"):
            Pattern(re.compile(wrong))


async def test_topics_that_are_there_and_topics_that_come(told: Client) -> None:
    for name in ("orders-a", "orders-b", "other"):
        await publish(told, name, name.encode())
    async with told.consumer(re.compile("orders-.*"), "s", start=EARLIEST) as consumer:
        assert sorted([(await consumer.receive(10)).payload or b"" for _ in range(2)]) == [
            b"orders-a",
            b"orders-b",
        ]
        await publish(told, "orders-c", b"1", b"2")
        found = [await consumer.receive(10) for _ in range(2)]
        assert [one.payload for one in found] == [b"1", b"2"], "from its first message on"
        for one in found:
            await consumer.ack(one)
        assert [one.rpartition("/")[2] for one in consumer.topics] == ["orders-a", "orders-b", "orders-c"]


async def test_before_there_is_any_topic(told: Client) -> None:
    async with told.consumer(re.compile("orders-.*"), "s") as consumer:
        assert consumer.topics == []
        await publish(told, "orders-a", b"x")
        assert (await consumer.receive(10)).payload == b"x"


async def test_a_topic_that_goes_is_not_made_again(told: Client, real: Broker) -> None:
    for name in ("orders-a", "orders-b"):
        await publish(told, name, name.encode())
    async with told.consumer(re.compile("orders-.*"), "s", start=EARLIEST) as consumer:
        for _ in range(2):
            await consumer.ack(await consumer.receive(10))
        await real.admin.topics.delete(TopicName.parse("persistent://public/default/orders-a"), force=True)
        async with asyncio.timeout(60):
            while len(consumer.topics) > 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await publish(told, "orders-b", b"later")
        assert (await consumer.receive(10)).payload == b"later"
        assert await told.topics() == ["persistent://public/default/orders-b"]
        await publish(told, "orders-a", b"again")
        assert (await consumer.receive(10)).payload == b"again"


async def test_a_topic_that_is_made_again_at_once_is_consumed_again(told: Client, real: Broker) -> None:
    await publish(told, "orders-a", b"1")
    async with told.consumer(re.compile("orders-.*"), "s", start=EARLIEST) as consumer:
        await consumer.ack(await consumer.receive(10))
        for number in range(2, 6):
            await real.admin.topics.delete(
                TopicName.parse("persistent://public/default/orders-a"), force=True
            )
            await publish(told, "orders-a", b"%d" % number)
            assert (await consumer.receive(10)).payload == b"%d" % number


async def test_a_topic_that_cannot_be_asked_about_at_once_is_not_forgotten(
    told: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with told.consumer(re.compile("orders-.*"), "s") as consumer:
        ask, refusals = told.partitions, [1, 1]

        async def partitions(topic: str, *, create: bool = True) -> int:
            if refusals and not create:
                refusals.pop()
                raise Unavailable("not now")
            return await ask(topic, create=create)

        monkeypatch.setattr(told, "partitions", partitions)
        await publish(told, "orders-a", b"x")
        assert (await consumer.receive(10)).payload == b"x"
        assert not refusals and consumer.topics == ["persistent://public/default/orders-a"]


async def test_partitions_count_as_their_topic(told: Client, real: Broker) -> None:
    async with told.consumer(re.compile("orders-.*"), "s", type="shared") as consumer:
        await real.registry.create(TopicName.parse("persistent://public/default/orders-a"), 3)
        async with told.producer("orders-a") as producer:
            for i in range(9):
                await producer.send(b"%d" % i, key=str(i))
        assert sorted([(await consumer.receive(10)).payload or b"" for _ in range(9)]) == [
            b"%d" % i for i in range(9)
        ]
        assert consumer.topics == ["persistent://public/default/orders-a"]


async def test_its_own_dead_letters_are_left_to_others(told: Client, real: Broker) -> None:
    await publish(told, "orders-a", b"poison")
    settings = ConsumerSettings(nack_delay_ms=1)
    async with told.consumer(
        re.compile("orders-.*"),
        "s",
        type="shared",
        start=EARLIEST,
        dead_letter=DeadLetterPolicy(1),
        settings=settings,
    ) as consumer:
        for _ in range(2):
            await consumer.nack(await consumer.receive(10))
        async with told.consumer("orders-a-s-DLQ", "watch", start=EARLIEST) as watcher:
            assert (await watcher.receive(10)).payload == b"poison"
        await publish(told, "orders-b", b"x")
        assert (await consumer.receive(10)).payload == b"x"
        assert len(consumer.topics) == 2


async def test_a_broker_that_crashes_is_followed_again(
    house: BrokerHouse, real: Broker, told: Client
) -> None:
    await publish(told, "orders-a", b"1")
    async with told.consumer(re.compile("orders-.*"), "s", start=EARLIEST) as consumer:
        await consumer.ack(await consumer.receive(10))
        await consumer.flush_acks()
        await house.kill(real)
        await house.start()
        await publish(told, "orders-b", b"2")
        assert (await consumer.receive(20)).payload == b"2"


async def test_a_broker_that_does_not_tell_is_asked(broker: FakeBroker) -> None:
    settings = ClientSettings(partitions_poll_ms=5)
    async with (
        Client(broker.url, settings=settings) as client,
        client.consumer(re.compile("orders-.*"), "s") as consumer,
    ):
        await publish(client, "orders-a", b"x")
        assert (await consumer.receive(10)).payload == b"x"


async def test_a_pattern_that_the_broker_does_not_take_is_matched_here(real: Broker) -> None:
    settings = ClientSettings(partitions_poll_ms=20)
    async with (
        Client(real.service_url, settings=settings) as client,
        client.consumer(re.compile("(?!other).*"), "s", start=EARLIEST) as consumer,
    ):
        await publish(client, "other", b"no")
        await publish(client, "orders-a", b"yes")
        assert (await consumer.receive(10)).payload == b"yes"


async def test_a_topic_that_cannot_be_subscribed_to_just_now_is_subscribed_to_later(
    told: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    partitions, failures = told.partitions, [Unavailable("not now")]

    async def fail_once(topic: str, *, create: bool = True) -> int:
        if topic.endswith("orders-a") and not create and failures:
            raise failures.pop()
        return await partitions(topic, create=create)

    async with told.consumer(re.compile("orders-.*"), "s") as consumer:
        monkeypatch.setattr(told, "partitions", fail_once)
        await publish(told, "orders-a", b"x")
        assert (await consumer.receive(10)).payload == b"x"
        assert not failures and len(consumer.topics) == 1


async def test_a_topic_that_cannot_be_asked_about_holds_up_no_other(
    told: Client, real: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    partitions = told.partitions

    async def fail(topic: str, *, create: bool = True) -> int:
        if topic.endswith("orders-a"):
            raise Unavailable("not now")
        return await partitions(topic, create=create)

    async with (
        Client(real.service_url) as other,
        told.consumer(re.compile("orders-.*"), "s", start=EARLIEST) as consumer,
    ):
        monkeypatch.setattr(told, "partitions", fail)
        for name in ("orders-a", "orders-b"):
            await publish(other, name, name.encode())
        assert (await consumer.receive(10)).payload == b"orders-b"
