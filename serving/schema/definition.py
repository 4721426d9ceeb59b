"""One schema: its kind, its definition, its properties. A core.

The kinds and their numbers are Pulsar's. What the definition's bytes are depends on the kind:

    AVRO, JSON, PROTOBUF    an Avro definition in JSON, whatever the messages are encoded in
    PROTOBUF_NATIVE         JSON with a set of file descriptors and the name of the root message
    KEY_VALUE               4 length, the key's definition, 4 length, the value's; their kinds are properties
    all others              nothing: the kind says all

Two schemas are the same when their *fingerprints* are: kind and definition, prose and white space aside. Names and
properties do not change what bytes mean. Plain bytes are no schema and fit everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any, Final, NamedTuple

import msgspec

from quire.runtime.errors import ConfigurationError, QuireError
from quire.runtime.limits import SCHEMA_BYTES_MAX
from quire.serving.schema import avro
from quire.wire import pulsar_pb2 as pb

_Type = pb.Schema
KINDS: Final[Mapping[str, int]] = {
    "BYTES": _Type.Bytes,
    "STRING": _Type.String,
    "JSON": _Type.Json,
    "PROTOBUF": _Type.Protobuf,
    "AVRO": _Type.Avro,
    "BOOLEAN": _Type.Bool,
    "INT8": _Type.Int8,
    "INT16": _Type.Int16,
    "INT32": _Type.Int32,
    "INT64": _Type.Int64,
    "FLOAT": _Type.Float,
    "DOUBLE": _Type.Double,
    "DATE": _Type.Date,
    "TIME": _Type.Time,
    "TIMESTAMP": _Type.Timestamp,
    "KEY_VALUE": _Type.KeyValue,
    "INSTANT": _Type.Instant,
    "LOCAL_DATE": _Type.LocalDate,
    "LOCAL_TIME": _Type.LocalTime,
    "LOCAL_DATE_TIME": _Type.LocalDateTime,
    "PROTOBUF_NATIVE": _Type.ProtobufNative,
    "AUTO_CONSUME": _Type.AutoConsume,
}
"""As REST and properties name them."""

KIND_OF: Final = {number: name for name, number in KINDS.items()}
NO_SCHEMA: Final = frozenset(("BYTES", "AUTO_CONSUME"))
AVRO_KINDS: Final = frozenset(("AVRO", "JSON", "PROTOBUF"))
_ABSENT: Final = 0xFFFFFFFF
"""The length of a part without a definition, in Java's -1."""


class SchemaRefused(QuireError):
    """The schema does not fit those that the topic has, or its policy."""

    server_error = pb.IncompatibleSchema


class SchemaInvalid(ConfigurationError):
    """The definition is none of its kind."""

    server_error = pb.IncompatibleSchema


class Definition(NamedTuple):
    """See the top of the file; `kind` is one of `KINDS`."""

    kind: str
    data: bytes = b""
    properties: Mapping[str, str] = {}
    name: str = ""

    @classmethod
    def of(cls, message: pb.Schema) -> Definition:
        pairs: Any = message.properties
        properties = {item.key: item.value for item in pairs}
        return cls(KIND_OF[message.type], message.schema_data, properties, message.name)

    def message(self) -> pb.Schema:
        """For the wire."""
        pairs = [pb.KeyValue(key=key, value=value) for key, value in self.properties.items()]
        number: Any = KINDS[self.kind]
        return pb.Schema(name=self.name, schema_data=self.data, type=number, properties=pairs)

    @property
    def is_schema(self) -> bool:
        """False for plain bytes, and for a consumer that takes whatever the topic's schema is."""
        return self.kind not in NO_SCHEMA


def validate(definition: Definition) -> None:
    """Raise `SchemaInvalid` for what is no definition of its kind."""
    size = (
        len(definition.data)
        + len(definition.name)
        + sum(len(k) + len(v) for k, v in definition.properties.items())
    )
    if size > SCHEMA_BYTES_MAX:
        raise SchemaInvalid(f"a schema of {size} bytes is too large: {SCHEMA_BYTES_MAX} at most")
    kind = definition.kind
    if kind in AVRO_KINDS:
        parsed(definition)
    elif kind == "PROTOBUF_NATIVE":
        root_message(definition)
    elif kind == "KEY_VALUE":
        for part in key_and_value(definition):
            if part.kind == "KEY_VALUE":
                raise SchemaInvalid("a schema of keys and values cannot have another one within")
            validate(part)


