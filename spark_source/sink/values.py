"""Encoder of structs by the topic's schema, Avro or JSON, and the definition of a schema for a struct.

`definition_of` returns the Avro definition of a DataFrame's type, by the table in `quire.spark_source.avro_types` from
right to left. A nullable field is a union with null, and its default is null.

`Encoder` encodes values by a definition, which may differ from `definition_of` the values' type. Numbers may be
widened, and fields with a default may be missing, but no data may be lost. These are refused, with the name of the
field: a field that the definition lacks, a null for a type that does not allow it, a number that is too large, a
decimal with too many digits. Times are truncated to the definition's unit.

JSON values have the format that Pulsar's clients read: bytes in base64, times as numbers in the unit of the definition,
decimals as text. Unions of several types are refused, as in reading.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from functools import partial
from io import BytesIO
from typing import Any, Final, NamedTuple

import pyarrow as pa

from quire.runtime.errors import ConfigurationError
from quire.wire import avro
from quire.wire import pulsar_pb2 as pb
from quire.wire.avro import Array, AvroType, Enum, Field, Fixed, Logical, Map, Primitive, Record, Union

Convert = Callable[[Any], Any]
"""Converter of a value from Arrow to the encoder's type. Raises `ValueError`."""

_NAME: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EXACT: Final = Context(prec=100)
"""Decimal context that does not round columns' decimals of up to 38 digits; Python's default rounds to 28."""
_UNITS: Final = {"millis": timedelta(milliseconds=1), "micros": timedelta(microseconds=1)}
_BITS: Final = {"int": 31, "long": 63}


class TopicSchema(NamedTuple):
    """Schema as stored by the broker. It is pickled to the tasks."""

    kind: str
    """AVRO or JSON."""
    definition: str

    @property
    def info(self) -> pb.Schema:
        """Schema in the format of a producer's request."""
        kind = pb.Schema.Avro if self.kind == "AVRO" else pb.Schema.Json
        return pb.Schema(name="value", schema_data=self.definition.encode(), type=kind)


# -- a schema for a type ---------------------------------------------------------------------------------


def definition_of(struct: pa.StructType) -> dict[str, Any]:
    """Return the Avro definition of a struct. Raises `ConfigurationError` for types that Avro lacks."""
    return _record(struct, "Value")


_PLAIN: Final = (
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int64, "long"),
    (pa.types.is_integer, "int"),
    (pa.types.is_float32, "float"),
    (pa.types.is_float64, "double"),
    (pa.types.is_string, "string"),
    (pa.types.is_large_string, "string"),
    (pa.types.is_binary, "bytes"),
    (pa.types.is_large_binary, "bytes"),
)


def _record(struct: pa.StructType, name: str) -> dict[str, Any]:
    fields = []
    for field in struct:
        if not _NAME.fullmatch(field.name):
            raise ConfigurationError(
                f"{field.name!r} is not a valid name of a schema field, which has only letters, digits and _: rename "
                "it with an alias or Column.withField"
            )
        kind = _type(field.type, f"{name}_{field.name}")
        if field.nullable:
            fields.append({"name": field.name, "type": ["null", kind], "default": None})
        else:
            fields.append({"name": field.name, "type": kind})
    return {"type": "record", "name": name, "fields": fields}


