"""Avro definitions as columns: the type that Arrow and Spark have for one, and how values get into it.

| in Avro | in Spark |
|---|---|
| boolean, int, long, float, double, string, bytes | boolean, int, bigint, float, double, string, binary |
| enum, fixed | string, binary |
| array, map, record | array, map<string, …>, struct |
| null with another | that one; all columns may be null |
| date; timestamp-millis, -micros; local-timestamp-… | date; timestamp; timestamp_ntz |
| decimal(p, s) | decimal(p, s) |
| other logical types | what they rest on |

Other unions, and records within themselves, have no type of a column.

Values come as Python objects by the *writer's* definition (from Avro), or by none (from JSON), and are taken by the
names of the fields, as Avro's schema resolution does: what the writer did not have is the default, what this
definition does not have is left out, numbers are widened. The names of records do not matter, as for the broker's own
check of versions: a class may move to another package. This is why `fastavro` is not asked to resolve: for it they
do.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from quire.runtime.errors import ConfigurationError
from quire.spark_source.schema import TIME

Convert = Callable[[Any], Any]
"""A Python object to what Arrow takes for the type. Raises `ValueError` or `TypeError` for what is none of it."""


@dataclass(frozen=True)
class ColumnType:
    """A definition as a column's type."""

    arrow: pa.DataType
    spark: str
    """As `simpleString` of Spark's type has it."""
    ddl: str
    convert: Convert
    """Of None: it is null, or raises where the definition has no null."""


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_INT_MAX: Final = {"int": 1 << 31, "long": 1 << 63}


def column_type(definition: Any, *, is_json: bool) -> ColumnType:
    """The type for an Avro definition (parsed JSON), for values in JSON or in Avro.

    Raises `ConfigurationError` for what no column can hold.
    """
    return _Types(is_json).of(definition, "value")


@dataclass(frozen=True)
class ValueSchema:
    """What the column `value` is; a plain thing, which crosses to the tasks."""

    kind: str
    """AVRO or JSON."""
    definition: str

    @property
    def column(self) -> ColumnType:
        """Raises `ConfigurationError` for what no column can hold."""
        return _column_of(self)


@lru_cache(maxsize=64)
def _column_of(one: ValueSchema) -> ColumnType:
    return column_type(json.loads(one.definition), is_json=one.kind == "JSON")


class _Types:
    """The types of one definition; `named` are those that have a name, None while they are being made."""

    def __init__(self, is_json: bool) -> None:
        self._is_json = is_json
        self._named: dict[str, ColumnType | None] = {}

    def of(self, definition: Any, path: str) -> ColumnType:
        if isinstance(definition, list):
            return self._union(definition, path)
        if isinstance(definition, str):
            return self._plain(definition, path) or self._known(definition, path)
        kind = definition.get("type")
        if not isinstance(kind, str):
            return self.of(kind, path)
        logical = _logical(definition)
        if logical is not None:
            return logical
        if kind == "record":
            return self._record(definition, path)
        if kind == "enum":
            return self._remember(definition, ColumnType(pa.string(), "string", "string", _text))
        if kind == "fixed":
            return self._remember(definition, self._binary())
        if kind == "array":
            return self._array(self.of(definition["items"], f"{path}[]"))
        if kind == "map":
            return self._map(self.of(definition["values"], f"{path}{{}}"))
        return self._plain(kind, path) or self._known(kind, path)

    def _plain(self, name: str, path: str) -> ColumnType | None:
        if name == "bytes":
            return self._binary()
        found = _PLAIN.get(name)
        return None if found is None else ColumnType(*found)

    def _binary(self) -> ColumnType:
        return ColumnType(pa.binary(), "binary", "binary", _from_base64 if self._is_json else _bytes)

    def _known(self, name: str, path: str) -> ColumnType:
        found = self._named.get(name) or self._named.get(name.rpartition(".")[2])
        if found is None:
            raise ConfigurationError(
                f"field {path} of the schema is a {name}, which contains itself or is not defined, and no column can "
                "be that; use value_schema=none"
            )
        return found

    def _remember(self, definition: Mapping[str, Any], made: ColumnType) -> ColumnType:
        self._named[definition["name"].rpartition(".")[2]] = made
        return made

    def _union(self, branches: list[Any], path: str) -> ColumnType:
        others = [one for one in branches if one != "null"]
        if len(others) != 1:
            raise ConfigurationError(
                f"field {path} of the schema is one of several types, and no column can be that; use value_schema=none"
            )
        inner = self.of(others[0], path)
        if len(others) == len(branches):
            return inner
        convert = inner.convert
        return ColumnType(
            inner.arrow, inner.spark, inner.ddl, lambda value: None if value is None else convert(value)
        )

    def _array(self, items: ColumnType) -> ColumnType:
        def convert(value: Any) -> list[Any]:
            if not isinstance(value, list | tuple):
                raise TypeError(f"{value!r:.100} is no array")
            return [items.convert(one) for one in value]

        return ColumnType(
            pa.list_(pa.field("element", items.arrow)),
            f"array<{items.spark}>",
            f"array<{items.ddl}>",
            convert,
        )

    def _map(self, values: ColumnType) -> ColumnType:
        def convert(value: Any) -> list[tuple[str, Any]]:
            return [(_text(key), values.convert(one)) for key, one in _object(value).items()]

        return ColumnType(
            pa.map_(pa.string(), values.arrow),
            f"map<string,{values.spark}>",
            f"map<string,{values.ddl}>",
            convert,
        )

    def _record(self, definition: Mapping[str, Any], path: str) -> ColumnType:
        self._named[definition["name"].rpartition(".")[2]] = None
        fields = [
            _Field.of(one, self.of(one["type"], f"{path}.{one['name']}")) for one in definition["fields"]
        ]
        if not fields:
            raise ConfigurationError(
                f"field {path} of the schema is a record without fields; use value_schema=none"
            )

        def convert(value: Any) -> dict[str, Any]:
            given = _object(value)
            return {field.name: field.take(given) for field in fields}

        return self._remember(
            definition,
            ColumnType(
                pa.struct([pa.field(one.name, one.type.arrow) for one in fields]),
                f"struct<{','.join(f'{one.name}:{one.type.spark}' for one in fields)}>",
                f"struct<{', '.join(f'`{one.name}`: {one.type.ddl}' for one in fields)}>",
                convert,
            ),
        )


