"""Messages that are published over REST: durable before the answer, checked by the schema, and like any other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, JsonSchema, Record, String

from quire.metadata.records import Policies
from quire.serving.broker import Broker
from quire.serving.names import TopicName
from quire.serving.schema import avro_writing
from quire.serving.schema.avro_values import read
from quire.serving.topic.lifecycle.quota import BacklogExceeded
from quire.wire import avro
from quire.wire import pulsar_pb2 as pb
from quire.wire.commands import send_error
from tests.serving.admin.conftest import TOPIC, Rest
from tests.serving.conftest import BrokerHouse, in_thread
from tests.serving.security import security, token

MESSAGES = "/quire/v1/topics/persistent/public/default/orders/messages"


class Order(Record):  # type: ignore[misc]
    number = Integer(required=True)
    what = String()


def receive(client: pulsar.Client, count: int, **options: Any) -> list[pulsar.Message]:
    consumer = client.subscribe("orders", "s", initial_position=pulsar.InitialPosition.Earliest, **options)
    found = [consumer.receive(10_000) for _ in range(count)]
    consumer.close()
    return found


async def test_a_message_is_stored_with_its_key_and_properties(rest: Rest, client: pulsar.Client) -> None:
    await rest.put(TOPIC, {})
    message = {"value": "h\u00e4", "key": "k", "properties": {"<b>": "1=2"}, "eventTimeMs": 1000}
    answer = await rest.post(MESSAGES, message)
    assert answer.status == 200 and answer.body["schemaVersion"] is None
    assert answer.body["topic"] == "persistent://public/default/orders"
    assert (await rest.post(MESSAGES, {"value": None, "key": "k"})).status == 200
    first, second = await in_thread(lambda: receive(client, 2))
    assert first.data() == "h\u00e4".encode() and first.partition_key() == "k"
    assert first.properties() == {"<b>": "1=2"} and first.event_timestamp() == 1000
    where = first.message_id()
    assert answer.body["messageId"] == f"{where.ledger_id()}:{where.entry_id()}"
    assert second.data() == b""
    (look,) = (await rest.get(f"{MESSAGES}?from={answer.body['messageId']}&count=1")).body
    assert look["text"] == "h\u00e4" and look["key"] == "k"


async def test_a_delayed_message_is_delivered_later(rest: Rest, client: pulsar.Client) -> None:
    await rest.put(TOPIC, {})
    shared = pulsar.ConsumerType.Shared
    consumer = await in_thread(lambda: client.subscribe("orders", "s", shared))
    await rest.post(MESSAGES, {"value": "in an hour", "delayS": 3600})
    await rest.post(MESSAGES, {"value": "now"})
    assert (await in_thread(lambda: consumer.receive(10_000))).data() == b"now"
    stats = (await rest.get(f"{TOPIC}/stats")).body
    assert stats["subscriptions"]["s"]["msgDelayed"] == 1


@pytest.mark.parametrize("schema", [AvroSchema(Order), JsonSchema(Order)], ids=["avro", "json"])
async def test_a_value_is_encoded_by_the_schema_or_refused(
    rest: Rest, client: pulsar.Client, schema: Any
) -> None:
    await in_thread(lambda: client.create_producer("orders", schema=schema).close())
    answer = await rest.post(MESSAGES, {"value": '{"number": 7, "what": "<i>"}'})
    assert answer.body["schemaVersion"] == 0
    order = await in_thread(lambda: receive(client, 1, schema=schema)[0].value())
    assert (order.number, order.what) == (7, "<i>")
    for value, why in (
        ('{"number": "7"}', "number must be a whole number of type int"),
        ('{"what": "x"}', "field number is missing"),
        ('{"number": 7, "wat": 1}', "has no field wat"),
        ("7", "an object with the fields of Order"),
        ("{", "it is not JSON"),
    ):
        answer = await rest.post(MESSAGES, {"value": value})
        assert answer.status == 400 and why in answer.body["reason"], answer
    stats = (await rest.get(f"{TOPIC}/stats")).body
    assert stats["msgInCounter"] == 1 and stats["publishers"] == []


async def test_numbers_are_encoded_as_clients_read_them(rest: Rest) -> None:
    for kind, value, text in (("INT32", "-5", "-5"), ("DOUBLE", "1.5", "1.5"), ("BOOLEAN", "true", "true")):
        topic = f"of-{kind}"
        await rest.put(f"/admin/v2/persistent/public/default/{topic}", {})
        await rest.post(f"/admin/v2/schemas/public/default/{topic}/schema", {"type": kind, "schema": ""})
        where = f"/quire/v1/topics/persistent/public/default/{topic}/messages"
        assert (await rest.post(where, {"value": value})).status == 200
        assert (await rest.post(where, {"value": '"x"'})).status == 400
        (look,) = (await rest.get(where)).body
        assert look["text"] == text and not look["problem"]


def test_what_is_encoded_is_read_back() -> None:
    definition = avro.parse(
        json.dumps(
            {
                "type": "record",
                "name": "All",
                "fields": [
                    {"name": "long", "type": "long"},
                    {"name": "either", "type": ["null", "boolean", "double", "string"]},
                    {"name": "list", "type": {"type": "array", "items": "int"}},
                    {"name": "map", "type": {"type": "map", "values": "bytes"}},
                    {"name": "sort", "type": {"type": "enum", "name": "E", "symbols": ["a", "b"]}},
                    {"name": "four", "type": {"type": "fixed", "name": "F", "size": 4}},
                    {"name": "absent", "type": "int", "default": 3},
                ],
            }
        ).encode()
    )
    value = {
        "long": -(1 << 63),
        "list": [0, -64, 64, 1 << 30],
        "map": {"k": "\xff"},
        "sort": "b",
        "four": "abcd",
    }
    for either in (None, True, 2.5, "text"):
        raw = avro_writing.write(definition, {**value, "either": either})
        expected = {**value, "either": either, "map": {"k": b"\xff"}, "four": b"abcd", "absent": 3}
        assert read(definition, raw) == expected
    for wrong in (
        {"long": 1 << 63},
        {"sort": "c"},
        {"four": "abc"},
        {"list": [True]},
        {"map": {"k": "\u0100"}},
    ):
        with pytest.raises(avro_writing.DoesNotFit):
            avro_writing.write(definition, {**value, "either": None, **wrong})


def test_a_value_with_many_ways_to_fit_takes_no_time_for_all_of_them() -> None:
    node = {"type": "record", "name": "N", "fields": [{"name": "n", "type": ["null", "N"]}]}
    other = {"type": "record", "name": "M", "fields": [{"name": "n", "type": ["null", "N", "M", "int"]}]}
    node["fields"][0]["type"] = ["null", "N", other, "string"]  # type: ignore[index]
    deep: Any = 1.5
    for _ in range(60):
        deep = {"n": deep}
    with pytest.raises((avro_writing.DoesNotFit, avro_writing.TooComplex)):
        avro_writing.write(avro.parse(json.dumps(node).encode()), deep)


async def test_messages_of_one_key_go_to_one_partition(rest: Rest) -> None:
    await rest.put(f"{TOPIC}/partitions", 4)
    by_key = {(await rest.post(MESSAGES, {"value": "x", "key": "the key"})).body["topic"] for _ in range(3)}
    assert len(by_key) == 1 and "-partition-" in by_key.pop()
    assert (await rest.post(MESSAGES, {"value": "x"})).status == 200


async def test_messages_of_one_key_in_the_value_go_to_one_partition(rest: Rest) -> None:
    await rest.put(f"{TOPIC}/partitions", 4)
    schema = {
        "type": "KEY_VALUE",
        "schema": json.dumps({"key": {"type": "string"}, "value": {"type": "long"}}),
        "properties": {
            "key.schema.type": "AVRO",
            "value.schema.type": "AVRO",
            "kv.encoding.type": "SEPARATED",
        },
    }
    assert (await rest.post("/admin/v2/schemas/public/default/orders/schema", schema)).status == 200
    said = [await rest.post(MESSAGES, {"value": json.dumps({"key": "k", "value": n})}) for n in range(6)]
    assert len({answer.body["topic"] for answer in said}) == 1, said
    both = await rest.post(MESSAGES, {"value": '{"key": "k", "value": 1}', "key": "other"})
    assert both.status == 400 and "omit the message's key" in both.body["reason"]


async def test_deduplication_learns_one_name_for_all_messages_in_turn(rest: Rest, broker: Broker) -> None:
    await rest.put(TOPIC, {})
    assert (await rest.post("/admin/v2/namespaces/public/default/deduplication", True)).status == 204
    for number in range(5):
        assert (await rest.post(MESSAGES, {"value": str(number)})).status == 200
    stored = (await rest.get(f"{MESSAGES}?from=earliest")).body
    assert sorted(one["text"] for one in stored) == ["0", "1", "2", "3", "4"], stored
    assert len({one["producer"] for one in stored}) == 1


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {},
        {"value": 1},
        {"value": "x", "kee": "y"},
        {"value": "x", "properties": {"a": 1}},
        {"value": "x", "delayS": -1},
        {"value": "x", "eventTimeMs": -1},
    ],
)
async def test_what_is_no_message_is_refused(rest: Rest, body: Any) -> None:
    await rest.put(TOPIC, {})
    assert (await rest.post(MESSAGES, body)).status == 400


async def test_nothing_is_created_by_publishing(rest: Rest) -> None:
    assert (await rest.post(MESSAGES, {"value": "x"})).status == 404
    assert (await rest.get(f"{TOPIC}/stats")).status == 404
    other = MESSAGES.replace("/persistent/", "/non-persistent/")
    assert (await rest.post(other, {"value": "x"})).status in (400, 404)


async def test_quotas_and_limits_hold(rest: Rest, broker: Broker) -> None:
    await rest.put(TOPIC, {})
    await rest.post(f"{TOPIC}/maxMessageSize", 10_000)
    assert (await rest.post(MESSAGES, {"value": "x" * 20_000})).status == 413
    assert (await rest.post(MESSAGES, {"value": "x" * (1 << 20)})).status == 413
    assert (await rest.post(f"{TOPIC}/terminate")).status == 200
    answer = await rest.post(MESSAGES, {"value": "x"})
    assert answer.status == 400 and "terminated" in answer.body["reason"]


async def test_a_message_that_is_not_durable_is_not_answered(
    rest: Rest, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rest.put(TOPIC, {})
    topic = await broker.registry.open_persistent(TopicName.parse("orders"))
    publisher = topic.log.publisher
    publish = publisher.publish

    def lost(producer: Any, run: Any) -> int:
        """Queue the run, then drop it as a topic that is handed over does."""
        size = publish(producer, run)
        topic.drop()
        return size

    monkeypatch.setattr(type(publisher), "publish", lambda _, producer, run: lost(producer, run))
    answer = await rest.post(MESSAGES, {"value": "x"})
    assert answer.status == 503 and "may or may not be stored" in answer.body["reason"]


async def test_a_topic_with_one_exclusive_producer_takes_no_other_message(
    rest: Rest, client: pulsar.Client
) -> None:
    mode = pulsar.ProducerAccessMode.Exclusive
    producer = await in_thread(lambda: client.create_producer("orders", access_mode=mode))
    answer = await rest.post(MESSAGES, {"value": "x"})
    assert answer.status == 412 and "exclusive" in answer.body["reason"].lower()
    await in_thread(producer.close)
    assert (await rest.post(MESSAGES, {"value": "x"})).status == 200


async def test_a_full_backlog_is_said(rest: Rest, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    await rest.put(TOPIC, {})
    topic = await broker.registry.open_persistent(TopicName.parse("orders"))
    monkeypatch.setattr(type(topic), "enforce_quotas", lambda _: None)
    topic.round_state.refusal = BacklogExceeded, "its backlog is too large"
    answer = await rest.post(MESSAGES, {"value": "x"})
    assert answer.status == 503 and "its backlog is too large" in answer.body["reason"]


async def test_where_messages_must_be_encrypted_none_is_stored(rest: Rest) -> None:
    await rest.put(TOPIC, {})
    assert (await rest.post("/admin/v2/namespaces/public/default/encryptionRequired", True)).status == 204
    answer = await rest.post(MESSAGES, {"value": "x"})
    assert answer.status == 412 and "Encryption is required" in answer.body["reason"]
    assert (await rest.get(MESSAGES)).body == []


async def test_a_message_that_its_topic_refuses_has_no_position(
    rest: Rest, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rest.put(TOPIC, {})
    topic = await broker.registry.open_persistent(TopicName.parse("orders"))
    refusal = send_error(0, 0, pb.ChecksumError, "its checksum is wrong")
    monkeypatch.setattr(type(topic), "publish", lambda _, producer, run: producer.write(refusal))
    answer = await rest.post(MESSAGES, {"value": "x"})
    assert answer.status == 503 and "its checksum is wrong" in answer.body["reason"]


async def test_another_sites_page_publishes_nothing(rest: Rest) -> None:
    await rest.put(TOPIC, {})
    headers = {"Sec-Fetch-Site": "cross-site", "Content-Type": "text/plain"}
    assert (await rest.post(MESSAGES, {"value": "x"}, headers=headers)).status == 403
    assert (await rest.get(MESSAGES)).body == []


class TestSecured:
    @pytest.fixture
    async def broker(self, house: BrokerHouse, tmp_path: Path) -> Broker:
        house.security = security(tmp_path)
        broker = await house.start()
        granted = Policies(permissions={"reader": ("consume",), "writer": ("produce",)})
        await broker.namespaces.change("public", "default", lambda _: granted)
        await broker.registry.records.create(TopicName.parse("orders"))
        return broker

    async def test_it_takes_the_permission_to_produce(self, rest: Rest) -> None:
        for role, status in (("reader", 403), ("writer", 200), ("admin", 200)):
            headers = {"Authorization": f"Bearer {token(role)}"}
            assert (await rest.post(MESSAGES, {"value": role}, headers=headers)).status == status
        headers = {"Authorization": f"Bearer {token('writer')}"}
        assert (await rest.get(MESSAGES, headers=headers)).status == 403
