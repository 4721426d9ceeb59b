"""Types of a topic's keys and values by a version of its schema: their columns, and parsers of their bytes.

| the topic's schema | `value` | `key` |
|---|---|---|
| AVRO, JSON | see `avro_types` | bytes |
| STRING, BOOLEAN, INT8 … INT64, FLOAT, DOUBLE | string, boolean, tinyint … bigint, float, double | bytes |
| KEY_VALUE of two of these, or of bytes | the pair's value | the pair's key |

The payload contains both parts of a pair (INLINE, see `wire.key_value`), or the key is the message's key (SEPARATED).
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


def _same(value: Any) -> Any:
    return value


def _unpacked(layout: str) -> Callable[[bytes], Any]:
    packed = Struct(layout)

    def read(payload: bytes) -> Any:
        try:
            return packed.unpack(payload)[0]
        except StructError:
            raise ValueError(
                f"the value has {len(payload)} bytes, and its schema needs {packed.size}"
            ) from None

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
    """Schema of keys or of values. It is pickled to the tasks."""

    kind: str
    """AVRO, JSON, or a primitive type such as INT32, which has no definition."""
    definition: str
    name: str = "value"
    """Name of the column: `key` or `value`."""

    @property
    def column(self) -> ColumnType:
        """Type of the column. Raises `ConfigurationError` if no column can represent the schema."""
        return _column_of(self)

    @property
    def read(self) -> Callable[[bytes], Any] | None:
        """Parser of bytes, which raises `ValueError`; None for Avro, which needs the writer's definition."""
        return json.loads if self.kind == "JSON" else None if self.kind == "AVRO" else _PLAIN[self.kind][1]


@lru_cache(maxsize=64)
def _column_of(one: PartSchema) -> ColumnType:
    if one.kind in _PLAIN:
        return _PLAIN[one.kind][0]
    return column_type(one.definition, is_json=one.kind == "JSON", path=one.name)


@dataclass(frozen=True)
class TopicSchema:
    """One version of a topic's schema. If `key` is None, keys are bytes."""

    value: PartSchema
    key: PartSchema | None = None
    is_inline: bool = False
    """True if the payload contains both key and value."""

    @property
    def parts(self) -> Mapping[str, PartSchema]:
        """Schemas of the value and of the key, if it has one, by the names of their columns."""
        return {one.name: one for one in (self.value, self.key) if one is not None}


def topic_schema(topic: str, answer: Mapping[str, Any]) -> TopicSchema:
    """Parse the broker's response for one version of a schema.

    Raises `ConfigurationError` if no column can represent the schema.
    """
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
