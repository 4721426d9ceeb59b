"""Values typed by their topic's schema: all types, older and newer versions, and values that do not fit."""

from __future__ import annotations

import io
import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from quire.runtime.errors import ConfigurationError
from quire.spark_source.avro_types import column_type, written_with
from quire.spark_source.broker import Broker
from quire.spark_source.options import for_batch
from quire.spark_source.source import QuireDataSource, QuireReader
from quire.spark_source.values import BadValue, with_value_schema
from quire.wire.message import OutgoingMessage, encode_batch, encode_one

TIME_MS = 1_700_000_000_000
TOPIC = "persistent://public/default/t"


def record(name: str, /, **fields: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": key, "type": one} for key, one in fields.items()],
    }


def avro(definition: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(definition), value)
    return stream.getvalue()


def entry(payload: bytes | None, version: int | None, number: int = 0) -> bytes:
    wire = None if version is None else version.to_bytes(8, "big")
    return encode_one(OutgoingMessage(payload), "p", number, TIME_MS, schema_version=wire)


def publish(broker: Any, kind: str, definitions: list[Any], entries: list[bytes], counts: Any = None) -> None:
    broker.schemas[TOPIC] = [(kind, json.dumps(one)) for one in definitions]
    broker.topics[TOPIC] = [broker.segment(7, entries, counts)]


def read(broker: Any, **options: str) -> list[dict[str, Any]]:
    given = {"service_url": broker.url, "topic": "t", "value_schema": "auto", "columns": "value"} | options
    reader = QuireReader(with_value_schema(for_batch(given), Broker(broker.url)))
    reader = pickle.loads(pickle.dumps(reader))
    return [row for part in reader.partitions() for one in reader.read(part) for row in one.to_pylist()]


def values(broker: Any, **options: str) -> list[Any]:
    return [row["value"] for row in read(broker, **options)]


EVERYTHING = {
    "type": "record",
    "name": "a.b.Everything",
    "fields": [
        {"name": "truth", "type": "boolean"},
        {"name": "small", "type": "int"},
        {"name": "large", "type": "long"},
        {"name": "half", "type": "float"},
        {"name": "full", "type": "double"},
        {"name": "text", "type": "string"},
        {"name": "raw", "type": "bytes"},
        {"name": "maybe", "type": ["null", "string"], "default": None},
        {"name": "list", "type": {"type": "array", "items": "int"}},
        {"name": "map", "type": {"type": "map", "values": "long"}},
        {"name": "color", "type": {"type": "enum", "name": "Color", "symbols": ["RED", "BLUE"]}},
        {"name": "inner", "type": record("Inner", x="int")},
        {"name": "again", "type": ["null", "Inner"]},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    ],
}
SAID = {
    "truth": True,
    "small": -7,
    "large": 1 << 40,
    "half": 0.5,
    "full": 0.1,
    "text": "é",
    "raw": b"\x00\xff",
    "maybe": None,
    "list": [1, 2],
    "map": {"a": 1},
    "color": "RED",
    "inner": {"x": 3},
    "again": {"x": 4},
    "day": date(2026, 1, 2),
    "at": datetime(2026, 1, 2, 3, 4, 5, 6000, UTC),
    "price": Decimal("12.34"),
}
SEEN = SAID | {"map": [("a", 1)]}


def test_every_type_from_avro(broker: Any) -> None:
    publish(
        broker,
        "AVRO",
        [EVERYTHING],
        [entry(avro(EVERYTHING, SAID), 0), entry(None, 0), entry(avro(EVERYTHING, SAID), None)],
    )
    assert values(broker) == [SEEN, None, SEEN]


def test_every_type_from_json(broker: Any) -> None:
    said = SAID | {"raw": "AP8=", "day": 20455, "at": 1767323045006, "price": 12.34}
    publish(broker, "JSON", [EVERYTHING], [entry(json.dumps(said).encode(), 0)])
    assert values(broker) == [SEEN]


def test_sparks_words_for_every_type() -> None:
    made = column_type(json.dumps(EVERYTHING), is_json=False)
    assert made.spark == (
        "struct<truth:boolean,small:int,large:bigint,half:float,full:double,text:string,raw:binary,maybe:string,"
        "list:array<int>,map:map<string,bigint>,color:string,inner:struct<x:int>,again:struct<x:int>,day:date,"
        "at:timestamp,price:decimal(9,2)>"
    )


