"""Avro definitions as columns: their types in Arrow and Spark, and the conversion of values.

| in Avro | in Spark |
|---|---|
| boolean, int, long, float, double, string, bytes | boolean, int, bigint, float, double, string, binary |
| enum, fixed | string, binary |
| array, map, record | array, map<string, …>, struct |
| null with another | the other one; all columns may be null |
| int with long, float with double | bigint, double |
| other unions | struct<member0, member1, …> with one member that is not null, as in Spark's [`from_avro`] |
| a record within itself | string: JSON of the inner record, with the fields of its writer |
| date; timestamp-millis, -micros; local-timestamp-… | date; timestamp; timestamp_ntz |
| decimal(p, s), p up to 38 | decimal(p, s) |
| other logical types: time, uuid, duration | their underlying type |

Values are Python objects, read by the *writer's* definition (Avro) or without one (JSON). They are converted by the
names of fields, as in Avro's [schema resolution]: a field that the writer lacked has its default, a field that this
definition lacks is dropped, numbers are widened. Record names are ignored, as in the broker's compatibility check, so
that a class may move to another package. `fastavro` compares these names, so its resolution is not used.

A union with several records, enums or fixed types is the exception: the name, without its package, selects the member.
`fastavro` returns such a value as a pair of name and value. Any other value is assigned to the first member that has
its type, or else to the first member that accepts it. JSON has no names, so all its values are assigned this way.

[`from_avro`]: https://spark.apache.org/docs/latest/sql-data-sources-avro.html
[schema resolution]: https://avro.apache.org/docs/1.12.0/specification/#schema-resolution
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
from quire.wire import avro
from quire.wire.avro import Array, AvroType, Enum, Fixed, Logical, Map, Primitive, Record, Union

Convert = Callable[[Any], Any]
"""Conversion of a Python object for Arrow. Raises `ValueError` or `TypeError` for values of another type."""


@dataclass(frozen=True)
class ColumnType:
    """Column type of an Avro definition."""

    arrow: pa.DataType
    spark: str
    """`simpleString` of Spark's type."""
    ddl: str
    convert: Convert
    """Function that converts a value. It converts None to null, or raises if the definition does not allow null."""


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_INT_MAX: Final = {"int": 1 << 31, "long": 1 << 63}
DECIMAL_DIGITS_MAX: Final = 38
"""Maximum number of digits of a decimal in Spark."""


def column_type(definition: str, *, is_json: bool, path: str = "value") -> ColumnType:
    """Return the column type of an Avro definition, for values in JSON or Avro. Errors contain `path`.

    Raises `ConfigurationError` for definitions that no column can represent.
    """
    try:
        return _Types(is_json).of(avro.parse(definition), path)
    except avro.UndefinedType as error:
        why = f"field {path}{error.at} of the schema is a {error.name}, which is not defined"
    except avro.AvroError as error:
        why = f"the schema of {path} is not an Avro definition: {error}"
    raise ConfigurationError(f"{why}; use value_schema=none")


