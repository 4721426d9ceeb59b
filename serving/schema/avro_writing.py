"""Encoder of Avro data from JSON that an operator typed, by a schema that `wire.avro.parse` accepted. Performs no I/O.

The JSON is plain, as Pulsar's JSON schemas have it: the value of a union is not wrapped in an object with its type, and
takes the first branch that fits. Bytes are text with one character for each byte. Logical types are written as they
are stored: a timestamp is a number. `validate` checks a value for a JSON schema, whose messages are the JSON itself.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, Final, NoReturn

from quire.serving.schema.avro_values import DEPTH_MAX, ITEMS_MAX
from quire.wire.avro import Array, AvroType, Enum, Field, Fixed, Map, Primitive, Record, Union

_INT_MAX: Final = {"int": 1 << 31, "long": 1 << 63}
_FLOATS: Final = {"float": Struct("<f"), "double": Struct("<d")}


class DoesNotFit(ValueError):
    """Error for a value that does not match the schema; its text is the place and the reason."""


class TooComplex(ValueError):
    """Error for a value with too many parts; unlike `DoesNotFit`, it ends the search for a union's branch."""


class _Output(bytearray):
    """Encoded bytes, and the number of `steps`, which include attempts at branches of unions that did not fit."""

    steps = 0


def write(definition: AvroType, value: Any) -> bytes:
    """Encode a JSON value. Raises `DoesNotFit`, `TooComplex`."""
    out = _Output()
    _write(definition, value, "", 0, out)
    return bytes(out)


def validate(definition: AvroType, value: Any) -> None:
    """Check that a JSON value matches a definition. Raises `DoesNotFit`, `TooComplex`."""
    write(definition, value)


def _write(kind: AvroType, value: Any, at: str, depth: int, out: _Output) -> None:
    out.steps += 1
    if depth > DEPTH_MAX or out.steps > ITEMS_MAX:
        raise TooComplex(
            f"the value has more than {ITEMS_MAX} parts, or is nested more than {DEPTH_MAX} deep"
        )
    match kind:
        case Primitive():
            _PRIMITIVES[kind.kind](kind.kind, value, at, out)
        case Fixed():
            raw = _latin_1(value, at)
            if len(raw) != kind.size:
                _refuse(at, f"a text of {kind.size} characters", value)
            out += raw
        case Enum():
            if value not in kind.symbols:
                _refuse(at, f"one of {', '.join(kind.symbols[:20])}", value)
            out += _number(kind.symbols.index(value))
        case Union():
            _write_union(kind, value, at, depth, out)
        case Record():
            _write_record(kind, value, at, depth, out)
        case Array():
            if not isinstance(value, list):
                _refuse(at, "an array", value)
            for number, one in enumerate(value):
                if not number:
                    out += _number(len(value))
                _write(kind.items, one, f"{at}[{number}]", depth + 1, out)
            out += b"\0"
        case Map():
            if not isinstance(value, dict):
                _refuse(at, "an object", value)
            out += _number(len(value)) if value else b""
            for key, one in value.items():
                _text("string", key, at, out)
                _write(kind.values, one, f"{at}.{key}", depth + 1, out)
            out += b"\0"


def _write_union(kind: Union, value: Any, at: str, depth: int, out: _Output) -> None:
    """Write a value as the first branch that fits; the error is that of the last branch that is not null."""
    start, reason = len(out), DoesNotFit(f"{at or 'the value'} fits no branch of the union")
    for number, branch in enumerate(kind.branches):
        try:
            out += _number(number)
            _write(branch, value, at, depth + 1, out)
        except DoesNotFit as error:
            del out[start:]
            if branch.kind != "null":
                reason = error
        else:
            return
    raise reason


def _write_record(kind: Record, value: Any, at: str, depth: int, out: _Output) -> None:
    if not isinstance(value, dict):
        _refuse(at, f"an object with the fields of {kind.name}", value)
    unknown = value.keys() - {one.name for one in kind.fields}
    if unknown:
        raise DoesNotFit(f"{kind.name} has no field {_within(at, min(unknown))}")
    for one in kind.fields:
        _write(one.type, _field(one, value, at), _within(at, one.name), depth + 1, out)


def _field(field: Field, value: dict[str, Any], at: str) -> Any:
    if field.name in value:
        return value[field.name]
    if field.has_default:
        return field.default
    if isinstance(field.type, Union) and any(one.kind == "null" for one in field.type.branches):
        return None
    raise DoesNotFit(f"field {_within(at, field.name)} is missing")


def _within(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _refuse(at: str, wanted: str, value: Any) -> NoReturn:
    shown = (
        repr(value) if value is None or isinstance(value, bool | int | float | str) else type(value).__name__
    )
    raise DoesNotFit(f"{at or 'the value'} must be {wanted}, not {shown[:40]}")


# -- primitive types -----------------------------------------------------------------------------------


def _null(_: str, value: Any, at: str, __: bytearray) -> None:
    if value is not None:
        _refuse(at, "null", value)


def _boolean(_: str, value: Any, at: str, out: bytearray) -> None:
    if not isinstance(value, bool):
        _refuse(at, "true or false", value)
    out.append(value)


def _whole(kind: str, value: Any, at: str, out: bytearray) -> None:
    most = _INT_MAX[kind]
    if isinstance(value, bool) or not isinstance(value, int) or not -most <= value < most:
        _refuse(at, f"a whole number of type {kind}", value)
    out += _number(value)


def _real(kind: str, value: Any, at: str, out: bytearray) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        _refuse(at, "a number", value)
    try:
        out += _FLOATS[kind].pack(value)
    except OverflowError:
        _refuse(at, f"a number of type {kind}", value)


def _bytes(_: str, value: Any, at: str, out: bytearray) -> None:
    raw = _latin_1(value, at)
    out += _number(len(raw)) + raw


def _text(_: str, value: Any, at: str, out: bytearray) -> None:
    if not isinstance(value, str):
        _refuse(at, "text", value)
    raw = value.encode()
    out += _number(len(raw)) + raw


_PRIMITIVES: Final[dict[str, Callable[[str, Any, str, bytearray], None]]] = {
    "null": _null,
    "boolean": _boolean,
    "int": _whole,
    "long": _whole,
    "float": _real,
    "double": _real,
    "bytes": _bytes,
    "string": _text,
}


def _latin_1(value: Any, at: str) -> bytes:
    try:
        return bytes(value.encode("latin-1"))
    except (AttributeError, UnicodeEncodeError):
        _refuse(at, "text with one character for each byte", value)


def _number(value: int) -> bytes:
    """Encode a number in zigzag form, in groups of seven bits, least significant first."""
    left = (value << 1) ^ (value >> 63)
    out = bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)
