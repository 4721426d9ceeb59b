"""Keys and values of pairs, plain types, and what Avro has beside records: unions, recursion, logical types."""

from __future__ import annotations

import base64
import datetime
import json
import uuid
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest

from quire.client.schema import AvroSchema, JsonSchema, KeyValueSchema, Schema
from quire.runtime.errors import ConfigurationError
from quire.serving.schema.definition import Definition, to_text
from quire.spark_source.avro_types import column_type
from quire.spark_source.source import QuireDataSource
from quire.spark_source.values import BadValue
from quire.wire import pulsar_pb2 as pb
from quire.wire.message import OutgoingMessage, encode_batch, encode_one
from tests.spark_source.test_values import TIME_MS, TOPIC, avro, entry, publish, read, record, values


@dataclass
class Customer:
    id: int
    name: str = ""


@dataclass
class Order:
    item: str
    cents: int = 0


# -- pairs -----------------------------------------------------------------------------------------------


def outgoing(pair: Schema[Any], value: Any) -> OutgoingMessage:
    """As producers make it: the key's bytes in base64 where they are a message's key."""
    key = pair.key_of(value)
    text = None if key is None else base64.b64encode(key).decode()
    return OutgoingMessage(pair.encode(value), key=text, key_is_base64=key is not None)


def register(broker: Any, pair: KeyValueSchema[Any, Any]) -> None:
    definition = Definition.of(pair.info)
    broker.schemas.setdefault(TOPIC, []).append(
        ("KEY_VALUE", to_text(definition), json.dumps(dict(definition.properties)))
    )


@pytest.mark.parametrize("separated", [False, True])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        (AvroSchema(Customer), AvroSchema(Order)),
        (JsonSchema(Customer), AvroSchema(Order)),
        (AvroSchema(Customer), JsonSchema(Order)),
    ],
)
def test_pairs_of_keys_and_values(broker: Any, key: Any, value: Any, separated: bool) -> None:
    pair = KeyValueSchema(key, value, separated=separated)
    register(broker, pair)
    sent = [(Customer(n, f"c{n}"), Order("tea", n)) for n in range(6)]
    version = (0).to_bytes(8, "big")
    entries = [
        encode_one(outgoing(pair, sent[0]), "p", 0, TIME_MS, schema_version=version),
        encode_batch([outgoing(pair, one) for one in sent[1:]], "p", 1, TIME_MS, pb.ZSTD, version),
        encode_one(OutgoingMessage(None), "p", 9, TIME_MS, schema_version=version),
    ]
    broker.topics[TOPIC] = [broker.segment(7, entries, [1, 5, 1])]
    rows = read(broker, columns="key,value,sequence")
    assert [(row["key"], row["value"]) for row in rows] == [
        *(({"id": n, "name": f"c{n}"}, {"item": "tea", "cents": n}) for n in range(6)),
        (None, None),
    ]
    assert [row["key"] for row in read(broker, columns="key")][:6] == [row["key"] for row in rows][:6]
    given = {"service_url": broker.url, "topic": "t", "value_schema": "auto", "columns": "key,value"}
    assert QuireDataSource(given).schema() == (
        "`key` struct<`id`: bigint, `name`: string>, `value` struct<`item`: string, `cents`: bigint>"
    )


def test_texts_as_keys_and_older_versions(broker: Any) -> None:
    for value in (record("Order", item="string"), record("Order", item="string", cents=["null", "int"])):
        if "null" in str(value):
            value["fields"][1]["default"] = None
        properties = {
            "kv.encoding.type": "SEPARATED",
            "key.schema.type": "STRING",
            "value.schema.type": "AVRO",
        }
        text = json.dumps({"key": "", "value": value})
        broker.schemas.setdefault(TOPIC, []).append(("KEY_VALUE", text, json.dumps(properties)))
    one = OutgoingMessage(avro(record("Order", item="string"), {"item": "tea"}), key="ann")
    version = (0).to_bytes(8, "big")
    broker.topics[TOPIC] = [broker.segment(7, [encode_one(one, "p", 0, TIME_MS, schema_version=version)] * 2)]
    assert read(broker, columns="key,value") == [{"key": "ann", "value": {"item": "tea", "cents": None}}] * 2
    assert sum("/schema/0" in path for path in broker.requests) == 1