class _Types:
    """Converter of one definition to column types.

    `_named` contains the types of named definitions; None marks a type that is still being created.
    """

    def __init__(self, is_json: bool) -> None:
        self._is_json = is_json
        self._named: dict[AvroType, ColumnType | None] = {}

    def of(self, kind: AvroType, path: str) -> ColumnType:
        match kind:
            case Union():
                return self._union(kind.branches, path)
            case Array():
                return self._array(self.of(kind.items, f"{path}[]"))
            case Map():
                return self._map(self.of(kind.values, f"{path}{{}}"))
            case Record():
                if kind not in self._named:
                    self._named[kind] = None
                    self._named[kind] = self._record(kind, path)
                return self._named[kind] or _WITHIN_ITSELF
            case Enum():
                return ColumnType(pa.string(), "string", "string", _symbol(kind))
        logical = None if kind.logical is None else _logical(kind, kind.logical)
        if logical is not None:
            return logical
        if kind.kind == "null":
            raise _always_null(path)
        return ColumnType(*_PLAIN[kind.kind]) if kind.kind in _PLAIN else self._binary()

    def _binary(self) -> ColumnType:
        return ColumnType(pa.binary(), "binary", "binary", _from_base64 if self._is_json else _bytes)

    def _union(self, branches: Sequence[AvroType], path: str) -> ColumnType:
        others = [one for one in branches if one.kind != "null"]
        if not others:
            raise _always_null(path)
        wider = _wider(others)
        if wider is not None:
            inner = ColumnType(*_PLAIN[wider])
        elif len(others) == 1:
            inner = self.of(others[0], path)
        else:
            inner = self._members(others, path)
        if len(others) == len(branches):
            return inner
        convert = inner.convert
        return ColumnType(
            inner.arrow, inner.spark, inner.ddl, lambda value: None if value is None else convert(value)
        )

    def _members(self, branches: Sequence[AvroType], path: str) -> ColumnType:
        """Return the struct type of a union, with one member for each of its types."""
        names = [f"member{i}" for i in range(len(branches))]
        types = [self.of(one, f"{path}.{name}") for one, name in zip(branches, names, strict=True)]
        union = _Union([getattr(one, "name", None) for one in branches], types, self._is_json)

        def convert(value: Any) -> dict[str, Any]:
            at, converted = union.member(value)
            return {name: converted if i == at else None for i, name in enumerate(names)}

        return _struct(names, types, convert)

    def _array(self, items: ColumnType) -> ColumnType:
        def convert(value: Any) -> list[Any]:
            if not isinstance(value, list):
                raise TypeError(f"{value!r:.100} is not an array")
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

    def _record(self, kind: Record, path: str) -> ColumnType:
        fields = []
        for one in kind.fields:
            place = f"{path}.{one.name}"
            fields.append(_Field.of(one, self.of(one.type, place), place))
        if not fields:
            raise ConfigurationError(
                f"field {path} of the schema is a record without fields; use value_schema=none"
            )

        def convert(value: Any) -> dict[str, Any]:
            given = _object(value)
            return {field.name: field.value_in(given) for field in fields}

        return _struct([one.name for one in fields], [one.type for one in fields], convert)


def _always_null(path: str) -> ConfigurationError:
    return ConfigurationError(
        f"field {path} of the schema is always null, which no column can represent; use value_schema=none"
    )


def _wider(kinds: Sequence[AvroType]) -> str | None:
    """Return the wider one of two numeric types; None for any other types."""
    if not all(isinstance(one, Primitive) and one.logical is None for one in kinds):
        return None
    return _WIDER.get(frozenset(one.kind for one in kinds))


def _struct(names: Sequence[str], types: Sequence[ColumnType], convert: Convert) -> ColumnType:
    fields = list(zip(names, types, strict=True))
    return ColumnType(
        pa.struct([pa.field(name, one.arrow) for name, one in fields]),
        f"struct<{','.join(f'{name}:{one.spark}' for name, one in fields)}>",
        f"struct<{', '.join(f'`{name}`: {one.ddl}' for name, one in fields)}>",
        convert,
    )


class _Union:
    """Selection of a union's member by a value."""

    def __init__(self, names: Sequence[str | None], types: Sequence[ColumnType], is_json: bool) -> None:
        self._names = names
        self._types = types
        self._is_json = is_json

    def member(self, value: Any) -> tuple[int, Any]:
        """Return the number of the member for a value, and the converted value.

        Raises `TypeError` if no member accepts the value.
        """
        for at in self._best_first(value):
            try:
                return at, self._types[at].convert(value)
            except (TypeError, ValueError, ArithmeticError):
                continue
        raise TypeError(f"no type of the union accepts {_bare(value)!r:.100}")

    def _best_first(self, value: Any) -> list[int]:
        """Return all member numbers: first members with the value's name, then members of its type, then the others.

        For an Avro value without a name, members without a name come first.
        """
        name = avro.last(value[0]) if isinstance(value, tuple) else None
        plain = _bare(value)

        def rank(at: int) -> tuple[bool, bool, bool]:
            fits = _has_type(plain, self._types[at].arrow, self._is_json)
            named = self._names[at] is not None
            return name is None or self._names[at] != name, not fits, named and not self._is_json

        return sorted(range(len(self._types)), key=rank)


