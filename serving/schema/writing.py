"""Values of messages from text that an operator typed, by the topic's schema. Performs no I/O.

This is the reverse of `reading`, for the types that can be typed as text or JSON. Values of other types are refused: a
client publishes them.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import Any, Final, NamedTuple

import msgspec
from google.protobuf import json_format

from quire.runtime.errors import ConfigurationError
from quire.serving.schema import avro_writing
from quire.serving.schema.definition import Definition, key_and_value, parsed
from quire.serving.schema.reading import protobuf_class
from quire.wire import key_value

_WHOLE: Final = {
    "INT8": Struct(">b"),
    "INT16": Struct(">h"),
    "INT32": Struct(">i"),
    "INT64": Struct(">q"),
    "DATE": Struct(">q"),
    "TIME": Struct(">q"),
    "TIMESTAMP": Struct(">q"),
}
_REAL: Final = {"FLOAT": Struct(">f"), "DOUBLE": Struct(">d")}


class Written(NamedTuple):
    payload: bytes
    key: bytes | None = None
    """Key of the message, if the schema defines it (KEY_VALUE with SEPARATED encoding)."""


def written(text: str, definition: Definition | None) -> Written:
    """Return the value that `text` describes; UTF-8 without a schema. Raises `ConfigurationError`."""
    if definition is None or not definition.is_schema:
        return Written(text.encode())
    if definition.kind == "STRING":
        return Written(text.encode())
    try:
        value = _json(text)
        if definition.kind == "KEY_VALUE":
            return _pair(definition, value)
        raw = _raw(definition, value)
        return Written(text.encode() if definition.kind == "JSON" else raw)
    except (ValueError, RecursionError) as error:
        reason = str(error) or type(error).__name__
        raise ConfigurationError(
            f"the value does not match the topic's schema ({definition.kind}): {reason[:500]}"
        ) from None


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text.encode())
    except msgspec.DecodeError as error:
        raise ValueError(f"it is not JSON: {error}") from None


def _pair(definition: Definition, value: Any) -> Written:
    if not isinstance(value, dict) or value.keys() != {"key", "value"}:
        raise ValueError('it must be an object such as {"key": …, "value": …}')
    of_key, of_value = key_and_value(definition)
    key, payload = _raw(of_key, value["key"]), _raw(of_value, value["value"])
    if definition.properties.get("kv.encoding.type") == "SEPARATED":
        return Written(payload, key)
    return Written(key_value.join(key, payload))


def _raw(definition: Definition, value: Any) -> bytes:
    """Encode a JSON value. Raises ValueError."""
    kind = definition.kind
    if not definition.is_schema or kind == "STRING":
        if not isinstance(value, str):
            raise ValueError(f"text is expected, not {type(value).__name__}")
        return value.encode()
    if kind == "AVRO":
        return avro_writing.write(parsed(definition), value)
    if kind == "JSON":
        avro_writing.validate(parsed(definition), value)
        return msgspec.json.encode(value)
    if kind == "PROTOBUF_NATIVE":
        return _protobuf(definition, value)
    if kind == "BOOLEAN":
        if not isinstance(value, bool):
            raise ValueError("true or false is expected")
        return bytes([value])
    if kind in _WHOLE or kind in _REAL:
        return _fixed(kind, value)
    raise ValueError("values of this type cannot be written as text; publish them with a client")


def _fixed(kind: str, value: Any) -> bytes:
    types = (int,) if kind in _WHOLE else (int, float)
    if isinstance(value, bool) or not isinstance(value, types):
        raise ValueError(f"a {'whole ' if kind in _WHOLE else ''}number is expected")
    try:
        return (_WHOLE.get(kind) or _REAL[kind]).pack(value)
    except (StructError, OverflowError):
        raise ValueError(f"{value} does not fit into {kind}") from None


def _protobuf(definition: Definition, value: Any) -> bytes:
    message = protobuf_class(definition)()
    try:
        json_format.ParseDict(value, message)
    except json_format.ParseError as error:
        raise ValueError(str(error)) from None
    return message.SerializeToString()
