"""Schemas as the stock client brings them: versions, evolution, refusals, partitions, and a restart."""

from __future__ import annotations

from collections.abc import Callable

import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, JsonSchema, Record, String, StringSchema

from quire.serving.broker import Broker
from quire.serving.names import TopicName
from tests.serving.conftest import BrokerHouse, in_thread

WAIT_MS = 10_000
EARLIEST = pulsar.InitialPosition.Earliest


class Order(Record):  # type: ignore[misc]
    item = String(required=True)


class Priced(Record):  # type: ignore[misc]
    item = String(required=True)
    cents = Integer(required_default=True)


class Strict(Record):  # type: ignore[misc]
    item = String(required=True)
    cents = Integer(required=True)


class Other(Record):  # type: ignore[misc]
    name = String(required=True)


async def number_of_versions(broker: Broker, topic: str) -> int:
    return len([one async for one in broker.registry.schemas.versions(TopicName.parse(topic))])


def avro(record: type) -> object:
    pytest.importorskip("fastavro")
    return AvroSchema(record)


@pytest.mark.parametrize("kind", [avro, JsonSchema])
async def test_messages_are_read_by_the_schema_they_were_written_by(
    broker: Broker, client: pulsar.Client, kind: Callable[[type], object]
) -> None:
    def work() -> None:
        old = client.create_producer("orders", schema=kind(Order))
        old.send(Order(item="paper"))
        new = client.create_producer("orders", schema=kind(Priced))
        new.send(Priced(item="ink", cents=7))
        old.send(Order(item="pen"))
        consumer = client.subscribe("orders", "s", schema=kind(Priced), initial_position=EARLIEST)
        found = [consumer.receive(WAIT_MS).value() for _ in range(3)]
        assert [one.item for one in found] == ["paper", "ink", "pen"]
        assert found[1].cents == 7

    await in_thread(work)
    assert await number_of_versions(broker, "orders") == 2


async def test_what_does_not_fit_is_refused(broker: Broker, client: pulsar.Client) -> None:
    def work() -> None:
        client.create_producer("orders", schema=JsonSchema(Order))
        for schema in (JsonSchema(Strict), JsonSchema(Other), StringSchema()):
            with pytest.raises(pulsar.IncompatibleSchema):
                client.create_producer("orders", schema=schema)
            with pytest.raises(pulsar.IncompatibleSchema):
                client.subscribe("orders", "s", schema=schema)
        with pytest.raises(pulsar.IncompatibleSchema):
            client.create_producer("orders", schema=avro(Order))
        client.create_producer("orders").send(b"without any")
        client.subscribe("orders", "t").close()

    await in_thread(work)
    assert await number_of_versions(broker, "orders") == 1


async def test_partitions_have_one_schema(broker: Broker, client: pulsar.Client) -> None:
    await broker.registry.create(TopicName.parse("orders"), 3)

    def work() -> None:
        producer = client.create_producer("orders", schema=JsonSchema(Order))
        consumer = client.subscribe("orders", "s", schema=JsonSchema(Order), initial_position=EARLIEST)
        for number in range(6):
            producer.send(Order(item=str(number)))
        assert {consumer.receive(WAIT_MS).value().item for _ in range(6)} == set("012345")

    await in_thread(work)
    assert await number_of_versions(broker, "orders") == 1
    await broker.deletion.delete_partitioned(TopicName.parse("orders"), force=True)
    assert await number_of_versions(broker, "orders") == 0


async def test_the_first_consumer_brings_the_schema_of_a_topic_without_messages(
    broker: Broker, client: pulsar.Client
) -> None:
    def work() -> None:
        client.subscribe("orders", "s", schema=JsonSchema(Order))
        with pytest.raises(pulsar.IncompatibleSchema):
            client.create_producer("orders", schema=StringSchema())
        client.create_producer("plain").send(b"something")
        with pytest.raises(pulsar.IncompatibleSchema):
            client.subscribe("plain", "s", schema=JsonSchema(Order))

    await in_thread(work)
    assert await number_of_versions(broker, "orders") == 1
    assert await number_of_versions(broker, "plain") == 0


async def test_versions_survive_a_crash(house: BrokerHouse, broker: Broker, client: pulsar.Client) -> None:
    def publish() -> None:
        for kind, value in ((Order, Order(item="paper")), (Priced, Priced(item="ink", cents=7))):
            client.create_producer("orders", schema=JsonSchema(kind)).send(value)

    await in_thread(publish)
    await house.kill(broker)
    again = await house.start()

    def read() -> None:
        consumer = client.subscribe("orders", "s", schema=JsonSchema(Priced), initial_position=EARLIEST)
        assert [consumer.receive(WAIT_MS).value().item for _ in range(2)] == ["paper", "ink"]

    await in_thread(read)
    assert await number_of_versions(again, "orders") == 2


async def test_a_topic_that_keeps_nothing_has_a_schema(broker: Broker, client: pulsar.Client) -> None:
    topic = "non-persistent://public/default/orders"

    def work() -> None:
        consumer = client.subscribe(topic, "s", schema=JsonSchema(Order))
        client.create_producer(topic, schema=JsonSchema(Order)).send(Order(item="paper"))
        assert consumer.receive(WAIT_MS).value().item == "paper"
        with pytest.raises(pulsar.IncompatibleSchema):
            client.create_producer(topic, schema=StringSchema())

    await in_thread(work)
