"""Typed producers and consumers: JSON, Avro, pairs; versions; refusals; beside the stock client, both ways."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import msgspec
import pulsar
import pulsar.schema
import pytest

from quire.client import (
    AUTO,
    BYTES,
    EARLIEST,
    STRING,
    AvroSchema,
    Client,
    IncompatibleSchema,
    Int,
    JsonSchema,
    KeyValueSchema,
    Schema,
)
from quire.client.record import definition_of
from quire.client.schema import AvroCodec
from quire.runtime.errors import ConfigurationError
from quire.wire import avro
from quire.wire import pulsar_pb2 as pb
from tests.serving.conftest import in_thread


@dataclass
class Order:
    item: str


@dataclass
class Priced:
    item: str
    cents: Int | None = None


@dataclass
class Strict:
    item: str
    euros: int


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Part(msgspec.Struct):
    name: str
    weight: float = 1.0


@dataclass
class Machine:
    id: int
    active: bool
    raw: bytes
    parts: list[Part] = field(default_factory=list)
    spare: Part | None = None
    by_name: dict[str, Int] = field(default_factory=dict)
    colour: Colour = Colour.RED


@dataclass
class Kit:
    part: Part | None = None


MACHINE = Machine(7, True, b"\0\xff", [Part("a"), Part("b", 2.5)], Part("c"), {"x": 1}, Colour.BLUE)


class StockOrder(pulsar.schema.Record):  # type: ignore[misc]
    item = pulsar.schema.String(required=True)


class StockPriced(pulsar.schema.Record):  # type: ignore[misc]
    item = pulsar.schema.String(required=True)
    cents = pulsar.schema.Integer(required_default=True)


# -- Definitions ---------------------------------------------------------------------------------------


def test_a_class_as_avro_defines_it() -> None:
    assert definition_of(Priced) == {
        "type": "record",
        "name": "Priced",
        "fields": [
            {"name": "item", "type": "string"},
            {"name": "cents", "type": ["null", "int"], "default": None},
        ],
    }
    by_name = {one["name"]: one for one in definition_of(Machine)["fields"]}
    assert by_name["parts"]["type"]["items"]["name"] == "Part"
    assert by_name["spare"] == {"name": "spare", "type": ["null", "Part"], "default": None}
    assert by_name["by_name"]["type"] == {"type": "map", "values": "int"}
    assert by_name["colour"]["type"] == {"type": "enum", "name": "Colour", "symbols": ["red", "blue"]}
    assert by_name["colour"]["default"] == "red"
    for wrong in (int, set[int], dict[int, int]):
        with pytest.raises(ConfigurationError, match="schema"):
            JsonSchema(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [JsonSchema, AvroSchema])
def test_there_and_back(kind: type[JsonSchema[Machine]]) -> None:
    schema = kind(Machine)
    assert schema.decode(schema.encode(MACHINE), None, schema.info) == MACHINE


def test_bytes_that_fit_no_definition() -> None:
    schema = AvroSchema(Machine)
    for payload in (b"", b"\x02", schema.encode(MACHINE)[:-3]):
        with pytest.raises(ValueError, match="Avro"):
            schema.decode(payload, None, None)
    with pytest.raises(ValueError):
        JsonSchema(Machine).decode(b'{"id": "x"}', None, None)


def written_by(definition: dict[str, Any], value: Any) -> tuple[bytes, pb.Schema]:
    """Return a value's bytes, and the schema of the producer that wrote them."""
    data = json.dumps(definition).encode()
    payload = AvroCodec(avro.writer_json(avro.parse(data))).encode(value)
    return payload, pb.Schema(name="", schema_data=data, type=pb.Schema.Avro)


PART = {"type": "record", "name": "Part", "fields": [{"name": "name", "type": "string"}]}


