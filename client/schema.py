"""Schemas, which encode and decode messages and are registered at the broker.

    @dataclass
    class Order:
        item: str
        cents: int = 0

    client.producer("orders", schema=JsonSchema(Order))             a Producer[Order]
    client.consumer("orders", "billing", schema=JsonSchema(Order))  messages have an Order as `.value`

A producer or consumer sends its schema to the broker, which registers it as a new version if it is compatible with the
topic's other versions, and else refuses it (`IncompatibleSchema`). Each message contains the version of its schema.
JSON is decoded by field names, with the reader's class only; Avro also needs the writer's schema, fetched once per
version.

| schema | in Python | on the wire |
|---|---|---|
| `BYTES` | bytes | no schema |
| `STRING` | str | UTF-8 |
| `JsonSchema(C)` | a dataclass or msgspec.Struct | JSON |
| `AvroSchema(C)` | a dataclass or msgspec.Struct | Avro (the extra `avro`) |
| `KeyValueSchema(K, V)` | a pair | key and value in the payload, or the key as the message's key |
| `AUTO` (consumers) | depends on the writer's schema; records are dicts | |
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from io import BytesIO
from typing import Any, Final, Generic, TypeVar

import msgspec

from quire.client.record import definition_of
from quire.runtime.errors import ConfigurationError
from quire.runtime.installation import pip_install
from quire.wire import avro
from quire.wire import pulsar_pb2 as pb
from quire.wire.key_value import join, split

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

_KIND_NAMES: Final[dict[int, str]] = {
    pb.Schema.Bytes: "BYTES",
    pb.Schema.String: "STRING",
    pb.Schema.Json: "JSON",
    pb.Schema.Avro: "AVRO",
}


class Schema(ABC, Generic[T]):
    """Encoder and decoder of values. Decoding raises ValueError, or an error that the value's class raises."""

    needs_writer = False
    """True if decoding requires the schema that the message was written with."""

    @property
    @abstractmethod
    def info(self) -> pb.Schema | None:
        """The schema for the broker, or None for plain bytes."""

    @abstractmethod
    def encode(self, value: T) -> bytes: ...

    @abstractmethod
    def decode(self, payload: bytes, key: bytes | None, writer: pb.Schema | None) -> T:
        """Decode a payload. `writer` is the schema that it was written with, if known."""

    def key_of(self, value: T) -> bytes | None:
        """Return the bytes for the message's key if the schema puts a part of the value there, else None."""
        return None


class _Bytes(Schema[bytes]):
    """Plain bytes, without a schema."""

    info = None

    def encode(self, value: bytes) -> bytes:
        return value if type(value) is bytes else bytes(memoryview(value))

    def decode(self, payload: bytes, key: bytes | None, writer: pb.Schema | None) -> bytes:
        return payload


class _Text(Schema[str]):
    """Text in UTF-8."""

    info = pb.Schema(name="String", schema_data=b"", type=pb.Schema.String)

    def encode(self, value: str) -> bytes:
        return value.encode()

    def decode(self, payload: bytes, key: bytes | None, writer: pb.Schema | None) -> str:
        return payload.decode()


BYTES: Final[Schema[bytes]] = _Bytes()
STRING: Final[Schema[str]] = _Text()


class _Record(Schema[T]):
    """Schema of a class, as an Avro definition in JSON."""

    kind: pb.Schema.Type

    def __init__(self, of: type[T]) -> None:
        self._of = of
        definition = definition_of(of)
        if not isinstance(definition, dict) or definition["type"] != "record":
            raise ConfigurationError(f"a schema needs a dataclass or a msgspec.Struct, not {of}")
        data = json.dumps(definition, separators=(",", ":")).encode()
        self._info = pb.Schema(name=of.__name__, schema_data=data, type=self.kind)
        self.definition = definition

    @property
    def info(self) -> pb.Schema:
        return self._info


