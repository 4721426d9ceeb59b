"""One schema: its kind, its definition, its properties. Performs no I/O.

The kinds and their numbers are Pulsar's. The definition's bytes depend on the kind:

    AVRO, JSON, PROTOBUF    an Avro definition in JSON, whatever the encoding of messages
    PROTOBUF_NATIVE         JSON with a set of file descriptors and the name of the root message
    KEY_VALUE               the key's definition and the value's, see `wire.key_value`; their kinds are properties
    all others              empty: the kind is sufficient

Two schemas are equal if their *fingerprints* are: kind and definition, without documentation and white space. Names and
properties do not change the meaning of bytes. Plain bytes have no schema and are compatible with everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from quire.runtime.errors import ConfigurationError, QuireError
from quire.runtime.limits import SCHEMA_BYTES_MAX
from quire.wire import key_value
from quire.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    from quire.wire import avro

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
"""Schema types' numbers in the protocol, by their names in REST and in properties."""

KIND_OF: Final = {number: name for name, number in KINDS.items()}
NO_SCHEMA: Final = frozenset(("BYTES", "AUTO_CONSUME"))
AVRO_KINDS: Final = frozenset(("AVRO", "JSON", "PROTOBUF"))


class SchemaRefused(QuireError):
    """Rejection of a schema that is incompatible with the topic's schemas or its policy."""

    server_error = pb.IncompatibleSchema


class SchemaInvalid(ConfigurationError):
    """Error for a definition that is invalid for its type."""

    server_error = pb.IncompatibleSchema


class Definition(NamedTuple):
    """Schema; see the module's docstring. `kind` is one of `KINDS`."""

    kind: str
    data: bytes = b""
    properties: Mapping[str, str] = {}
    name: str = ""

    @classmethod
    def of(cls, message: pb.Schema) -> Definition:
        pairs: Any = message.properties
        properties = {item.key: item.value for item in pairs}
        return cls(KIND_OF[message.type], message.schema_data, properties, message.name)

    @property
    def size_bytes(self) -> int:
        """Size of the schema's data, name and properties; name and properties are counted in characters."""
        of_properties = sum(len(key) + len(value) for key, value in self.properties.items())
        return len(self.data) + len(self.name) + of_properties

    def message(self) -> pb.Schema:
        """Return the schema as a protobuf message."""
        pairs = [pb.KeyValue(key=key, value=value) for key, value in self.properties.items()]
        number: Any = KINDS[self.kind]
        return pb.Schema(name=self.name, schema_data=self.data, type=number, properties=pairs)

    @property
    def is_schema(self) -> bool:
        """False for plain bytes, and for a consumer that uses the topic's schema, whatever it is (AUTO_CONSUME)."""
        return self.kind not in NO_SCHEMA


def validate(definition: Definition) -> None:
    """Check a definition. Raises `SchemaInvalid` if it is invalid for its type."""
    size = definition.size_bytes
    if size > SCHEMA_BYTES_MAX:
        raise SchemaInvalid(f"a schema of {size} bytes is too large: the limit is {SCHEMA_BYTES_MAX} bytes")
    kind = definition.kind
    if kind in AVRO_KINDS:
        parsed(definition)
    elif kind == "PROTOBUF_NATIVE":
        root_message(definition)
    elif kind == "KEY_VALUE":
        for part in key_and_value(definition):
            if part.kind == "KEY_VALUE":
                raise SchemaInvalid("a KEY_VALUE schema cannot contain another KEY_VALUE schema")
            validate(part)


def parsed(definition: Definition) -> avro.AvroType:
    """Parse the definition of a type that uses Avro definitions. Raises `SchemaInvalid`."""
    from quire.wire import avro  # a broker starts before the first schema

    try:
        return avro.parse(definition.data)
    except avro.AvroError as error:
        raise SchemaInvalid(f"the {definition.kind} schema has no valid Avro definition: {error}") from None


def root_message(definition: Definition) -> str:
    """Return the full name of the message in a PROTOBUF_NATIVE schema. Raises `SchemaInvalid`."""
    try:
        root = msgspec.json.decode(definition.data)["rootMessageTypeName"]
    except (ValueError, RecursionError, KeyError, TypeError):
        root = None
    if not isinstance(root, str) or not root:
        raise SchemaInvalid("the PROTOBUF_NATIVE schema has no rootMessageTypeName")
    return root


def key_and_value(definition: Definition) -> tuple[Definition, Definition]:
    """Return the two schemas of a KEY_VALUE schema. Raises `SchemaInvalid`."""
    try:
        parts = key_value.split(definition.data)
    except ValueError:
        raise SchemaInvalid(
            "the KEY_VALUE schema must contain the definitions of key and value, each after its length"
        ) from None
    key, value = (
        Definition(_part_kind(definition, which), data or b"")
        for which, data in zip(("key", "value"), parts, strict=True)
    )
    return key, value


def _part_kind(definition: Definition, which: str) -> str:
    kind = definition.properties.get(f"{which}.schema.type", "BYTES")
    if kind not in KINDS:
        raise SchemaInvalid(f"the KEY_VALUE schema has a {which} of unknown type {kind!r}")
    return kind


def fingerprint(definition: Definition) -> str:
    """Return 64 hex digits that are equal for equal schemas. The schema must have passed `validate`."""
    return sha256(b"\0".join(_essence(definition))).hexdigest()


def _essence(definition: Definition) -> Iterator[bytes]:
    yield definition.kind.encode()
    if definition.kind in AVRO_KINDS:
        from quire.wire import avro

        yield avro.normal(definition.data)
    elif definition.kind == "KEY_VALUE":
        for part in key_and_value(definition):
            yield from _essence(part)
    else:
        yield definition.data


# -- as text, for REST ---------------------------------------------------------------------------------


def to_text(definition: Definition) -> str:
    """Return the definition in the form of REST: for KEY_VALUE, a JSON object with both definitions."""
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
    """Parse a definition in the form of REST. Raises `SchemaInvalid`."""
    if kind not in KINDS or kind in NO_SCHEMA:
        usable = ", ".join(name for name in KINDS if name not in NO_SCHEMA)
        raise SchemaInvalid(f"invalid schema type {kind!r}: use {usable}")
    if kind != "KEY_VALUE":
        return Definition(kind, text.encode(), properties)
    try:
        parts = msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise SchemaInvalid(f"the KEY_VALUE schema is not valid JSON: {error}") from None
    if not isinstance(parts, dict) or not {"key", "value"} <= set(parts):
        raise SchemaInvalid("the KEY_VALUE schema must be a JSON object with key and value")
    return Definition(
        kind, key_value.join(_part_bytes(parts["key"]), _part_bytes(parts["value"])), properties
    )


def _part_bytes(part: Any) -> bytes:
    return part.encode() if isinstance(part, str) else msgspec.json.encode(part)