@pytest.mark.parametrize("name", ["Kit", "com.acme.Kit", "com.acme.Outer$Kit", "Part", "com.acme.Part"])
def test_a_writer_may_have_any_name(name: str) -> None:
    """Also that of a class within the reader's: a Java class has another name than a Python class."""
    inner = PART | {"name": "inner.Part"}
    kit = {"type": "record", "name": name, "fields": [{"name": "part", "type": ["null", inner]}]}
    payload, writer = written_by(kit, {"part": {"name": "a"}})
    assert AvroSchema(Kit).decode(payload, None, writer) == Kit(Part("a"))


def test_auto_reads_types_within_objects() -> None:
    """As Java's libraries write them; `fastavro` alone refuses them."""
    fields = [{"name": "a", "type": {"type": {"type": "string"}}}, {"name": "b", "type": {"type": PART}}]
    payload, writer = written_by(
        {"type": "record", "name": "R", "fields": [*fields, {"name": "c", "type": {"type": "Part"}}]},
        value := {"a": "x", "b": {"name": "y"}, "c": {"name": "z"}},
    )
    assert AUTO.decode(payload, None, writer) == value
    with pytest.raises(ValueError, match="defined nowhere"):
        AUTO.decode(payload, None, pb.Schema(name="", schema_data=b'"Nobody"', type=pb.Schema.Avro))


# -- A real broker -------------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", [JsonSchema(Machine), AvroSchema(Machine)])
async def test_values_come_as_they_went(ours: Client, schema: Schema[Machine]) -> None:
    async with ours.producer("t", schema=schema) as producer:
        await producer.send(MACHINE, key="k")
        await producer.send(None, key="k")
    async with ours.consumer("t", "s", schema=schema, start=EARLIEST) as consumer:
        one, deleted = [await consumer.receive(10) for _ in range(2)]
        assert (one.value, one.key, deleted.value) == (MACHINE, "k", None)
        assert int.from_bytes(one.schema_version, "big") == 0


async def test_text_and_bytes(ours: Client) -> None:
    async with ours.producer("t", schema=STRING) as producer:
        await producer.send("grüße")
    async with ours.consumer("t", "s", schema=STRING, start=EARLIEST) as consumer:
        assert (await consumer.receive(10)).value == "grüße"
    async with ours.producer("u") as plain, ours.consumer("u", "s") as consumer:
        await plain.send(b"x")
        await plain.send(bytearray(b"y"))
        found = [await consumer.receive(10) for _ in range(2)]
        assert [one.value for one in found] == [one.payload for one in found] == [b"x", b"y"]
        assert not found[0].schema_version


@pytest.mark.parametrize("kind", [JsonSchema, AvroSchema])
async def test_versions_and_what_does_not_fit(ours: Client, kind: type[JsonSchema[Order]]) -> None:
    for schema, value in ((kind(Order), Order("paper")), (kind(Priced), Priced("ink", 7))):
        async with ours.producer("t", schema=schema) as producer:  # type: ignore[arg-type]
            await producer.send(value)
    with pytest.raises(IncompatibleSchema):
        await ours.producer("t", schema=kind(Strict)).start()  # type: ignore[arg-type]
    async with ours.consumer("t", "s", schema=kind(Priced), start=EARLIEST) as consumer:  # type: ignore[arg-type]
        found = [await consumer.receive(10) for _ in range(2)]
    assert [one.value for one in found] == [Priced("paper"), Priced("ink", 7)]
    assert [int.from_bytes(one.schema_version, "big") for one in found] == [0, 1]
    async with ours.consumer("t", "auto", schema=AUTO, start=EARLIEST) as consumer:
        found = [await consumer.receive(10) for _ in range(2)]
    assert [one.value for one in found] == [{"item": "paper"}, {"item": "ink", "cents": 7}]


async def test_messages_wait_for_their_schema_in_order(ours: Client) -> None:
    async with ours.consumer("t", "s", schema=AvroSchema(Priced)) as consumer:
        async with ours.producer("t", schema=AvroSchema(Order)) as producer:
            for i in range(5):
                await producer.send(Order(str(i)))
        async with ours.producer("t", schema=AvroSchema(Priced)) as later:
            await later.send(Priced("5", 1))
        assert [(await consumer.receive(10)).value.item for _ in range(6)] == [str(i) for i in range(6)]