class JsonSchema(_Record[T]):
    """Objects of a dataclass or `msgspec.Struct`, encoded as JSON."""

    kind = pb.Schema.Json

    def __init__(self, of: type[T]) -> None:
        super().__init__(of)
        self._decoder = msgspec.json.Decoder(of)

    def encode(self, value: T) -> bytes:
        return msgspec.json.encode(value)

    def decode(self, payload: bytes, key: bytes | None, writer: pb.Schema | None) -> T:
        return self._decoder.decode(payload)


class AvroSchema(_Record[T]):
    """Objects of a dataclass or `msgspec.Struct`, in Avro's binary encoding."""

    kind = pb.Schema.Avro
    needs_writer = True

    def __init__(self, of: type[T]) -> None:
        super().__init__(of)
        self._codec = AvroCodec(self.definition)

    def encode(self, value: T) -> bytes:
        return self._codec.encode(msgspec.to_builtins(value, builtin_types=(bytes,)))

    def decode(self, payload: bytes, key: bytes | None, writer: pb.Schema | None) -> T:
        plain = self._codec.decode(payload, writer.schema_data if writer is not None else None)
        return msgspec.convert(plain, self._of)


class KeyValueSchema(Schema[tuple[K, V]]):
    """Pairs of key and value. With `separated`, the key is the message's key, used for partitions and compaction."""

    def __init__(self, key: Schema[K], value: Schema[V], *, separated: bool = False) -> None:
        self.key, self.value, self.separated = key, value, separated
        self.needs_writer = key.needs_writer or value.needs_writer
        parts = [key.info or _no_schema(), value.info or _no_schema()]
        properties = {"kv.encoding.type": "SEPARATED" if separated else "INLINE"}
        for which, part in zip(("key", "value"), parts, strict=True):
            properties[f"{which}.schema.name"] = part.name
            properties[f"{which}.schema.type"] = _KIND_NAMES[part.type]
            properties[f"{which}.schema.properties"] = "{}"
        pairs = [pb.KeyValue(key=name, value=text) for name, text in properties.items()]
        data = join(*(part.schema_data for part in parts))
        self._info = pb.Schema(name="KeyValue", schema_data=data, type=pb.Schema.KeyValue, properties=pairs)

    @property
    def info(self) -> pb.Schema:
        return self._info

    def encode(self, value: tuple[K, V]) -> bytes:
        encoded = self.value.encode(value[1])
        return encoded if self.separated else join(self.key.encode(value[0]), encoded)

    def key_of(self, value: tuple[K, V]) -> bytes | None:
        return self.key.encode(value[0]) if self.separated else None

    def decode(self, payload: bytes, key: bytes | None, writer: pb.Schema | None) -> tuple[K, V]:
        writers = key_and_value(writer) if writer is not None else (None, None)
        if not self.separated:
            key, payload = _parts(payload)
        return self.key.decode(key or b"", None, writers[0]), self.value.decode(payload, None, writers[1])


class _Auto(Schema[Any]):
    """Decodes with the schema that the message was written with."""

    needs_writer = True
    info = pb.Schema(name="", schema_data=b"", type=pb.Schema.AutoConsume)

    def __init__(self) -> None:
        self._codecs: dict[bytes, AvroCodec] = {}

    def encode(self, value: Any) -> bytes:
        raise ConfigurationError("AUTO is for consumers only; a producer needs a schema")

    def decode(self, payload: bytes, key: bytes | None, writer: pb.Schema | None) -> Any:
        kind = writer.type if writer is not None else pb.Schema.Bytes
        if writer is None or kind == pb.Schema.Bytes:
            return payload
        if kind == pb.Schema.String:
            return payload.decode()
        if kind == pb.Schema.Json:
            return msgspec.json.decode(payload)
        if kind == pb.Schema.Avro:
            if writer.schema_data not in self._codecs:
                self._codecs[writer.schema_data] = AvroCodec(avro.writer_json(avro.parse(writer.schema_data)))
            return self._codecs[writer.schema_data].decode(payload, None)
        if kind == pb.Schema.KeyValue:
            return self._pair(payload, key, writer)
        raise ValueError(
            f"messages with the schema type {pb.Schema.Type.Name(kind)} are not supported by AUTO"
        )

    def _pair(self, payload: bytes, key: bytes | None, writer: pb.Schema) -> tuple[Any, Any]:
        if _property(writer, "kv.encoding.type") != "SEPARATED":
            key, payload = _parts(payload)
        key_writer, value_writer = key_and_value(writer)
        return self.decode(key or b"", None, key_writer), self.decode(payload, None, value_writer)


