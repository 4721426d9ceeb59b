"""What the keys and values of a topic are, by a version of its schema: as columns, and how their bytes are read.

| the topic's schema | `value` | `key` |
|---|---|---|
| AVRO, JSON | as `avro_types` has them | bytes |
| STRING, BOOLEAN, INT8 … INT64, FLOAT, DOUBLE | string, boolean, tinyint … bigint, float, double | bytes |
| KEY_VALUE of two of these, or of bytes | the pair's value | the pair's key |

The two parts of a pair are both in the payload (INLINE), or the key is the message's key (SEPARATED):

    inline payload    4 length, the key, 4 length, the value; big-endian, and a length of -1 is null
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from struct import error as StructError
from typing import Any, Final

import pyarrow as pa

from quire.runtime.errors import ConfigurationError
from quire.spark_source.avro_types import ColumnType, column_type

_LENGTH: Final = Struct(">i")


def _same(value: Any) -> Any:
    return value


def _unpacked(layout: str) -> Callable[[bytes], Any]:
    packed = Struct(layout)

    def read(payload: bytes) -> Any:
        try:
            return packed.unpack(payload)[0]
        except StructError:
            raise ValueError(f"it has {len(payload)} bytes instead of {packed.size}") from None

    return read


_PLAIN: Final[Mapping[str, tuple[ColumnType, Callable[[bytes], Any]]]] = {
    kind: (ColumnType(arrow, spark, spark, _same), read)
    for kind, arrow, spark, read in (
        ("BYTES", pa.binary(), "binary", _same),
        ("STRING", pa.string(), "string", bytes.decode),
        ("BOOLEAN", pa.bool_(), "boolean", _unpacked(">?")),
        ("INT8", pa.int8(), "tinyint", _unpacked(">b")),
        ("INT16", pa.int16(), "smallint", _unpacked(">h")),
        ("INT32", pa.int32(), "int", _unpacked(">i")),
        ("INT64", pa.int64(), "bigint", _unpacked(">q")),
        ("FLOAT", pa.float32(), "float", _unpacked(">f")),
        ("DOUBLE", pa.float64(), "double", _unpacked(">d")),
    )
}


@dataclass(frozen=True)
class PartSchema:
    """What a key or a value is; a plain thing, which crosses to the tasks."""

    kind: str
    """AVRO, JSON, or one of those without a definition."""
    definition: str
    name: str = "value"
    """The column."""

    @property
    def column(self) -> ColumnType:
        """Raises `ConfigurationError` for what no column can hold."""
        return _column_of(self)

    @property
    def read(self) -> Callable[[bytes], Any] | None:
        """Bytes as Python objects, where no writer's definition is needed. Raises `ValueError`."""
        return json.loads if self.kind == "JSON" else None if self.kind == "AVRO" else _PLAIN[self.kind][1]


@lru_cache(maxsize=64)
def _column_of(one: PartSchema) -> ColumnType:
    if one.kind in _PLAIN:
        return _PLAIN[one.kind][0]
    return column_type(json.loads(one.definition), is_json=one.kind == "JSON", path=one.name)


@dataclass(frozen=True)
class TopicSchema:
    """One version. `key` None: keys are bytes."""

    value: PartSchema
    key: PartSchema | None = None
    is_inline: bool = False
    """Key and value are both in the payload."""

    @property
    def parts(self) -> Mapping[str, PartSchema]:
        """Those that have a schema, by their columns."""
        return {one.name: one for one in (self.value, self.key) if one is not None}


def topic_schema(topic: str, answer: Mapping[str, Any]) -> TopicSchema:
    """By what the broker says of a version. Raises `ConfigurationError` for what no column can hold."""
    if answer["type"] != "KEY_VALUE":
        return TopicSchema(_part("value", answer["type"], answer["data"], topic))
    data, properties = json.loads(answer["data"]), answer.get("properties", {})
    key, value = (
        _part(name, properties.get(f"{name}.schema.type", "BYTES"), _text(data[name]), topic)
        for name in ("key", "value")
    )
    return TopicSchema(value, key, properties.get("kv.encoding.type", "INLINE") != "SEPARATED")


def _part(name: str, kind: str, definition: str, topic: str) -> PartSchema:
    if kind in ("AVRO", "JSON"):
        return PartSchema(kind, definition, name)
    if kind not in _PLAIN:
        raise ConfigurationError(
            f"the schema of the {name}s of topic {topic} is {kind}, and only AVRO, JSON, {', '.join(_PLAIN)}, and "
            "KEY_VALUE of these become columns; use value_schema=none"
        )
    return PartSchema(kind, "", name)


def _text(part: Any) -> str:
    return part if isinstance(part, str) else json.dumps(part)


def pair(payload: bytes) -> tuple[bytes | None, bytes | None]:
    """Key and value of an inline payload. Raises `ValueError`."""
    key, at = _take(payload, 0)
    value, at = _take(payload, at)
    if at != len(payload):
        raise ValueError(f"{len(payload) - at} bytes are left over after key and value")
    return key, value


def _take(payload: bytes, at: int) -> tuple[bytes | None, int]:
    if at + _LENGTH.size > len(payload):
        raise ValueError("key and value are cut short")
    (size,) = _LENGTH.unpack_from(payload, at)
    at += _LENGTH.size
    if size < 0:
        return None, at
    if at + size > len(payload):
        raise ValueError("key and value are cut short")
    return payload[at : at + size], at + size
