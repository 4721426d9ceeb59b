"""Avro definitions as columns: the type that Arrow and Spark have for one, and how values get into it.

| in Avro | in Spark |
|---|---|
| boolean, int, long, float, double, string, bytes | boolean, int, bigint, float, double, string, binary |
| enum, fixed | string, binary |
| array, map, record | array, map<string, …>, struct |
| null with another | that one; all columns may be null |
| int with long, float with double | bigint, double |
| other unions | struct<member0, member1, …>, of which one is not null: as `from_avro` of Spark has them |
| a record within itself | string: it is JSON from there on, with the fields that its writer gave it |
| date; timestamp-millis, -micros; local-timestamp-… | date; timestamp; timestamp_ntz |
| decimal(p, s), p up to 38 | decimal(p, s) |
| other logical types: time, uuid, duration | what they rest on |

Values come as Python objects by the *writer's* definition (from Avro), or by none (from JSON), and are taken by the
names of the fields, as Avro's schema resolution does: what the writer did not have is the default, what this
definition does not have is left out, numbers are widened. The names of records do not matter, as for the broker's own
check of versions: a class may move to another package. This is why `fastavro` is not asked to resolve: for it they
do. Only where a union has several records, enums or fixed does the name say which one it is, without its package;
`fastavro` gives what has a name, in a union, as a pair of it and the value. Anything else is the first member of the
union whose type it has, or that takes it; so are all values in JSON, which has no names.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
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


def column_type(definition: Any, *, is_json: bool, path: str = "value") -> ColumnType:
    """The type for an Avro definition (parsed JSON), for values in JSON or in Avro; errors begin with `path`.

    Raises `ConfigurationError` for what no column can hold.
    """
    return _Types(is_json).of(definition, path)


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
            return self._remember(definition, logical) if "name" in definition else logical
        if kind == "record":
            return self._record(definition, path)
        if kind == "enum":
            return self._remember(
                definition, ColumnType(pa.string(), "string", "string", _symbol(definition))
            )
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
        short = _short(name)
        if short not in self._named:
            raise ConfigurationError(
                f"field {path} of the schema is a {name}, which is not defined, and no column can be that; use "
                "value_schema=none"
            )
        return self._named[short] or _WITHIN_ITSELF

    def _remember(self, definition: Mapping[str, Any], made: ColumnType) -> ColumnType:
        self._named[_short(definition["name"])] = made
        return made

    def _union(self, branches: list[Any], path: str) -> ColumnType:
        others = [one for one in branches if one != "null"]
        others = _WIDER.get(tuple(others) if all(isinstance(one, str) for one in others) else (), others)
        if not others:
            raise ConfigurationError(
                f"field {path} of the schema is always null, and no column can be that; use value_schema=none"
            )
        inner = self.of(others[0], path) if len(others) == 1 else self._members(others, path)
        if "null" not in branches:
            return inner
        convert = inner.convert
        return ColumnType(
            inner.arrow, inner.spark, inner.ddl, lambda value: None if value is None else convert(value)
        )

    def _members(self, branches: list[Any], path: str) -> ColumnType:
        """A struct with a member for each type."""
        names = [f"member{i}" for i in range(len(branches))]
        types = [self.of(one, f"{path}.{name}") for one, name in zip(branches, names, strict=True)]
        union = _Union([_name_of(one) for one in branches], types, self._is_json)

        def convert(value: Any) -> dict[str, Any]:
            at, converted = union.member(value)
            return {name: converted if i == at else None for i, name in enumerate(names)}

        return _struct(names, types, convert)

    def _array(self, items: ColumnType) -> ColumnType:
        def convert(value: Any) -> list[Any]:
            if not isinstance(value, list):
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
        self._named[_short(definition["name"])] = None
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

        made = _struct([one.name for one in fields], [one.type for one in fields], convert)
        return self._remember(definition, made)


def _struct(names: Sequence[str], types: Sequence[ColumnType], convert: Convert) -> ColumnType:
    fields = list(zip(names, types, strict=True))
    return ColumnType(
        pa.struct([pa.field(name, one.arrow) for name, one in fields]),
        f"struct<{','.join(f'{name}:{one.spark}' for name, one in fields)}>",
        f"struct<{', '.join(f'`{name}`: {one.ddl}' for name, one in fields)}>",
        convert,
    )


class _Union:
    """Which member of a union a value is."""

    def __init__(self, names: Sequence[str | None], types: Sequence[ColumnType], is_json: bool) -> None:
        self._names = names
        self._types = types
        self._is_json = is_json

    def member(self, value: Any) -> tuple[int, Any]:
        """Its place, and the value converted. Raises `TypeError` when no member takes it."""
        for at in self._best_first(value):
            try:
                return at, self._types[at].convert(value)
            except (TypeError, ValueError, ArithmeticError):
                continue
        raise TypeError(f"{_bare(value)!r:.100} is of no type of its union")

    def _best_first(self, value: Any) -> list[int]:
        """Those with its name, then those of its type; from Avro what has no name is rather one without."""
        name = _short(value[0]) if isinstance(value, tuple) else None
        plain = _bare(value)

        def rank(at: int) -> tuple[bool, bool, bool]:
            fits = _has_type(plain, self._types[at].arrow, self._is_json)
            named = self._names[at] is not None
            return name is None or self._names[at] != name, not fits, named and not self._is_json

        return sorted(range(len(self._types)), key=rank)


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


def _short(name: str) -> str:
    """Without its package."""
    return name.rpartition(".")[2]


def _name_of(definition: Any) -> str | None:
    """Of a record, an enum or a fixed, or a reference to one; None for other types."""
    if isinstance(definition, Mapping):
        name = definition.get("name")
        return None if name is None else _short(name)
    is_plain = not isinstance(definition, str) or definition in _PLAIN or definition == "bytes"
    return None if is_plain else _short(definition)


def _bare(value: Any) -> Any:
    """Without the name that `fastavro` gives with it."""
    return value[1] if isinstance(value, tuple) else value


def _has_type(value: Any, arrow: pa.DataType, is_json: bool) -> bool:
    """Whether a value is what is read for such a column, without being widened."""
    is_text = isinstance(value, str)
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if pa.types.is_date(arrow) or pa.types.is_timestamp(arrow):
        is_it = isinstance(value, datetime) == pa.types.is_timestamp(arrow) and isinstance(value, date)
        return is_it or (is_json and (is_text or is_whole))
    for is_type, found in (
        (pa.types.is_boolean, isinstance(value, bool)),
        (pa.types.is_integer, is_whole),
        (pa.types.is_floating, isinstance(value, float)),
        (pa.types.is_string, is_text),
        (pa.types.is_binary, is_text if is_json else isinstance(value, bytes)),
        (pa.types.is_list, isinstance(value, list)),
        (pa.types.is_decimal, isinstance(value, float if is_json else Decimal)),
    ):
        if is_type(arrow):
            return found
    return isinstance(value, Mapping)


def _object(value: Any) -> Mapping[str, Any]:
    value = _bare(value)
    if not isinstance(value, Mapping):
        raise TypeError(f"{value!r:.100} is no object")
    return value


def _text(value: Any) -> str:
    value = _bare(value)
    if isinstance(value, bytes):
        return value.decode()
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.100} is no text")
    value.encode()
    return value


def _symbol(definition: Mapping[str, Any]) -> Convert:
    symbols = frozenset(definition["symbols"])
    default = definition.get("default")

    def convert(value: Any) -> str:
        text = _text(value)
        if text in symbols:
            return text
        if default is None:
            raise ValueError(f"{text!r:.100} is none of the symbols of {definition['name']}")
        return str(default)

    return convert


def _bytes(value: Any) -> bytes:
    value = _bare(value)
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


def _json(value: Any) -> str:
    """A value as JSON, bytes in base64."""
    if value is None:
        raise TypeError("None is no object")
    return json.dumps(_plain_json(value), ensure_ascii=False, separators=(",", ":"))


def _plain_json(value: Any) -> Any:
    value = _bare(value)
    if isinstance(value, Mapping):
        return {key: _plain_json(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain_json(one) for one in value]
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, date):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value


_WITHIN_ITSELF: Final = ColumnType(pa.string(), "string", "string", _json)

_WIDER: Final[Mapping[tuple[str, ...], list[Any]]] = {
    ("int", "long"): ["long"],
    ("long", "int"): ["long"],
    ("float", "double"): ["double"],
    ("double", "float"): ["double"],
}
"""Unions that are one type."""

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
        precision, scale = int(definition.get("precision", 0)), int(definition.get("scale", 0))
        if 0 <= scale <= precision <= 38 and precision:
            text = f"decimal({precision},{scale})"
            return ColumnType(pa.decimal128(precision, scale), text, text, _decimal(scale))
    return None


def readable(definition: Any) -> Any:
    """A definition for `fastavro`, without the logical types that columns do not have: it would convert these, too."""
    if isinstance(definition, list):
        return [readable(one) for one in definition]
    if not isinstance(definition, dict):
        return definition
    is_known = "logicalType" not in definition or _logical(definition) is not None
    return {
        key: readable(one) if key in ("type", "items", "values", "fields") else one
        for key, one in definition.items()
        if is_known or key != "logicalType"
    }


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
        value = _bare(value)
        if isinstance(value, bytes):
            return Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-scale)
        if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
            raise TypeError(f"{value!r:.100} is no number")
        return Decimal(str(value))

    return convert