AUTO: Final[Schema[Any]] = _Auto()


class AvroCodec:
    """Encoder and decoder of one Avro definition."""

    def __init__(self, definition: Any) -> None:
        try:
            import fastavro
        except ImportError:
            raise ConfigurationError(f"Avro needs the package fastavro: {pip_install('avro')}") from None
        self._fastavro = fastavro
        self._definition = definition
        self._own = fastavro.parse_schema(definition)
        self._pairs: dict[bytes, tuple[Any, Any]] = {}
        """Pairs of the parsed writer's schema and reader's schema, by the writer's definition."""

    def encode(self, plain: Any) -> bytes:
        buffer = BytesIO()
        self._fastavro.schemaless_writer(buffer, self._own, plain)
        return buffer.getvalue()

    def decode(self, payload: bytes, written_with: bytes | None) -> Any:
        """Decode a payload to this definition. Raises ValueError.

        `written_with` is the definition that it was written with, or None if it was this one.
        """
        if written_with is None:
            return self._read(payload, self._own, None)
        if written_with not in self._pairs:
            self._pairs[written_with] = self._pair(avro.parse(written_with))
        return self._read(payload, *self._pairs[written_with])

    def _pair(self, writer: avro.AvroType) -> tuple[Any, Any]:
        """Return the parsed writer's and reader's schemas. The reader's has the writer's name as an alias."""
        aliases = {"aliases": [writer.full_name]} if isinstance(writer, avro.Record) else {}
        return (
            self._fastavro.parse_schema(avro.writer_json(writer)),
            self._fastavro.parse_schema({**self._definition, **aliases}),
        )

    def _read(self, payload: bytes, writer: Any, reader: Any) -> Any:
        try:
            return self._fastavro.schemaless_reader(BytesIO(payload), writer, reader)
        except (
            EOFError,
            IndexError,
            KeyError,
            TypeError,
            self._fastavro.read.SchemaResolutionError,
        ) as error:
            raise ValueError(
                f"the message does not match the Avro schema: {type(error).__name__} {error}"
            ) from None


def key_and_value(pair: pb.Schema) -> tuple[pb.Schema, pb.Schema]:
    """Split a key-value schema into the schemas of keys and values. Raises ValueError."""
    kinds = {name: number for number, name in _KIND_NAMES.items()}
    found = []
    for which, data in zip(("key", "value"), _parts(pair.schema_data), strict=True):
        name = _property(pair, f"{which}.schema.type")
        if name not in kinds:
            raise ValueError(f"the {which} has the schema type {name}, which is not supported")
        number: Any = kinds[name]
        found.append(pb.Schema(name=which, schema_data=data, type=number))
    return found[0], found[1]


def _property(schema: pb.Schema, name: str) -> str:
    pairs: Any = schema.properties
    return next((str(one.value) for one in pairs if one.key == name), "")


def _no_schema() -> pb.Schema:
    return pb.Schema(name="", schema_data=b"", type=pb.Schema.Bytes)


def _parts(data: bytes) -> tuple[bytes, bytes]:
    """Split a pair into key and value, each empty if it is null. Raises ValueError."""
    key, value = split(data)
    return key or b"", value or b""