def test_a_key_that_does_not_fit(broker: Any) -> None:
    pair = KeyValueSchema(AvroSchema(Customer), AvroSchema(Order))
    register(broker, pair)
    good = pair.encode((Customer(1, "a"), Order("tea", 2)))
    value = AvroSchema(Order).encode(Order("tea", 2))
    bad_key = b"\0\0\0\1\x80" + len(value).to_bytes(4, "big") + value
    no_key = b"\xff\xff\xff\xff" + len(value).to_bytes(4, "big") + value
    version = 0
    publish_entries = [entry(one, version) for one in (good, bad_key, no_key, good[:-1], good + b"!", b"")]
    broker.topics[TOPIC] = [broker.segment(7, publish_entries)]
    with pytest.raises(BadValue, match=r"message 7:1 of .* does not fit its schema: key: "):
        read(broker, columns="key,value")
    rows = read(broker, columns="key,value,value_error", on_bad_value="null")
    tea = {"item": "tea", "cents": 2}
    assert [row["value"] for row in rows] == [tea, tea, tea, None, None, None]
    assert [row["key"] for row in rows] == [{"id": 1, "name": "a"}, None, None, None, None, None]
    errors = [row["value_error"] for row in rows]
    assert errors[0] is None and errors[1].startswith("key: ") and errors[2] is None
    assert errors[3:] == [
        "key and value are cut short",
        "1 bytes are left over after key and value",
        "key and value are cut short",
    ]


@pytest.mark.parametrize(
    ("kind", "payload", "value", "ddl"),
    [
        ("STRING", "é".encode(), "é", "string"),
        ("BOOLEAN", b"\1", True, "boolean"),
        ("INT8", b"\xff", -1, "tinyint"),
        ("INT16", b"\1\0", 256, "smallint"),
        ("INT32", b"\xff\xff\xff\xfe", -2, "int"),
        ("INT64", b"\0\0\0\1\0\0\0\0", 1 << 32, "bigint"),
        ("FLOAT", b"\x3f\0\0\0", 0.5, "float"),
        ("DOUBLE", b"\x3f\xe0\0\0\0\0\0\0", 0.5, "double"),
    ],
)
def test_plain_types(broker: Any, kind: str, payload: bytes, value: Any, ddl: str) -> None:
    broker.schemas[TOPIC] = [(kind, "")]
    broker.topics[TOPIC] = [broker.segment(7, [entry(payload, 0), entry(b"\xff" * 9, 0)])]
    rows = read(broker, on_bad_value="null", columns="value,value_error")
    assert rows[0] == {"value": value, "value_error": None}
    assert rows[1]["value"] is None and rows[1]["value_error"]
    given = {"service_url": broker.url, "topic": "t", "value_schema": "auto", "columns": "value"}
    assert QuireDataSource(given).schema() == f"`value` {ddl}"


def test_what_no_column_can_be(broker: Any) -> None:
    text = json.dumps({"key": "", "value": ""})
    broker.schemas[TOPIC] = [("KEY_VALUE", text, json.dumps({"key.schema.type": "INSTANT"}))]
    given = {"service_url": broker.url, "topic": "t", "value_schema": "auto"}
    with pytest.raises(ConfigurationError, match=r"schema of the keys of topic .* is INSTANT, and only"):
        QuireDataSource(given).schema()


# -- unions ----------------------------------------------------------------------------------------------

CAT = record("a.Cat", name="string")
DOG = record("a.Dog", name="string", age="int")
COLOR = {"type": "enum", "name": "a.Color", "symbols": ["RED", "BLUE"]}


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
def test_unions(broker: Any, kind: str) -> None:
    definition = record("R", x=["null", "int", "string", {"type": "array", "items": "long"}, CAT])
    said: list[Any] = [None, 7, "seven", [1, 2], {"name": "Tom"}]
    code = avro if kind == "AVRO" else lambda _, value: json.dumps(value).encode()
    publish(broker, kind, [definition], [entry(code(definition, {"x": one}), 0) for one in said])
    found = [value["x"] for value in values(broker)]
    assert found[0] is None
    for number, value in enumerate(found[1:]):
        assert value == {f"member{i}": said[i + 1] if i == number else None for i in range(4)}
    assert column_type(json.dumps(definition), is_json=False).spark == (
        "struct<x:struct<member0:int,member1:string,member2:array<bigint>,member3:struct<name:string>>>"
    )


def test_unions_of_what_only_names_tell_apart(broker: Any) -> None:
    first = record("R", x=[DOG, CAT, COLOR, "string", "bytes"])
    moved = json.loads(json.dumps(first).replace("a.", "b."))
    said = [
        ("a.Cat", {"name": "Tom"}),
        ("a.Dog", {"name": "Rex", "age": 3}),
        "RED",
        ("a.Color", "RED"),
        b"RED",
    ]
    entries = [entry(avro(first, {"x": one}), 0) for one in said]
    publish(broker, "AVRO", [first, moved], entries)
    members = [
        next(iter({k: v for k, v in value["x"].items() if v is not None}.items())) for value in values(broker)
    ]
    assert members == [
        ("member1", {"name": "Tom"}),
        ("member0", {"name": "Rex", "age": 3}),
        # fastavro's writer takes a bare text for the first of the union that it fits, the enum
        ("member2", "RED"),
        ("member2", "RED"),
        ("member4", b"RED"),
    ]


