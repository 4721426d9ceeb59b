"""Typed values: structs as bytes of the topic's schema, Avro or JSON, and the schema of a struct that has none.

`definition_of` is the Avro definition of a DataFrame's type, by the table of `quire.spark_source.avro_types` read from
right to left; a field that may be null is a union with null, and its default is null. `Encoder` takes values by a
definition, which may be another one than that: numbers may be widened, fields with a default may be missing, and
nothing may be lost. So a field that the definition does not have, a null where it has none, a number that is too large,
and a decimal with more digits than it keeps are refused, by the name of the field. Times are cut to the definition's
unit, as everywhere.

JSON is as the readers of Pulsar's clients take it: bytes in base64, times as numbers in the unit of the definition,
decimals as text. Unions of several types are refused, as in reading.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from functools import partial
from io import BytesIO
from typing import Any, Final, NamedTuple

import pyarrow as pa

from quire.runtime.errors import ConfigurationError
from quire.wire import pulsar_pb2 as pb

Take = Callable[[Any], Any]
"""A value as Arrow gives it to what the encoding takes. Raises `ValueError`."""

_NAME: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EXACT: Final = Context(prec=100)
"""Decimals of columns have up to 38 digits, and Python rounds to 28 if it is not told otherwise."""
_UNITS: Final = {"millis": timedelta(milliseconds=1), "micros": timedelta(microseconds=1)}
_BITS: Final = {"int": 31, "long": 63}


class TopicSchema(NamedTuple):
    """A schema as the broker keeps it; a plain thing, which crosses to tasks."""

    kind: str
    """AVRO or JSON."""
    definition: str

    @property
    def info(self) -> pb.Schema:
        """As producers tell it to a broker."""
        kind = pb.Schema.Avro if self.kind == "AVRO" else pb.Schema.Json
        return pb.Schema(name="value", schema_data=self.definition.encode(), type=kind)


# -- a schema for a type ---------------------------------------------------------------------------------


def definition_of(struct: pa.StructType) -> dict[str, Any]:
    """The Avro definition of a struct. Raises `ConfigurationError` for what Avro has no type for."""
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
                f"{field.name!r} cannot be the name of a field in a schema: use letters, digits and _, as in "
                "value.withField or an alias"
            )
        kind = _type(field.type, f"{name}_{field.name}")
        if field.nullable:
            fields.append({"name": field.name, "type": ["null", kind], "default": None})
        else:
            fields.append({"name": field.name, "type": kind})
    return {"type": "record", "name": name, "fields": fields}


def _type(kind: pa.DataType, name: str) -> Any:
    for is_one, avro in _PLAIN:
        if is_one(kind):
            return avro
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


def misfit(definition: Any, struct: pa.StructType) -> str:
    """Why no row of this type fits a definition; nothing when rows may."""
    if not isinstance(definition, Mapping) or definition.get("type") != "record":
        return "it is no record"
    known = {field["name"]: field for field in definition["fields"]}
    names = [field.name for field in struct]
    more = [name for name in names if name not in known]
    if more:
        return f"it has no field {more[0]}"
    for name, field in known.items():
        if name not in names and "default" not in field:
            return f"its field {name} has no default, and value has no such field"
    return ""


# -- values ----------------------------------------------------------------------------------------------


class Encoder:
    """Structs to bytes of a definition. Raises `ConfigurationError` for definitions that cannot be written."""

    def __init__(self, schema: TopicSchema) -> None:
        definition = json.loads(schema.definition)
        self._take = _Takes(is_json=schema.kind == "JSON").of(definition, "value")
        self._write = _json if schema.kind == "JSON" else _avro_writer(definition)

    def encode(self, value: Mapping[str, Any]) -> bytes:
        """Raises `ValueError` with what does not fit."""
        try:
            return self._write(self._take(value))
        except (TypeError, ArithmeticError, LookupError) as error:
            raise ValueError(str(error)) from None


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _avro_writer(definition: Any) -> Callable[[Any], bytes]:
    import fastavro  # only who writes Avro needs it

    parsed = fastavro.parse_schema(definition)

    def write(value: Any) -> bytes:
        buffer = BytesIO()
        fastavro.schemaless_writer(buffer, parsed, value)
        return buffer.getvalue()

    return write


class _Takes:
    """What takes the values of one definition; `named` are those of types with names."""

    def __init__(self, *, is_json: bool) -> None:
        self._is_json = is_json
        self._named: dict[str, Take] = {}

    def of(self, definition: Any, path: str) -> Take:
        if isinstance(definition, list):
            return self._union(definition, path)
        if isinstance(definition, str):
            return self._simple(definition, path)
        kind = definition["type"]
        if not isinstance(kind, str):
            return self.of(kind, path)
        if kind == "record":
            return self._record(definition, path)
        if kind in ("enum", "fixed"):
            return self._remember(definition, self._sized(definition, path))
        if kind == "array":
            return partial(_array, path, self.of(definition["items"], f"{path}[]"))
        if kind == "map":
            return partial(_map, path, self.of(definition["values"], f"{path}{{}}"))
        return _logical(definition, path, self._is_json) or self._simple(kind, path)

    def _simple(self, name: str, path: str) -> Take:
        if name == "bytes":
            return partial(_bytes, path, self._is_json)
        if name in _SIMPLE:
            return partial(_SIMPLE[name], path)
        if name in _BITS:
            return partial(_whole, path, _BITS[name])
        found = self._named.get(name.rpartition(".")[2])
        if found is None:
            raise ConfigurationError(
                f"field {path} of the topic's schema is a {name}, which contains itself or is not defined, and cannot "
                "be written from a column"
            )
        return found

    def _remember(self, definition: Mapping[str, Any], made: Take) -> Take:
        self._named[definition["name"].rpartition(".")[2]] = made
        return made

    def _sized(self, definition: Mapping[str, Any], path: str) -> Take:
        if definition["type"] == "enum":
            return partial(_symbol, path, frozenset(definition["symbols"]))
        return _logical(definition, path, self._is_json) or partial(
            _fixed, path, definition["size"], self._is_json
        )

    def _union(self, branches: list[Any], path: str) -> Take:
        others = [one for one in branches if one != "null"]
        if len(others) != 1:
            raise ConfigurationError(
                f"field {path} of the topic's schema is one of several types, and cannot be written from a column"
            )
        take = self.of(others[0], path)
        if len(others) == len(branches):
            return take
        return lambda value: None if value is None else take(value)

    def _record(self, definition: Mapping[str, Any], path: str) -> Take:
        fields = {
            one["name"]: (self.of(one["type"], f"{path}.{one['name']}"), _default(one))
            for one in definition["fields"]
        }

        def take(value: Any) -> dict[str, Any]:
            given = _not_null(path, value)
            for name in given:
                if name not in fields:
                    raise ValueError(f"{path} has a field {name}, which the schema does not have")
            made = {}
            for name, (convert, default) in fields.items():
                if name in given:
                    made[name] = convert(given[name])
                elif default is _NOTHING:
                    raise ValueError(f"{path}.{name} is missing, and the schema has no default for it")
                else:
                    made[name] = default
            return made

        return self._remember(definition, take)


_NOTHING: Final = object()


def _default(field: Mapping[str, Any]) -> Any:
    default = field.get("default", _NOTHING)
    is_bytes = isinstance(default, str) and field["type"] in ("bytes", ["bytes", "null"])
    return default.encode("latin-1") if is_bytes else default


def _not_null(path: str, value: Any) -> Any:
    if value is None:
        raise ValueError(f"{path} is null, and the schema has no null there")
    return value


def _instance(path: str, kinds: Any, words: str, value: Any) -> Any:
    _not_null(path, value)
    if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
        raise ValueError(f"{path} is {value!r:.60}, and the schema has {words} there")
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
        raise ValueError(f"{path} is {found}, and the schema has {bits + 1} bits there")
    return found


def _bytes(path: str, is_json: bool, value: Any) -> Any:
    if isinstance(value, str):
        value = value.encode()
    found: bytes = _instance(path, bytes, "bytes", value)
    return b64encode(found).decode() if is_json else found


def _fixed(path: str, size: int, is_json: bool, value: Any) -> Any:
    if isinstance(value, bytes) and len(value) != size:
        raise ValueError(f"{path} has {len(value)} bytes, and the schema has {size} there")
    return _bytes(path, is_json, value)


def _symbol(path: str, symbols: frozenset[str], value: Any) -> Any:
    if _text(path, value) not in symbols:
        raise ValueError(f"{path} is {value!r:.60}, and the schema has {', '.join(sorted(symbols))} there")
    return value


def _array(path: str, take: Take, value: Any) -> list[Any]:
    return [take(one) for one in _instance(path, list, "an array", value)]


def _map(path: str, take: Take, value: Any) -> dict[str, Any]:
    return {name: take(one) for name, one in _instance(path, list, "a map", value)}


# -- logical types ---------------------------------------------------------------------------------------


def _logical(definition: Mapping[str, Any], path: str, is_json: bool) -> Take | None:
    """For a logical type that columns have; None for all others."""
    name, kind = str(definition.get("logicalType", "")), definition["type"]
    family, _, unit = name.rpartition("-")
    if name == "date" and kind == "int":
        return partial(_day, path)
    if kind == "long" and unit in _UNITS and family in ("timestamp", "local-timestamp"):
        return partial(_moment, path, _UNITS[unit])
    if name == "decimal" and kind in ("bytes", "fixed"):
        digits = int(definition["precision"]), int(definition.get("scale", 0))
        return partial(_decimal, path, digits, is_json)
    return None


def _day(path: str, value: Any) -> int:
    if isinstance(value, datetime):
        raise ValueError(f"{path} is a time, and the schema has a date there")
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
        raise ValueError(f"{path} is {found}, and the schema has a decimal({precision},{scale}) there")
    return str(fitting) if is_json else fitting
