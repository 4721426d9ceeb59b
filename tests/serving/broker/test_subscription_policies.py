"""Policies that decide who may subscribe and who may produce: types, creation, rates and encryption."""

from __future__ import annotations

from typing import Any

import pytest

from quire.metadata.records import SubscribeRate
from quire.serving.broker import Broker
from quire.serving.model.ports import EARLIEST
from quire.serving.names import TopicName
from quire.wire import commands, message
from quire.wire import pulsar_pb2 as pb
from tests.serving.broker.test_limits import close_consumer, connected, let_in, prescribe, refused
from tests.serving.conftest import AdvancedClock, BrokerHouse
from tests.serving.session.test_connection import TOPIC, Client, entry, producer

NAME = TopicName.parse(TOPIC)
VOLATILE = TOPIC.replace("persistent", "non-persistent")
TYPES = {
    "Exclusive": pb.CommandSubscribe.Exclusive,
    "Shared": pb.CommandSubscribe.Shared,
    "Failover": pb.CommandSubscribe.Failover,
    "Key_Shared": pb.CommandSubscribe.Key_Shared,
}


def subscribe(number: int, kind: str = "Shared", subscription: str = "s", **more: Any) -> bytes:
    more = {"topic": TOPIC, **more}
    return commands.subscribe(
        pb.CommandSubscribe(
            subscription=subscription, subType=TYPES[kind], consumer_id=number, request_id=number, **more
        )
    )


# -- types ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", [TOPIC, VOLATILE])
async def test_only_allowed_types_may_subscribe(broker: Broker, topic: str) -> None:
    await prescribe(broker, subscription_types=("Shared", "Key_Shared"))
    client = await connected(broker)
    for number, kind in enumerate(("Exclusive", "Failover"), 1):
        said = await refused(client, subscribe(number, kind, topic=topic), pb.NotAllowedError)
        assert kind in said and "Shared or Key_Shared" in said
    reader = subscribe(3, "Exclusive", "reader", durable=False, topic=topic)
    await refused(client, reader, pb.NotAllowedError)
    await let_in(client, subscribe(4, "Shared", "a", topic=topic))
    await let_in(client, subscribe(5, "Key_Shared", "b", topic=topic))
    await prescribe(broker, subscription_types=None)
    await let_in(client, subscribe(1, "Exclusive", "c", topic=topic))


async def test_a_topic_may_allow_other_types_than_its_namespace(broker: Broker) -> None:
    await prescribe(broker, subscription_types=("Shared",))
    client = await connected(broker)
    await let_in(client, producer(1))
    await prescribe(broker, NAME, subscription_types=("Key_Shared",))
    await refused(client, subscribe(1, "Shared"), pb.NotAllowedError)
    await let_in(client, subscribe(2, "Key_Shared"))


async def test_a_refused_consumer_leaves_neither_subscription_nor_schema(broker: Broker) -> None:
    await prescribe(broker, subscription_types=("Shared",))
    client = await connected(broker)
    schema = pb.Schema(name="s", type=pb.Schema.String, schema_data=b"")
    await refused(client, subscribe(1, "Exclusive", schema=schema), pb.NotAllowedError)
    assert await broker.admin.subscriptions.names(NAME) == []
    assert await broker.registry.schemas.find(NAME) is None


# -- creation ------------------------------------------------------------------------------------------


async def test_a_missing_subscription_is_not_created_where_that_is_off(broker: Broker) -> None:
    """Readers are not affected, nor are topics that keep nothing; operators may always create one."""
    await prescribe(broker, auto_subscription_creation=False)
    client = await connected(broker)
    assert "create it first" in await refused(client, subscribe(1), pb.SubscriptionNotFound)
    assert await broker.admin.subscriptions.names(NAME) == []
    await let_in(client, subscribe(2, "Exclusive", "reader", durable=False))
    await let_in(client, subscribe(3, topic=VOLATILE))
    await broker.admin.subscriptions.create(NAME, "s", EARLIEST)
    await let_in(client, subscribe(4))
    await prescribe(broker, NAME, auto_subscription_creation=True)
    await let_in(client, subscribe(5, subscription="another"))


async def test_an_initial_subscription_is_not_created_where_that_is_off(broker: Broker) -> None:
    await prescribe(broker, auto_subscription_creation=False)
    client = await connected(broker)
    wanted = producer(1, initial_subscription_name="first")
    assert "initial subscription" in await refused(client, wanted, pb.NotAllowedError)
    await broker.admin.subscriptions.create(NAME, "first", EARLIEST)
    await let_in(client, producer(2, initial_subscription_name="first"))


# -- rate ----------------------------------------------------------------------------------------------


async def test_a_consumer_subscribes_so_often_in_a_period(house: BrokerHouse) -> None:
    """Others are not affected; a new period begins with the time, and another rate at once."""
    house.clock = clock = AdvancedClock()
    broker = await house.start()
    await prescribe(broker, subscribe_rate=SubscribeRate(subscriptions=2, period_s=2))
    client = await connected(broker)

    async def again(number: int) -> None:
        await let_in(client, subscribe(number))
        client.send(close_consumer(number))
        await client.answers(1)

    await again(1)
    await again(1)
    assert "2 requests" in await refused(client, subscribe(1), pb.NotAllowedError)
    await again(2)
    await let_in(client, subscribe(1, consumer_name="named"))
    client.send(close_consumer(1))
    await client.answers(1)
    clock.ahead_s += 3
    await again(1)
    await again(1)
    await refused(client, subscribe(1), pb.NotAllowedError)
    await prescribe(broker, NAME, subscribe_rate=SubscribeRate())
    await again(1)


# -- encryption ----------------------------------------------------------------------------------------


def sealed(sequence_id: int) -> bytes:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=1)
    metadata.encryption_keys.add(key="k", value=b"data key")
    return message.seal(metadata, b"secret")


async def sent(client: Client, *entries: bytes) -> list[Any]:
    for number, one in enumerate(entries):
        client.send(b"".join(commands.send(1, number, 1, one)))
    return [answer.body for answer in await client.answers(len(entries))]


async def test_producers_must_encrypt_where_that_is_required(broker: Broker) -> None:
    await prescribe(broker, encryption_required=True)
    client = await connected(broker)
    said = await refused(client, producer(1), pb.MetadataError)
    assert said.startswith(f"Encryption is required in {TOPIC}")
    await let_in(client, producer(2, encrypted=True))
    answers = await sent(client, sealed(0), entry(), sealed(2), entry(), entry(), sealed(5))
    refusals = [one for one in answers if isinstance(one, pb.CommandSendError)]
    assert [one.sequence_id for one in refusals] == [1, 3, 4]
    assert {one.error for one in refusals} == {pb.NotAllowedError}
    receipts = [one.sequence_id for one in answers if isinstance(one, pb.CommandSendReceipt)]
    assert receipts == [0, 2, 5]
    await prescribe(broker, encryption_required=None)
    assert isinstance((await sent(client, entry()))[0], pb.CommandSendReceipt)


async def test_a_producer_that_does_not_encrypt_is_closed_when_that_is_required(broker: Broker) -> None:
    client = await connected(broker)
    await let_in(client, producer(1), producer(2, producer_id=2, encrypted=True))
    await prescribe(broker, encryption_required=True)
    (closed,) = await client.answers(1)
    assert closed.kind == pb.BaseCommand.CLOSE_PRODUCER and closed.body.producer_id == 1
    await refused(client, producer(3), pb.MetadataError)
    topic = await broker.registry.open(NAME)
    assert [one.admission.is_encrypted for one in topic.producers.all()] == [True]
    assert topic.straight is None, "each message is looked at"