@pytest.mark.parametrize("separated", [True, False])
async def test_pairs(ours: Client, separated: bool) -> None:
    schema = KeyValueSchema(STRING, AvroSchema(Order), separated=separated)
    newer = KeyValueSchema(STRING, AvroSchema(Priced), separated=separated)
    async with ours.producer("t", schema=schema) as producer:
        await producer.send(("a", Order("paper")))
    async with ours.producer("t", schema=newer) as another:
        await another.send(("b", Priced("ink", 7)))
    with pytest.raises(IncompatibleSchema):
        await ours.producer("t", schema=KeyValueSchema(STRING, AvroSchema(Strict))).start()
    async with ours.consumer("t", "s", schema=newer, start=EARLIEST) as consumer:
        found = [await consumer.receive(10) for _ in range(2)]
        assert [one.value for one in found] == [("a", Priced("paper")), ("b", Priced("ink", 7))]
        assert [one.key_bytes for one in found] == ([b"a", b"b"] if separated else [None, None])
    async with ours.reader("t", schema=AUTO, start=EARLIEST) as reader:
        assert (await reader.read(10)).value == ("a", {"item": "paper"})


async def test_pairs_of_plain_bytes(ours: Client) -> None:
    schema = KeyValueSchema(BYTES, BYTES, separated=True)
    async with (
        ours.producer("t", schema=schema) as producer,
        ours.consumer("t", "s", schema=schema) as consumer,
    ):
        await producer.send((b"\0\xff", b"x"))
        assert (await consumer.receive(10)).value == (b"\0\xff", b"x")


# -- The stock client ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["Json", "Avro"])
async def test_the_stock_client_reads_ours(ours: Client, stock: pulsar.Client, kind: str) -> None:
    own: dict[str, Schema[Priced]] = {"Json": JsonSchema(Priced), "Avro": AvroSchema(Priced)}
    theirs = {"Json": pulsar.schema.JsonSchema, "Avro": pulsar.schema.AvroSchema}[kind]
    async with ours.producer("t", schema=own[kind]) as producer:
        await producer.send(Priced("ink", 7))
        await producer.send(Priced("paper"))

    def read() -> list[tuple[str, int | None]]:
        consumer = stock.subscribe(
            "t", "s", schema=theirs(StockPriced), initial_position=pulsar.InitialPosition.Earliest
        )
        found = [consumer.receive(10_000).value() for _ in range(2)]
        return [(one.item, one.cents) for one in found]

    assert await in_thread(read) == [("ink", 7), ("paper", None)]


@pytest.mark.parametrize("kind", ["Json", "Avro"])
async def test_we_read_the_stock_clients(ours: Client, stock: pulsar.Client, kind: str) -> None:
    own: dict[str, Schema[Priced]] = {"Json": JsonSchema(Priced), "Avro": AvroSchema(Priced)}
    theirs = {"Json": pulsar.schema.JsonSchema, "Avro": pulsar.schema.AvroSchema}[kind]

    def write() -> None:
        stock.create_producer("t", schema=theirs(StockOrder)).send(StockOrder(item="paper"))
        stock.create_producer("t", schema=theirs(StockPriced)).send(StockPriced(item="ink", cents=7))

    await in_thread(write)
    async with ours.consumer("t", "s", schema=own[kind], start=EARLIEST) as consumer:
        found = [(await consumer.receive(10)).value for _ in range(2)]
    assert found == [Priced("paper"), Priced("ink", 7)]


async def test_the_same_avro_bytes_as_the_stock_client() -> None:
    theirs = pulsar.schema.AvroSchema(StockPriced).encode(StockPriced(item="ink", cents=7))
    assert AvroSchema(Priced).encode(Priced("ink", 7)) == theirs
    info = AvroSchema(Priced).info
    assert json.loads(info.schema_data)["fields"][0] == StockPriced.schema()["fields"][0]