OLD = record("x.Order", item="string", cents="int", gone="string")
NEW = {
    "type": "record",
    "name": "y.Order",
    "fields": [
        {"name": "thing", "aliases": ["item"], "type": "string"},
        {"name": "cents", "type": "long"},
        {"name": "currency", "type": "string", "default": "EUR"},
    ],
}


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
def test_versions_become_the_newest_or_the_one_that_is_named(broker: Any, kind: str) -> None:
    def encode(definition: Any, value: Any) -> bytes:
        return avro(definition, value) if kind == "AVRO" else json.dumps(value).encode()

    old = encode(OLD, {"item": "tea", "cents": 5, "gone": "x"})
    new = encode(NEW, {"thing": "pot", "cents": 6, "currency": "USD"})
    batch = encode_batch([OutgoingMessage(new)] * 2, "p", 2, TIME_MS, schema_version=(1).to_bytes(8, "big"))
    publish(broker, kind, [OLD, NEW], [entry(old, 0), batch], [1, 2])
    pot = {"thing": "pot", "cents": 6, "currency": "USD"}
    assert values(broker) == [{"thing": "tea", "cents": 5, "currency": "EUR"}, pot, pot]
    assert values(broker, value_schema="0", end="7:1") == [{"item": "tea", "cents": 5, "gone": "x"}]
    with pytest.raises(BadValue, match=f"message 7:1:0 of {TOPIC} does not fit its schema: "):
        values(broker, value_schema="0")


@pytest.mark.parametrize("bad", [b"", b"\x80", avro(record("R", x="int"), {"x": 1}) + b"!"])
def test_avro_that_does_not_fit(broker: Any, bad: bytes) -> None:
    definition = record("R", x="int")
    good = entry(avro(definition, {"x": 3}), 0)
    publish(broker, "AVRO", [definition], [good, entry(bad, 0), good])
    with pytest.raises(BadValue, match=r"message 7:1 of .* on_bad_value=null"):
        values(broker)
    rows = read(broker, on_bad_value="null", columns="value,value_error,entry")
    assert [row["value"] for row in rows] == [{"x": 3}, None, {"x": 3}]
    assert [row["value_error"] is None for row in rows] == [True, False, True]
    assert [row["entry"] for row in rows] == [0, 1, 2]


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"x": "3"}, "x: '3' is not of type int"),
        ({"x": 1 << 31}, "x: 2147483648 is not of type int"),
        ({"x": True}, "x: True is not of type int"),
        ({}, "None is not of type int"),
        ([], "[] is not an object"),
        ({"x": 1, "t": "\ud800"}, "t: 'utf-8' codec can't encode"),
    ],
)
def test_json_that_does_not_fit(broker: Any, value: Any, sentence: str) -> None:
    definition = record("R", x="int", t=["null", "string"])
    definition["fields"][1]["default"] = None
    publish(
        broker,
        "JSON",
        [definition],
        [entry(json.dumps(value).encode(), 0), entry(b'{"x": 1}', 0), entry(b"{", 0)],
    )
    rows = read(broker, on_bad_value="null", columns="value,value_error")
    assert sentence in rows[0]["value_error"]
    assert rows[1] == {"value": {"x": 1, "t": None}, "value_error": None}
    assert rows[2]["value"] is None and "Expecting property name" in rows[2]["value_error"]


def test_a_version_that_is_gone(broker: Any) -> None:
    definition = record("R", x="int")
    publish(
        broker,
        "AVRO",
        [definition],
        [entry(avro(definition, {"x": 3}), 5), entry(avro(definition, {"x": 3}), 5)],
    )
    rows = read(broker, on_bad_value="null", columns="value,value_error")
    assert [row["value_error"] for row in rows] == [
        "it was written by version 5 of the schema, which the topic no longer has"
    ] * 2
    assert sum("/schema/5" in path for path in broker.requests) == 1


