"""Conversion of Python classes to Avro definitions, which brokers store as schemas of JSON and Avro messages. No I/O.

| in Python | in Avro |
|---|---|
| bool, int, float, str, bytes | boolean, long, double, string, bytes |
| `Int`, `Float` | int, float |
| `list[T]`, `dict[str, T]` | array, map |
| `T | None` | ["null", T] |
| Enum | enum of its values |
| dataclass, msgspec.Struct | record |

A field's default is also its default in Avro, so that older messages without the field can be read. A class used
within a class is defined at its first use, and referenced by name after that.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator
from enum import Enum
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec

from quire.runtime.errors import ConfigurationError

Int = Annotated[int, "int"]
"""A 32-bit integer in Avro; a plain `int` has 64 bits."""

Float = Annotated[float, "float"]
"""A 32-bit float in Avro; a plain `float` has 64 bits."""

_PLAIN: Final[dict[Any, str]] = {
    bool: "boolean",
    int: "long",
    float: "double",
    str: "string",
    bytes: "bytes",
    type(None): "null",
}
_NOTHING: Final = object()


def definition_of(kind: Any) -> Any:
    """Return the Avro definition of a class. Raises `ConfigurationError` for a type that Avro cannot express."""
    return _definition(kind, set())


def _definition(kind: Any, known: set[str]) -> Any:
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return args[1] if args[1] in ("int", "float") else _definition(args[0], known)
    if kind in _PLAIN:
        return _PLAIN[kind]
    if origin in (Union, types.UnionType):
        return [_definition(one, known) for one in sorted(args, key=lambda one: one is not type(None))]
    if origin is list:
        return {"type": "array", "items": _definition(args[0], known)}
    if origin is dict and args[0] is str:
        return {"type": "map", "values": _definition(args[1], known)}
    if isinstance(kind, type):
        return _named(kind, known)
    raise ConfigurationError(f"the type {kind!r} has no Avro schema")


def _named(kind: type, known: set[str]) -> Any:
    name = kind.__name__
    if name in known:
        return name
    known.add(name)
    if issubclass(kind, Enum):
        return {"type": "enum", "name": name, "symbols": [str(one.value) for one in kind]}
    if not dataclasses.is_dataclass(kind) and not issubclass(kind, msgspec.Struct):
        raise ConfigurationError(f"a schema needs a dataclass or a msgspec.Struct, not {name}")
    hints = get_type_hints(kind, include_extras=True)
    fields = []
    for field, default in _fields(kind):
        made = {"name": field, "type": _definition(hints[field], known)}
        if default is not _NOTHING:
            made["default"] = msgspec.to_builtins(default)
            made["type"] = _default_first(made["type"], default)
        fields.append(made)
    return {"type": "record", "name": name, "fields": fields}


def _default_first(kind: Any, default: Any) -> Any:
    """Put the default's branch of a union first, as Avro requires."""
    if not isinstance(kind, list):
        return kind
    return sorted(kind, key=lambda one: (one == "null") != (default is None))


def _fields(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield (name, default or `_NOTHING`) of each field; a default factory is called for its default."""
    if issubclass(kind, msgspec.Struct):
        for one in msgspec.structs.fields(kind):
            yield one.name, _default(one.default, one.default_factory, msgspec.NODEFAULT)
        return
    of: Any = kind
    for other in dataclasses.fields(of):
        yield other.name, _default(other.default, other.default_factory, dataclasses.MISSING)


def _default(value: Any, factory: Any, missing: Any) -> Any:
    if value is not missing:
        return value
    return factory() if factory is not missing else _NOTHING
