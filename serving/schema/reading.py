"""Values of messages as text for display, by the schema of their producer. Performs no I/O.

The broker creates the text, because JavaScript's numbers cannot represent all values of a message. A value that does
not match the schema is shown as text or in hexadecimal digits, with the reason: display never fails. Payloads are
untrusted, so at most `VALUE_BYTES_MAX` is decoded.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from struct import Struct
from typing import Any, Final, Literal, NamedTuple

import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.message import DecodeError, Message

from quire.serving.schema import avro_values
from quire.serving.schema.definition import Definition, SchemaInvalid, key_and_value, parsed, root_message
from quire.wire import avro, key_value

VALUE_BYTES_MAX: Final = 256 << 10
HEX_BYTES_MAX: Final = 4096
_REFUSED: Final = (
    ValueError,  # `NoValue`, `DecodeError` of JSON, and the error for dates beyond the calendar
    OverflowError,
    RecursionError,
    TypeError,
    KeyError,
    DecodeError,
    json_format.Error,
    SchemaInvalid,
    avro.AvroError,
)


class Shown(NamedTuple):
    text: str
    form: Literal["json", "text", "hex"]
    problem: str = ""
    """Reason why the value is not decoded by its schema; empty if it is."""


def shown(payload: bytes, definition: Definition | None, key: bytes | None = None) -> Shown:
    """Return a value as text. `key` is the message's key, needed for a KEY_VALUE schema with SEPARATED encoding."""
    if len(payload) > VALUE_BYTES_MAX:
        return _as_it_is(payload[:VALUE_BYTES_MAX])._replace(
            problem=f"of {len(payload)} bytes only the first {VALUE_BYTES_MAX} are shown, and not decoded"
        )
    if definition is None or not definition.is_schema:
        return _as_it_is(payload)
    try:
        value = _value(definition, payload, key)
        return Shown(value, "text") if isinstance(value, str) else Shown(_json(value), "json")
    except _REFUSED as error:
        problem = (
            f"the value does not match its schema ({definition.kind}): {str(error) or type(error).__name__}"
        )
        return _as_it_is(payload)._replace(problem=problem[:300])


def _as_it_is(payload: bytes) -> Shown:
    """Return JSON or text unchanged, other bytes in hexadecimal digits."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return _hex(payload)
    if text[:1] in ("{", "["):
        try:
            return Shown(msgspec.json.format(payload, indent=2).decode(), "json")
        except (ValueError, RecursionError):
            pass
    is_text = all(char.isprintable() or char in "\r\n\t" for char in text)
    return Shown(text, "text") if is_text else _hex(payload)


def _hex(payload: bytes) -> Shown:
    return Shown(payload[:HEX_BYTES_MAX].hex(" "), "hex")


def _json(value: Any) -> str:
    if isinstance(value, msgspec.Raw):
        return msgspec.json.format(bytes(value), indent=2).decode()
    return json.dumps(value, indent=2, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> str:
    """Convert values that JSON lacks: bytes and times."""
    if isinstance(value, msgspec.Raw):
        return bytes(value).decode()
    return _as_it_is(value).text if isinstance(value, bytes) else str(value)


# -- by schema type ------------------------------------------------------------------------------------


def _value(definition: Definition, payload: bytes, key: bytes | None) -> Any:
    """Return a string unchanged, other values as JSON."""
    kind = definition.kind
    if kind == "STRING":
        return payload.decode()
    if kind == "JSON":
        return msgspec.json.decode(payload, type=msgspec.Raw) if payload.strip() else ""
    if kind == "AVRO":
        return avro_values.read(parsed(definition), payload)
    if kind == "PROTOBUF_NATIVE":
        return _protobuf(definition, payload)
    if kind == "KEY_VALUE":
        return _pair(definition, payload, key)
    if kind in _FIXED:
        layout, of = _FIXED[kind]
        if len(payload) != layout.size:
            raise ValueError(f"it has {len(payload)} bytes instead of {layout.size}")
        return of(*layout.unpack(payload))
    raise ValueError("decoding this schema type is not supported")


def _pair(definition: Definition, payload: bytes, key: bytes | None) -> dict[str, Any]:
    of_key, of_value = key_and_value(definition)
    is_apart = definition.properties.get("kv.encoding.type") == "SEPARATED"
    raw_key, raw_value = (key, payload) if is_apart else key_value.split(payload)
    return {"key": _part(of_key, raw_key or b""), "value": _part(of_value, raw_value or b"")}


def _part(definition: Definition, payload: bytes) -> Any:
    if not definition.is_schema:
        return _as_it_is(payload).text
    value = _value(definition, payload, None)
    return json.loads(bytes(value)) if isinstance(value, msgspec.Raw) else value


def _protobuf(definition: Definition, payload: bytes) -> Any:
    found = protobuf_class(definition).FromString(payload)
    return json_format.MessageToDict(found, preserving_proto_field_name=True)


def protobuf_class(definition: Definition) -> type[Message]:
    """Return the class of a PROTOBUF_NATIVE schema's messages."""
    said = msgspec.json.decode(definition.data)
    files = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(said["fileDescriptorSet"]))
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    found: type[Message] = message_factory.GetMessageClass(
        pool.FindMessageTypeByName(root_message(definition))
    )
    return found


_EPOCH: Final = date(1970, 1, 1)


def _same(value: Any) -> Any:
    return value


def _moment(ms: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)).isoformat()


def _instant(seconds: int, nanos: int) -> str:
    return f"{(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)).isoformat()[:19]}.{nanos:09}Z"


def _day(days: int) -> str:
    return (_EPOCH + timedelta(days=days)).isoformat()


def _time_of_day(nanos: int) -> str:
    seconds, rest = divmod(nanos, 1_000_000_000)
    return f"{time(seconds // 3600, seconds // 60 % 60, seconds % 60).isoformat()}.{rest:09}"


def _day_and_time(days: int, nanos: int) -> str:
    return f"{_day(days)}T{_time_of_day(nanos)}"


_FIXED: Final[dict[str, tuple[Struct, Callable[..., Any]]]] = {
    "BOOLEAN": (Struct(">?"), _same),
    "INT8": (Struct(">b"), _same),
    "INT16": (Struct(">h"), _same),
    "INT32": (Struct(">i"), _same),
    "INT64": (Struct(">q"), _same),
    "FLOAT": (Struct(">f"), _same),
    "DOUBLE": (Struct(">d"), _same),
    "DATE": (Struct(">q"), _moment),
    "TIME": (Struct(">q"), _moment),
    "TIMESTAMP": (Struct(">q"), _moment),
    "INSTANT": (Struct(">qi"), _instant),
    "LOCAL_DATE": (Struct(">q"), _day),
    "LOCAL_TIME": (Struct(">q"), _time_of_day),
    "LOCAL_DATE_TIME": (Struct(">qq"), _day_and_time),
}
"""Layouts of values, as the Java client writes them."""