@pytest.mark.parametrize(
    ("kind", "definition", "options", "sentence"),
    [
        ("AVRO", record("R", x=["null"]), {}, "field value.x of the schema is always null"),
        ("AVRO", record("R", x="Other"), {}, "field value.x of the schema is a Other, which is not defined"),
        ("AVRO", record("R", x="null"), {}, "field value.x of the schema is always null"),
        ("AVRO", record("R"), {}, "field value of the schema is a record without fields"),
        (
            "AVRO",
            {"type": "record"},
            {},
            "the schema of value is not an Avro definition: it is of type record and",
        ),
        (
            "JSON",
            {"type": "record", "name": "R", "fields": [{"name": "x", "type": "int", "default": "one"}]},
            {},
            "field value.x of the schema has a default of another type: 'one' is not of type int; use",
        ),
        ("PROTOBUF", "", {}, "the values of topic .* is PROTOBUF, and only AVRO, JSON, BYTES, STRING"),
        ("AVRO", record("R", x="int"), {"value_schema": "3"}, "has no such schema; with value_schema=none"),
        ("AVRO", record("R", x="int"), {"value_schema": "newest"}, "is not auto, none or the number"),
        ("AVRO", record("R", x="int"), {"chunks": "raw"}, "do not go with value_schema"),
        (
            "AVRO",
            record("R", x="int"),
            {"on_bad_value": "null"},
            "columns key and value and the column value_error go",
        ),
        ("AVRO", record("R", x="int"), {"topic": "", "topics": "t,u"}, "t and .*u have different schemas"),
    ],
)
def test_refusals(broker: Any, kind: str, definition: Any, options: dict[str, str], sentence: str) -> None:
    publish(broker, kind, [definition], [])
    broker.schemas["persistent://public/default/u"] = [("AVRO", json.dumps(OLD))]
    given = {"service_url": broker.url, "topic": "t", "value_schema": "auto", "columns": "value"} | options
    with pytest.raises(ConfigurationError, match=sentence):
        QuireDataSource({key: value for key, value in given.items() if value}).schema()


@pytest.mark.parametrize(
    ("definition", "spark"),
    [
        # A name means the type of its own namespace.
        (record("R", a=record("a.X", x="int"), b=record("b.X", y="string"), c="a.X", d=["null", "b.X"]),
         "struct<a:struct<x:int>,b:struct<y:string>,c:struct<x:int>,d:struct<y:string>>"),
        ({**record("R", a={"type": "fixed", "name": "F", "size": 2}, b="com.F", c="F"), "namespace": "com"},
         "struct<a:binary,b:binary,c:binary>"),
        (record("R", a={**record("E", x="int"), "type": "error"}), "struct<a:struct<x:int>>"),
        (record("R", a={"type": {"type": "string"}}, b=[{"type": "null"}, "int"], c=[{"type": "int"}, "long"]),
         "struct<a:string,b:int,c:bigint>"),
        # Logical types that do not fit their type are ignored.
        (record("R", a={"type": "string", "logicalType": "date"}, b={"type": "long", "logicalType": 7}),
         "struct<a:string,b:bigint>"),
        (record("R", a={"type": "bytes", "logicalType": "decimal"},
                b={"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 3},
                c={"type": "fixed", "name": "F", "size": 1, "logicalType": "decimal", "precision": 3}),
         "struct<a:binary,b:binary,c:binary>"),
        # References back to a record that is being defined are JSON, later ones are the record.
        (record("R", s=["null", record("S", r=["null", "R"], s=["null", "S"])], t="S"),
         "struct<s:struct<r:string,s:string>,t:struct<r:string,s:string>>"),
        (record("R", a={"type": "map", "values": {"type": "array", "items": ["null", "float", "double"]}}),
         "struct<a:map<string,array<double>>>"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_json", [False, True])
def test_odd_definitions(definition: Any, spark: str, is_json: bool) -> None:
    text = json.dumps(definition)
    assert column_type(text, is_json=is_json).spark == spark
    fastavro.parse_schema(written_with(text))


def test_an_enum_reads_unknown_symbols_by_its_default_if_that_is_a_symbol() -> None:
    color = {"type": "enum", "name": "a.Color", "symbols": ["RED", "BLUE"]}
    assert column_type(json.dumps({**color, "default": "BLUE"}), is_json=True).convert("GREEN") == "BLUE"
    for other in ({}, {"default": "GREY"}):
        with pytest.raises(ValueError, match=r"'GREEN' is not a symbol of a\.Color"):
            column_type(json.dumps({**color, **other}), is_json=True).convert("GREEN")


def test_a_schema_that_changes_before_the_query_begins(broker: Any) -> None:
    from pyspark.sql.types import IntegerType, StructType

    publish(broker, "AVRO", [record("R", x="int")], [])
    source = QuireDataSource(
        {"service_url": broker.url, "topic": "t", "value_schema": "auto", "columns": "value"}
    )
    assert source.schema() == "`value` struct<`x`: int>"
    asked = StructType().add("value", StructType().add("x", IntegerType()))
    source.reader(asked)
    broker.schemas[TOPIC].append(("AVRO", json.dumps(record("R", x="int", y="int"))))
    with pytest.raises(ConfigurationError, match="has changed since"):
        source.reader(asked)
