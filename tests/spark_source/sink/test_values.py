"""Structs by a topic's schema: what they become, what is refused, and that readers get back what was written."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from aiohttp import web
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from quire.runtime.errors import ConfigurationError, QuireError
from quire.serving.admin.app import make_app
from quire.serving.broker import Broker
from quire.spark_source.avro_types import column_type
from quire.spark_source.sink.options import SinkOptions, parse
from quire.spark_source.sink.rows import check_columns
from quire.spark_source.sink.task import TaskPlan, run
from quire.spark_source.sink.topic import Target, prepare, value_schema
from quire.spark_source.sink.values import Encoder, TopicSchema, definition_of, misfit
from quire.spark_source.sink.writer import arrow_schema, prepared
from quire.wire import avro
from tests.serving.conftest import BrokerHouse, in_thread
from tests.spark_source.sink.conftest import Sink

WHEN = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)

EVERY = pa.struct(
    [
        pa.field("flag", pa.bool_(), nullable=False),
        ("small", pa.int16()),
        ("number", pa.int32()),
        ("large", pa.int64()),
        ("ratio", pa.float32()),
        ("exact", pa.float64()),
        ("text", pa.string()),
        ("raw", pa.binary()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("price", pa.decimal128(10, 2)),
        ("tags", pa.list_(pa.string())),
        ("counts", pa.map_(pa.string(), pa.int64())),
        ("inner", pa.struct([("a", pa.int32()), ("deep", pa.struct([("b", pa.string())]))])),
    ]
)
ROW: dict[str, Any] = {
    "flag": True,
    "small": -5,
    "number": 1 << 30,
    "large": -(1 << 62),
    "ratio": 0.5,
    "exact": 1e-9,
    "text": "ä€",
    "raw": b"\x00\xff",
    "day": date(1969, 12, 31),
    "at": WHEN,
    "local": WHEN.replace(tzinfo=None),
    "price": Decimal("-12.30"),
    "tags": ["x", None],
    "counts": [("a", 1), ("b", None)],
    "inner": {"a": 1, "deep": {"b": "c"}},
}


def schema_of(struct: pa.StructType, kind: str = "AVRO") -> TopicSchema:
    return TopicSchema(kind, json.dumps(definition_of(struct)))


def read_back(schema: TopicSchema, payload: bytes) -> Any:
    """As the source reads it, into the Arrow type of the column."""
    column = column_type(schema.definition, is_json=schema.kind == "JSON")
    if schema.kind == "JSON":
        value = json.loads(payload)
    else:
        value = fastavro.schemaless_reader(
            io.BytesIO(payload), fastavro.parse_schema(json.loads(schema.definition)), None
        )
    return pa.array([column.convert(value)], column.arrow).to_pylist()[0]


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
def test_every_type_there_and_back(kind: str) -> None:
    schema = schema_of(EVERY, kind)
    encoder = Encoder(schema)
    [given] = pa.array([ROW], EVERY).to_pylist()
    assert read_back(schema, encoder.encode(given)) == given
    empty = dict.fromkeys(ROW) | {"flag": False}
    assert read_back(schema, encoder.encode(empty)) == empty


def record(*fields: Any) -> TopicSchema:
    return TopicSchema("AVRO", json.dumps({"type": "record", "name": "R", "fields": list(fields)}))


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1}
LONGEST = PRICE | {"precision": 38, "scale": 2}
COLOR = {"type": "enum", "name": "Color", "symbols": ["RED", "BLUE"]}
FOUR = {"type": "fixed", "name": "Four", "size": 4}


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("double", 3, 3.0),
        ("long", 3, 3),
        ("bytes", "text", b"text"),
        (
            MILLIS,
            datetime(2026, 1, 1, 0, 0, 0, 1999, tzinfo=UTC),
            datetime(2026, 1, 1, 0, 0, 0, 1000, tzinfo=UTC),
        ),
        (PRICE, Decimal("12.500"), Decimal("12.5")),
        (PRICE, 7, Decimal(7)),
        (LONGEST, Decimal("-" + "9" * 36 + ".99"), Decimal("-" + "9" * 36 + ".99")),
        (COLOR, "BLUE", "BLUE"),
        (FOUR, b"abcd", b"abcd"),
        (["null", "string"], None, None),
    ],
    ids=str,
)
def test_values_of_another_type_that_fits(kind: Any, value: Any, expected: Any) -> None:
    schema = record(field("x", kind))
    assert read_back(schema, Encoder(schema).encode({"x": value})) == {"x": expected}


@pytest.mark.parametrize(
    ("kind", "value", "sentence"),
    [
        ("int", 1 << 31, "value.x is 2147483648, but the schema has 32 bits there"),
        ("int", "1", "value.x is '1', but the schema has a whole number there"),
        ("int", True, "a whole number"),
        ("int", 1.0, "a whole number"),
        ("string", None, "value.x is null, but the schema does not allow null there"),
        ("string", b"a", "a text"),
        ("boolean", 1, "a boolean"),
        (PRICE, Decimal("1.25"), r"decimal\(4,1\)"),
        (PRICE, Decimal("12345"), r"decimal\(4,1\)"),
        (COLOR, "GREEN", "BLUE, RED"),
        (FOUR, b"abc", "3 bytes"),
        (MILLIS, 17, "a time"),
        ({"type": "int", "logicalType": "date"}, WHEN, "a date"),
        ({"type": "array", "items": "int"}, [1, "2"], r"value.x\[\] is '2'"),
        ({"type": "map", "values": "int"}, [("a", None)], r"value.x\{\} is null"),
        ({"type": "record", "name": "I", "fields": [field("a", "int")]}, {"a": 1, "b": 2}, "a field b"),
        ({"type": "record", "name": "I", "fields": [field("a", "int")]}, {}, "value.x.a is missing"),
    ],
    ids=str,
)
@pytest.mark.parametrize("encoding", ["AVRO", "JSON"])
def test_values_that_do_not_fit(kind: Any, value: Any, sentence: str, encoding: str) -> None:
    encoder = Encoder(record(field("x", kind))._replace(kind=encoding))
    with pytest.raises(ValueError, match=sentence):
        encoder.encode({"x": value})


def test_numbers_that_are_none_are_no_json() -> None:
    with pytest.raises(ValueError):
        Encoder(record(field("x", "double"))._replace(kind="JSON")).encode({"x": float("nan")})


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
def test_fields_with_a_default_may_be_missing(kind: str) -> None:
    inner = {"type": "record", "name": "I", "fields": [field("raw", ["bytes", "null"])]}
    defaults = [
        ("s", "string", "d", "d"),
        ("b", "bytes", "ÿ", b"\xff"),
        ("n", ["null", "int"], None, None),
        ("f", FOUR, "\u0001\u0002ab", b"\1\2ab"),
        ("p", PRICE, "\u0019", Decimal("2.5")),
        ("i", inner, {"raw": "ÿ"}, {"raw": b"\xff"}),
        ("l", {"type": "array", "items": "bytes"}, ["ÿ"], [b"\xff"]),
        ("m", {"type": "map", "values": "I"}, {"a": {"raw": None}}, [("a", {"raw": None})]),
    ]
    fields = [field(name, one, default=default) for name, one, default, _ in defaults]
    schema = record(field("x", "int"), *fields)._replace(kind=kind)
    found = read_back(schema, Encoder(schema).encode({"x": 1}))
    assert found == {"x": 1} | {name: value for name, _, _, value in defaults}
    column = column_type(schema.definition, is_json=kind == "JSON")
    assert pa.array([column.convert({"x": 1})], column.arrow).to_pylist() == [found]


@pytest.mark.parametrize(
    "definition",
    [
        field("x", ["int", "string"]),
        field("x", "Nobody"),
        field("x", "null"),
        field("x", {"type": "array"}),
        field("x", {"type": "record", "name": "I", "fields": [field("again", ["null", "I"])]}),
    ],
    ids=str,
)
def test_definitions_that_no_column_fits(definition: Any) -> None:
    with pytest.raises(ConfigurationError, match="cannot be written from a column"):
        Encoder(record(definition))


def test_types_within_objects_and_references_as_objects() -> None:
    fields = [
        field("a", {"type": {"type": "string", "avro.java.string": "String"}}),
        field("b", {"type": COLOR}),
        field("c", {"type": "Color"}),
        field("d", [{"type": "null"}, {"type": "int"}]),
    ]
    row = {"a": "x", "b": "RED", "c": "BLUE", "d": None}
    definition = avro.writer_json(avro.parse(record(*fields).definition))
    payload = Encoder(record(*fields)).encode(row)
    assert fastavro.schemaless_reader(io.BytesIO(payload), fastavro.parse_schema(definition), None) == row


def test_what_spark_calls_a_type() -> None:
    fields = [
        StructField("flag", BooleanType(), nullable=False),
        StructField("at", TimestampType()),
        StructField("local", TimestampNTZType()),
        StructField("counts", MapType(StringType(), LongType())),
        StructField("inner", StructType([StructField("tags", ArrayType(StringType(), containsNull=False))])),
    ]
    found = arrow_schema(StructType([StructField("value", StructType(fields))])).field("value").type
    definition = definition_of(found)
    assert [one["type"] for one in definition["fields"]] == [
        "boolean",
        ["null", {"type": "long", "logicalType": "timestamp-micros"}],
        ["null", {"type": "long", "logicalType": "local-timestamp-micros"}],
        ["null", {"type": "map", "values": ["null", "long"]}],
        ["null", definition_of(found.field("inner").type) | {"name": "Value_inner"}],
    ]
    row = {"flag": True, "at": WHEN, "local": None, "counts": [("a", 1)], "inner": {"tags": ["x"]}}
    schema = TopicSchema("AVRO", json.dumps(definition))
    assert read_back(schema, Encoder(schema).encode(row)) == row


def test_types_that_no_schema_has() -> None:
    with pytest.raises(ConfigurationError, match="month_day_nano_interval of x"):
        definition_of(pa.struct([("x", pa.month_day_nano_interval())]))
    with pytest.raises(ConfigurationError, match="'a b' is not a valid name of a schema field"):
        definition_of(pa.struct([("a b", pa.int32())]))


def test_columns_against_a_definition() -> None:
    definition = record(field("a", "int"), field("b", "int", default=1))
    assert misfit(definition, pa.struct([("a", pa.int32())])) == ""
    assert "no field c" in misfit(definition, pa.struct([("a", pa.int32()), ("c", pa.int32())]))
    assert "its field a has no default" in misfit(definition, pa.struct([("b", pa.int32())]))
    assert misfit(TopicSchema("AVRO", '"string"'), pa.struct([("a", pa.int32())])) == "it is not a record"


def test_a_struct_is_a_value_and_nothing_else() -> None:
    check_columns({"value": "struct<a:int>"})
    with pytest.raises(ConfigurationError, match="column key is of type struct"):
        check_columns({"value": "string", "key": "struct<a:int>"})


# -- with a broker ---------------------------------------------------------------------------------------

ORDER = pa.struct([("item", pa.string()), ("cents", pa.int64())])
COLUMNS = pa.schema([("value", ORDER), ("key", pa.string())])


@pytest.fixture
async def broker(house: BrokerHouse) -> AsyncIterator[Broker]:
    made = await house.start(deduplication=True)
    runner = web.AppRunner(make_app(made), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    made.addresses.http_url = f"http://{host}:{port}"
    yield made
    await runner.cleanup()


def options(broker: Broker, **given: str) -> SinkOptions:
    url = broker.addresses.http_url
    return parse({"service_url": url, "topic": "t", "enable_deduplication": "true", **given})


async def write(broker: Broker, given: SinkOptions, rows: list[dict[str, Any]]) -> Any:
    def whole() -> Any:
        target = prepared(given, COLUMNS)
        plan = TaskPlan(given, broker.service_url, target, 0, "spark-query", 0)
        return run(plan, [pa.RecordBatch.from_pylist(rows, COLUMNS)])

    return await in_thread(whole)


async def test_a_schema_is_registered_and_rows_are_written_by_it(broker: Broker) -> None:
    with pytest.raises(ConfigurationError, match=r"has no schema .* register_schema=true"):
        await write(broker, options(broker), [])
    rows = [{"value": {"item": f"i{i}", "cents": i}, "key": "k"} for i in range(20)]
    rows.append({"value": None, "key": "gone"})
    for kind in ("avro", "json"):
        given = options(broker, topic=kind, register_schema="true", schema_type=kind)
        written = await write(broker, given, rows)
        assert (written.rows, written.repeated) == (21, 0)
        assert (await write(broker, options(broker, topic=kind), rows)).repeated == 21, "by the same version"
        found = await Sink(broker).read(f"persistent://public/default/{kind}")
        assert {one.schema_version for one in found} == {bytes(8)}
        target = await in_thread(lambda given=given: value_schema(given, ORDER))
        back = [None if one.payload is None else read_back(target, one.payload) for one in found]
        assert back == [row["value"] for row in rows] and len(back) == 21


async def test_a_row_that_does_not_fit_is_named(broker: Broker) -> None:
    await in_thread(lambda: prepare(options(broker)))
    strict = record(field("item", "string"), field("cents", "long"))
    await in_thread(lambda: _post(broker, strict))
    rows: list[dict[str, Any]] = [{"value": {"item": "a", "cents": 1}}, {"value": {"item": None, "cents": 2}}]
    with pytest.raises(
        QuireError,
        match=r"row 1 of Spark partition 0 .*value.item is null, but the schema does not allow null",
    ):
        await write(broker, options(broker), rows)
    assert await Sink(broker).values() == []


def _post(broker: Broker, schema: TopicSchema) -> None:
    from quire.runtime.rest import Admin

    body = {"type": schema.kind, "schema": schema.definition, "properties": {}}
    Admin(broker.addresses.http_url).post("/admin/v2/schemas/public/default/t/schema", body)


async def test_columns_that_the_schema_does_not_have(broker: Broker) -> None:
    await in_thread(lambda: prepare(options(broker)))
    await in_thread(lambda: _post(broker, record(field("item", "string"))))
    with pytest.raises(ConfigurationError, match=r"version 0 of the schema of .*: it has no field cents"):
        await write(broker, options(broker), [])
    with pytest.raises(ConfigurationError, match="cannot be registered"):
        await write(broker, options(broker, register_schema="true"), [])
    await in_thread(lambda: _post(broker, record(field("item", "string"), field("cents", "long", default=0))))
    assert (await write(broker, options(broker), [{"value": {"item": "a", "cents": 3}}])).rows == 1


async def test_a_schema_of_another_kind_and_values_that_are_none(broker: Broker) -> None:
    await in_thread(lambda: prepare(options(broker)))
    await in_thread(lambda: _post(broker, TopicSchema("STRING", "")))
    with pytest.raises(ConfigurationError, match="is STRING"):
        await write(broker, options(broker), [])
    bytes_only = pa.schema([("value", pa.binary())])
    with pytest.raises(ConfigurationError, match="register_schema requires structs"):
        await in_thread(lambda: prepared(options(broker, register_schema="true"), bytes_only))
    found = await in_thread(lambda: prepared(options(broker), bytes_only))
    assert found == Target(0, None)