def _type(kind: pa.DataType, name: str) -> Any:
    for is_one, plain in _PLAIN:
        if is_one(kind):
            return plain
    if pa.types.is_date(kind):
        return {"type": "int", "logicalType": "date"}
    if pa.types.is_timestamp(kind):
        return {"type": "long", "logicalType": "timestamp-micros" if kind.tz else "local-timestamp-micros"}
    if pa.types.is_decimal(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if pa.types.is_struct(kind):
        return _record(kind, name)
    if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
        return {"type": "map", "values": _or_null(kind.item_field, name)}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return {"type": "array", "items": _or_null(kind.value_field, name)}
    raise ConfigurationError(f"a schema has no type for {kind} of {name.removeprefix('Value_')}; cast it")


def _or_null(field: pa.Field, name: str) -> Any:
    kind = _type(field.type, name)
    return ["null", kind] if field.nullable else kind


# -- does a type fit -------------------------------------------------------------------------------------


def misfit(schema: TopicSchema, struct: pa.StructType) -> str:
    """Return the reason why no row of this type fits a schema; "" if rows may fit. Raises `ConfigurationError`."""
    definition = _parse(schema)
    if not isinstance(definition, Record):
        return "it is not a record"
    known = {field.name: field for field in definition.fields}
    names = [field.name for field in struct]
    more = [name for name in names if name not in known]
    if more:
        return f"it has no field {more[0]}"
    for name, field in known.items():
        if name not in names and not field.has_default:
            return f"its field {name} has no default, and value has no such field"
    return ""


# -- values ----------------------------------------------------------------------------------------------


class Encoder:
    """Encoder of structs by a definition. Raises `ConfigurationError` for definitions that cannot be written."""

    def __init__(self, schema: TopicSchema) -> None:
        definition = _parse(schema)
        self._convert = _Converters(is_json=schema.kind == "JSON").of(definition, "value")
        self._write = _json if schema.kind == "JSON" else _avro_writer(definition)

    def encode(self, value: Mapping[str, Any]) -> bytes:
        """Encode a struct. Raises `ValueError` with the reason why it does not fit."""
        try:
            return self._write(self._convert(value))
        except (TypeError, ArithmeticError, LookupError) as error:
            raise ValueError(str(error)) from None


def _parse(schema: TopicSchema) -> AvroType:
    """Parse a topic's definition. Raises `ConfigurationError`."""
    try:
        return avro.parse(schema.definition)
    except avro.UndefinedType as error:
        raise _unwritable(f"value{error.at}", error.name) from None
    except avro.AvroError as error:
        raise ConfigurationError(
            f"the topic's schema is not an Avro definition, and cannot be written from a column: {error}"
        ) from None


def _unwritable(path: str, name: str) -> ConfigurationError:
    return ConfigurationError(
        f"field {path} of the topic's schema is a {name}, which contains itself or is not defined, and cannot "
        "be written from a column"
    )


def _json(value: Any) -> bytes:
    text = json.dumps(
        value, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_default_as_json
    )
    return text.encode()


def _default_as_json(value: Any) -> str:
    """Convert bytes and decimals, which only the defaults of fields still contain."""
    return b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _avro_writer(definition: AvroType) -> Callable[[Any], bytes]:
    import fastavro  # needed only for Avro

    parsed = fastavro.parse_schema(avro.writer_json(definition))

    def write(value: Any) -> bytes:
        buffer = BytesIO()
        fastavro.schemaless_writer(buffer, parsed, value)
        return buffer.getvalue()

    return write


class _Converters:
    """Converters for the values of one definition.

    `_named` contains the converters of records; None marks a converter that is still being created.
    """

    def __init__(self, *, is_json: bool) -> None:
        self._is_json = is_json
        self._named: dict[AvroType, Convert | None] = {}

    def of(self, kind: AvroType, path: str) -> Convert:
        match kind:
            case Union():
                return self._union(kind.branches, path)
            case Array():
                return partial(_array, path, self.of(kind.items, f"{path}[]"))
            case Map():
                return partial(_map, path, self.of(kind.values, f"{path}{{}}"))
            case Record():
                return self._record_once(kind, path)
            case Enum():
                return partial(_symbol, path, frozenset(kind.symbols))
        logical = None if kind.logical is None else _logical(kind, kind.logical, path, self._is_json)
        if logical is not None:
            return logical
        if isinstance(kind, Fixed):
            return partial(_fixed, path, kind.size, self._is_json)
        return self._simple(kind.kind, path)

    def _simple(self, name: str, path: str) -> Convert:
        if name == "bytes":
            return partial(_bytes, path, self._is_json)
        if name in _BITS:
            return partial(_whole, path, _BITS[name])
        if name == "null":
            raise ConfigurationError(
                f"field {path} of the topic's schema is always null, and cannot be written from a column"
            )
        return partial(_SIMPLE[name], path)

    def _union(self, branches: Sequence[AvroType], path: str) -> Convert:
        others = [one for one in branches if one.kind != "null"]
        if len(others) != 1:
            raise ConfigurationError(
                f"field {path} of the topic's schema is one of several types, and cannot be written from a column"
            )
        convert = self.of(others[0], path)
        if len(others) == len(branches):
            return convert
        return lambda value: None if value is None else convert(value)

    def _record_once(self, kind: Record, path: str) -> Convert:
        if kind not in self._named:
            self._named[kind] = None
            self._named[kind] = self._record(kind, path)
        found = self._named[kind]
        if found is None:
            raise _unwritable(path, kind.name)
        return found

    def _record(self, kind: Record, path: str) -> Convert:
        fields = {
            one.name: (self.of(one.type, f"{path}.{one.name}"), one.has_default, _default(one))
            for one in kind.fields
        }

        def convert(value: Any) -> dict[str, Any]:
            given = _not_null(path, value)
            for name in given:
                if name not in fields:
                    raise ValueError(f"{path} has a field {name}, which the schema does not have")
            made = {}
            for name, (convert_field, has_default, default) in fields.items():
                if name in given:
                    made[name] = convert_field(given[name])
                elif not has_default:
                    raise ValueError(f"{path}.{name} is missing, and the schema has no default for it")
                else:
                    made[name] = default
            return made

        return convert


def _default(field: Field) -> Any:
    try:
        return avro.default_value(field.type, field.default)
    except ValueError:  # not bytes
        return field.default


def _not_null(path: str, value: Any) -> Any:
    if value is None:
        raise ValueError(f"{path} is null, but the schema does not allow null there")
    return value


def _instance(path: str, kinds: Any, words: str, value: Any) -> Any:
    _not_null(path, value)
    if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
        raise ValueError(f"{path} is {value!r:.60}, but the schema has {words} there")
    return value


def _boolean(path: str, value: Any) -> Any:
    return _instance(path, bool, "a boolean", value)


def _text(path: str, value: Any) -> Any:
    return _instance(path, str, "a text", value)


def _number(path: str, value: Any) -> float:
    return float(_instance(path, (int, float), "a number", value))


_SIMPLE: Final[Mapping[str, Callable[[str, Any], Any]]] = {
    "boolean": _boolean,
    "string": _text,
    "float": _number,
    "double": _number,
}


def _whole(path: str, bits: int, value: Any) -> int:
    found: int = _instance(path, int, "a whole number", value)
    if not -(1 << bits) <= found < 1 << bits:
        raise ValueError(f"{path} is {found}, but the schema has {bits + 1} bits there")
    return found


def _bytes(path: str, is_json: bool, value: Any) -> Any:
    if isinstance(value, str):
        value = value.encode()
    found: bytes = _instance(path, bytes, "bytes", value)
    return b64encode(found).decode() if is_json else found


def _fixed(path: str, size: int, is_json: bool, value: Any) -> Any:
    if isinstance(value, bytes) and len(value) != size:
        raise ValueError(f"{path} has {len(value)} bytes, but the schema has {size} there")
    return _bytes(path, is_json, value)


def _symbol(path: str, symbols: frozenset[str], value: Any) -> Any:
    if _text(path, value) not in symbols:
        raise ValueError(f"{path} is {value!r:.60}, but the schema has {', '.join(sorted(symbols))} there")
    return value


def _array(path: str, convert: Convert, value: Any) -> list[Any]:
    return [convert(one) for one in _instance(path, list, "an array", value)]


def _map(path: str, convert: Convert, value: Any) -> dict[str, Any]:
    return {name: convert(one) for name, one in _instance(path, list, "a map", value)}


# -- logical types ---------------------------------------------------------------------------------------


def _logical(kind: Primitive | Fixed, logical: Logical, path: str, is_json: bool) -> Convert | None:
    """Return the converter of a logical type; None for unsupported ones."""
    match kind.kind, logical.name.rpartition("-"):
        case "int", ("", "", "date"):
            return partial(_day, path)
        case "long", ("timestamp" | "local-timestamp", _, "millis" | "micros" as unit):
            return partial(_moment, path, _UNITS[unit])
        case "bytes" | "fixed", ("", "", "decimal"):
            return partial(_decimal, path, (logical.precision, logical.scale), is_json)
    return None


def _day(path: str, value: Any) -> int:
    if isinstance(value, datetime):
        raise ValueError(f"{path} is a time, but the schema has a date there")
    return (_instance(path, date, "a date", value) - date(1970, 1, 1)).days  # type: ignore[no-any-return]


def _moment(path: str, unit: timedelta, value: Any) -> int:
    found: datetime = _instance(path, datetime, "a time", value)
    return (found.replace(tzinfo=found.tzinfo or UTC) - _EPOCH) // unit


def _decimal(path: str, digits: tuple[int, int], is_json: bool, value: Any) -> Any:
    if isinstance(value, int):
        value = Decimal(value)
    found: Decimal = _instance(path, Decimal, "a decimal", value)
    precision, scale = digits
    fitting = found.quantize(Decimal(1).scaleb(-scale), context=_EXACT)
    if fitting != found or len(fitting.as_tuple().digits) > precision:
        raise ValueError(f"{path} is {found}, but the schema has a decimal({precision},{scale}) there")
    return str(fitting) if is_json else fitting