def test_a_text_beside_an_enum_is_a_text(broker: Any) -> None:
    definition = record("R", x=[COLOR, "string"])
    entries = [entry(avro(definition, {"x": "GREEN"}), 0), entry(b"\x02\x06RED", 0), entry(b"\x00\x00", 0)]
    publish(broker, "AVRO", [definition], entries)
    assert [value["x"]["member1"] for value in values(broker)] == ["GREEN", "RED", None]
    assert [value["x"]["member0"] for value in values(broker)] == [None, None, "RED"]


def test_unions_that_grow_and_unions_that_are_one_number(broker: Any) -> None:
    old = record("R", x="int", y=["null", DOG], z=["int", "long"])
    new = record("R", x=["null", "long", "string"], y=["null", DOG, CAT], z=["double", "float"])
    dog = {"name": "Rex", "age": 3}
    publish(broker, "AVRO", [old, new], [entry(avro(old, {"x": 1, "y": dog, "z": 2}), 0)])
    (value,) = values(broker)
    assert value == {
        "x": {"member0": 1, "member1": None},
        "y": {"member0": dog, "member1": None},
        "z": 2.0,
    }
    assert (
        column_type(json.dumps(old), is_json=False).spark
        == "struct<x:int,y:struct<name:string,age:int>,z:bigint>"
    )


def test_a_value_of_no_type_of_its_union(broker: Any) -> None:
    definition = record("R", x=["int", "boolean"])
    publish(broker, "JSON", [definition], [entry(b'{"x": "no"}', 0)])
    with pytest.raises(BadValue, match="x: no type of the union accepts 'no'"):
        values(broker)


# -- records within themselves ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
def test_a_record_within_itself_is_json(broker: Any, kind: str) -> None:
    price = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
    definition = record("a.Node", x="int", next=["null", "Node"], all={"type": "array", "items": "a.Node"})
    definition["fields"].append({"name": "price", "type": ["null", price], "default": None})
    leaf = {"x": 3, "next": None, "all": [], "price": Decimal("1.50") if kind == "AVRO" else 1.5}
    said = {"x": 1, "next": leaf | {"x": 2, "next": leaf}, "all": [leaf], "price": None}
    payload = avro(definition, said) if kind == "AVRO" else json.dumps(said).encode()
    publish(broker, kind, [definition], [entry(payload, 0)])
    (value,) = values(broker)
    shown = json.loads(json.dumps(said, default=str))
    assert value["x"] == 1 and value["price"] is None
    assert json.loads(value["next"]) == shown["next"]
    assert [json.loads(one) for one in value["all"]] == [shown["all"][0]]
    assert column_type(json.dumps(definition), is_json=kind == "JSON").spark == (
        "struct<x:int,next:string,all:array<string>,price:decimal(4,2)>"
    )


# -- logical types ---------------------------------------------------------------------------------------


def test_logical_types_that_columns_do_not_have_are_what_they_rest_on(broker: Any) -> None:
    fixed = {
        "type": "fixed",
        "name": "Money",
        "size": 8,
        "logicalType": "decimal",
        "precision": 10,
        "scale": 1,
    }
    definition = record(
        "R",
        id={"type": "string", "logicalType": "uuid"},
        at={"type": "int", "logicalType": "time-millis"},
        micros={"type": "long", "logicalType": "time-micros"},
        huge={"type": "bytes", "logicalType": "decimal", "precision": 50, "scale": 2},
        local={"type": "long", "logicalType": "local-timestamp-micros"},
        own={"type": "string", "logicalType": "of-ours"},
        money=fixed,
        again="Money",
        either=["null", "Money", "string"],
    )
    name = uuid.UUID(int=7)
    said = {
        "id": name,
        "at": datetime.time(0, 0, 1),
        "micros": datetime.time(0, 0, 1),
        "huge": Decimal("1.23"),
        "local": datetime.datetime(2026, 1, 2, 3, 4, 5, 6),
        "own": "x",
        "money": Decimal("12.5"),
        "again": Decimal("-0.5"),
        "either": Decimal("3.0"),
    }
    publish(broker, "AVRO", [definition], [entry(avro(definition, said), 0)])
    assert values(broker) == [
        {
            "id": str(name),
            "at": 1000,
            "micros": 1_000_000,
            "huge": (123).to_bytes(1, "big"),
            "local": said["local"],
            "own": "x",
            "money": Decimal("12.5"),
            "again": Decimal("-0.5"),
            "either": {"member0": Decimal("3.0"), "member1": None},
        }
    ]