@dataclass(frozen=True)
class _Field:
    """Field of a record."""

    name: str
    names: tuple[str, ...]
    """The field's name, followed by its aliases."""
    type: ColumnType
    has_default: bool
    default: Any

    @classmethod
    def of(cls, field: avro.Field, made: ColumnType, path: str) -> _Field:
        default = field.default
        try:
            if default is not None:
                default = made.convert(avro.default_value(field.type, default))
        except (TypeError, ValueError, ArithmeticError) as error:
            raise ConfigurationError(
                f"field {path} of the schema has a default of another type: {error}; use value_schema=none"
            ) from None
        return cls(field.name, (field.name, *field.aliases), made, field.has_default, default)

    def value_in(self, given: Mapping[str, Any]) -> Any:
        """Return the field's converted value in the record `given`, or its default.

        Raises `ValueError` or `TypeError` if the value does not fit.
        """
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


def _bare(value: Any) -> Any:
    """Return a union's value without the name that `fastavro` pairs with it."""
    return value[1] if isinstance(value, tuple) else value


def _has_type(value: Any, arrow: pa.DataType, is_json: bool) -> bool:
    """Return whether a value has exactly a column's type, so that it need not be widened."""
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
        raise TypeError(f"{value!r:.100} is not an object")
    return value


def _text(value: Any) -> str:
    value = _bare(value)
    if isinstance(value, bytes):
        return value.decode()
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.100} is not a string")
    value.encode()
    return value


def _symbol(kind: Enum) -> Convert:
    symbols = frozenset(kind.symbols)

    def convert(value: Any) -> str:
        text = _text(value)
        if text in symbols:
            return text
        if kind.default is None:
            raise ValueError(f"{text!r:.100} is not a symbol of {kind.full_name}")
        return kind.default

    return convert


def _bytes(value: Any) -> bytes:
    value = _bare(value)
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, bytes):
        raise TypeError(f"{value!r:.100} is not bytes")
    return value


def _from_base64(value: Any) -> bytes:
    """Decode a base64 JSON value. A field's default, which already is bytes, is returned unchanged."""
    return value if isinstance(value, bytes) else b64decode(_text(value), validate=True)


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r:.100} is not a boolean")
    return value


def _whole(bits: str) -> Convert:
    bound = _INT_MAX[bits]

    def convert(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not -bound <= value < bound:
            raise TypeError(f"{value!r:.100} is not of type {bits}")
        return value

    return convert


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r:.100} is not a number")
    return float(value)


def _json(value: Any) -> str:
    """Encode a value as JSON, with bytes in base64."""
    if value is None:
        raise TypeError("None is not an object")
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

_WIDER: Final = {frozenset(("int", "long")): "long", frozenset(("float", "double")): "double"}
"""Unions of two numeric types, and the wider type of their column."""

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


def _logical(kind: Primitive | Fixed, logical: Logical) -> ColumnType | None:
    """Return the column type of a logical type; None for unsupported ones."""
    match kind.kind, logical.name.rpartition("-"):
        case "int", ("", "", "date"):
            return ColumnType(pa.date32(), "date", "date", _day)
        case "long", ("timestamp", _, "millis" | "micros" as unit):
            return ColumnType(TIME, "timestamp", "timestamp", _moment(_UNITS_US[unit]))
        case "long", ("local-timestamp", _, "millis" | "micros" as unit):
            local = _moment(_UNITS_US[unit])
            return ColumnType(
                pa.timestamp("us"),
                "timestamp_ntz",
                "timestamp_ntz",
                lambda value: local(value).replace(tzinfo=None),
            )
        case "bytes" | "fixed", ("", "", "decimal") if logical.precision <= DECIMAL_DIGITS_MAX:
            text = f"decimal({logical.precision},{logical.scale})"
            return ColumnType(
                pa.decimal128(logical.precision, logical.scale), text, text, _decimal(logical.scale)
            )
    return None


def written_with(definition: str) -> Any:
    """Return the definition by which `fastavro` reads values for columns. Raises `AvroError`.

    Logical types without a column type are removed, because `fastavro` would otherwise convert their values.
    """
    return avro.writer_json(avro.parse(definition), lambda kind, logical: _logical(kind, logical) is not None)


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
            raise TypeError(f"{value!r:.100} is not a number")
        return Decimal(str(value))

    return convert