def parsed(definition: Definition) -> avro.AvroType:
    """Of a kind whose definition is Avro's. Raises `SchemaInvalid`."""
    try:
        return avro.parse(definition.data)
    except avro.AvroError as error:
        raise SchemaInvalid(f"the {definition.kind} schema is no Avro definition: {error}") from None


def root_message(definition: Definition) -> str:
    """Of PROTOBUF_NATIVE: the full name of the message. Raises `SchemaInvalid`."""
    try:
        root = msgspec.json.decode(definition.data)["rootMessageTypeName"]
    except (ValueError, RecursionError, KeyError, TypeError):
        root = None
    if not isinstance(root, str) or not root:
        raise SchemaInvalid("the PROTOBUF_NATIVE schema does not name its rootMessageTypeName")
    return root


def key_and_value(definition: Definition) -> tuple[Definition, Definition]:
    """The two schemas of KEY_VALUE. Raises `SchemaInvalid`."""
    parts = list(_parts(definition.data))
    if len(parts) != 2:
        raise SchemaInvalid(
            "the KEY_VALUE schema must hold a key's definition and a value's, each after its length"
        )
    key, value = (
        Definition(_part_kind(definition, which), data)
        for which, data in zip(("key", "value"), parts, strict=True)
    )
    return key, value


def _parts(data: bytes) -> Iterator[bytes]:
    at = 0
    while at + 4 <= len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        size = 0 if size == _ABSENT else size
        if at + 4 + size > len(data):
            return
        yield data[at + 4 : at + 4 + size]
        at += 4 + size


def _part_kind(definition: Definition, which: str) -> str:
    kind = definition.properties.get(f"{which}.schema.type", "BYTES")
    if kind not in KINDS:
        raise SchemaInvalid(f"the KEY_VALUE schema has a {which} of the unknown type {kind!r}")
    return kind


def joined(key: bytes, value: bytes) -> bytes:
    """The definition of KEY_VALUE."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in (key, value))


def fingerprint(definition: Definition) -> str:
    """Equal for schemas that are the same; `validate` took it. 64 hex digits."""
    return sha256(b"\0".join(_essence(definition))).hexdigest()


def _essence(definition: Definition) -> Iterator[bytes]:
    yield definition.kind.encode()
    if definition.kind in AVRO_KINDS:
        yield avro.normal(definition.data)
    elif definition.kind == "KEY_VALUE":
        for part in key_and_value(definition):
            yield from _essence(part)
    else:
        yield definition.data


# -- as text, for REST ---------------------------------------------------------------------------------


def to_text(definition: Definition) -> str:
    """The definition as REST shows it: of keys and values a JSON object of the two."""
    if definition.kind != "KEY_VALUE":
        return definition.data.decode(errors="replace")
    key, value = (_json_or_text(part.data) for part in key_and_value(definition))
    return msgspec.json.encode({"key": key, "value": value}).decode()


def _json_or_text(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (ValueError, RecursionError):
        return data.decode(errors="replace")


def from_text(kind: str, text: str, properties: Mapping[str, str]) -> Definition:
    """The reverse. Raises `SchemaInvalid`."""
    if kind not in KINDS or kind in NO_SCHEMA:
        usable = ", ".join(name for name in KINDS if name not in NO_SCHEMA)
        raise SchemaInvalid(f"{kind!r} is not a type of schema: use {usable}")
    if kind != "KEY_VALUE":
        return Definition(kind, text.encode(), properties)
    try:
        parts = msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise SchemaInvalid(f"the KEY_VALUE schema is not JSON: {error}") from None
    if not isinstance(parts, dict) or not {"key", "value"} <= set(parts):
        raise SchemaInvalid("the KEY_VALUE schema must be a JSON object with key and value")
    return Definition(kind, joined(_part_bytes(parts["key"]), _part_bytes(parts["value"])), properties)


def _part_bytes(part: Any) -> bytes:
    return part.encode() if isinstance(part, str) else msgspec.json.encode(part)