@dataclass(frozen=True)
class _Field:
    """A field of a record."""

    name: str
    names: tuple[str, ...]
    """Its own and its aliases."""
    type: ColumnType
    has_default: bool
    default: Any

    @classmethod
    def of(cls, definition: Mapping[str, Any], made: ColumnType) -> _Field:
        names = definition["name"], *definition.get("aliases", ())
        default = definition.get("default")
        if isinstance(default, str) and pa.types.is_binary(made.arrow):
            default = default.encode("latin-1")
        elif default is not None:
            default = made.convert(default)
        return cls(definition["name"], names, made, "default" in definition, default)

    def take(self, given: Mapping[str, Any]) -> Any:
        for name in self.names:
            if name in given:
                try:
                    return self.type.convert(given[name])
                except (TypeError, ValueError, ArithmeticError) as error:
                    raise ValueError(f"{self.name}: {error}") from None
        if not self.has_default:
            return self.type.convert(None)
        return self.default


# -- values ----------------------------------------------------------------------------------------------


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{value!r:.100} is no object")
    return value


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode()
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.100} is no text")
    value.encode()
    return value


def _bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, bytes):
        raise TypeError(f"{value!r:.100} is no bytes")
    return value


def _from_base64(value: Any) -> bytes:
    return b64decode(_text(value), validate=True)


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r:.100} is neither true nor false")
    return value


def _whole(bits: str) -> Convert:
    bound = _INT_MAX[bits]

    def convert(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not -bound <= value < bound:
            raise TypeError(f"{value!r:.100} is no {bits}")
        return value

    return convert


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r:.100} is no number")
    return float(value)


_PLAIN: Final[dict[str, tuple[pa.DataType, str, str, Convert]]] = {
    "boolean": (pa.bool_(), "boolean", "boolean", _truth),
    "int": (pa.int32(), "int", "int", _whole("int")),
    "long": (pa.int64(), "bigint", "bigint", _whole("long")),
    "float": (pa.float32(), "float", "float", _float),
    "double": (pa.float64(), "double", "double", _float),
    "string": (pa.string(), "string", "string", _text),
}


# -- logical types ---------------------------------------------------------------------------------------

_UNITS_US: Final = {"millis": 1000, "micros": 1}


def _logical(definition: Mapping[str, Any]) -> ColumnType | None:
    """The type of a logical type that columns have; None for all others."""
    name, kind = definition.get("logicalType"), definition["type"]
    if name == "date" and kind == "int":
        return ColumnType(pa.date32(), "date", "date", _day)
    if isinstance(name, str) and kind == "long":
        family, _, unit = name.rpartition("-")
        if unit in _UNITS_US and family == "timestamp":
            return ColumnType(TIME, "timestamp", "timestamp", _moment(_UNITS_US[unit]))
        if unit in _UNITS_US and family == "local-timestamp":
            local = _moment(_UNITS_US[unit])
            return ColumnType(
                pa.timestamp("us"),
                "timestamp_ntz",
                "timestamp_ntz",
                lambda value: local(value).replace(tzinfo=None),
            )
    if name == "decimal" and kind in ("bytes", "fixed"):
        precision, scale = int(definition["precision"]), int(definition.get("scale", 0))
        if 0 <= scale <= precision <= 38:
            text = f"decimal({precision},{scale})"
            return ColumnType(pa.decimal128(precision, scale), text, text, _decimal(scale))
    return None


def _day(value: Any) -> date:
    if isinstance(value, str):
        return date.fromisoformat(value)
    return value if isinstance(value, date) else date(1970, 1, 1) + timedelta(days=_whole("int")(value))


def _moment(unit_us: int) -> Convert:
    def convert(value: Any) -> datetime:
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        if isinstance(value, datetime):
            return value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return _EPOCH + timedelta(microseconds=_whole("long")(value) * unit_us)

    return convert


def _decimal(scale: int) -> Convert:
    def convert(value: Any) -> Decimal:
        if isinstance(value, bytes):
            return Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-scale)
        if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
            raise TypeError(f"{value!r:.100} is no number")
        return Decimal(str(value))

    return convert
