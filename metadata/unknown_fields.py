"""Fields of newer versions in metadata records: an older process keeps them when it rewrites a record.

In a rolling upgrade, processes of two versions change the same records. `records.decode` passes only fields that it
knows, and `records.encode` writes only these: a rewrite by the older process would reset the others to their defaults.
So a decoded record carries its unknown fields, as
[Protocol Buffers do](https://protobuf.dev/programming-guides/proto3/#unknowns); each nested record carries its own. In
memory, they are JSON in one text field, which is never stored:

    stored    {"tenant":"t","name":"n","policies":{"deduplication":true,"colour":"red"}}
    carried   {"tenant":"t","name":"n","policies":{"deduplication":true,"unknown_fields":"{\"colour\":\"red\"}"}}

`msgspec.structs.replace` copies the field with the others. A nested record that a change replaces as a whole, or
removes, loses its unknown fields with the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import inspect

UNKNOWN_FIELDS: Final = "unknown_fields"
"""Name of the text field in which a record carries its unknown fields."""

_AS_CARRIED: Final = f'"{UNKNOWN_FIELDS}":'.encode()


def carried(value: bytes, kind: type[msgspec.Struct]) -> bytes:
    """Move the fields that `kind` does not have from a stored record into its text fields. Raises `ValueError`."""
    return msgspec.json.encode(_walk(msgspec.json.decode(value), inspect.type_info(kind), _gather))


def stored(value: bytes, kind: type[msgspec.Struct]) -> bytes:
    """Move the fields in the text fields of an encoded record back to where they were stored."""
    if _AS_CARRIED not in value:
        return value
    return msgspec.json.encode(_walk(msgspec.json.decode(value), inspect.type_info(kind), _spread))


_OnStruct = Callable[[dict[str, Any], inspect.StructType], dict[str, Any]]


def _walk(value: Any, kind: inspect.Type, change: _OnStruct) -> Any:
    """Apply `change` to each record in a JSON value of type `kind`, inner records first; return the new value."""
    match kind:
        case inspect.StructType() if isinstance(value, dict):
            types = {field.encode_name: field.type for field in kind.fields}
            within = {name: _walk(one, types[name], change) for name, one in value.items() if name in types}
            return change(value | within, kind)
        case inspect.VarTupleType() if isinstance(value, list):
            return [_walk(one, kind.item_type, change) for one in value]
        case inspect.DictType() if isinstance(value, dict):
            return {name: _walk(one, kind.value_type, change) for name, one in value.items()}
        case inspect.UnionType():
            record = next((one for one in kind.types if isinstance(one, inspect.StructType)), None)
            return value if record is None else _walk(value, record, change)
    return value


def _gather(value: dict[str, Any], kind: inspect.StructType) -> dict[str, Any]:
    known = {field.encode_name for field in kind.fields} - {UNKNOWN_FIELDS}
    found = {name: one for name, one in value.items() if name in known}
    if len(found) < len(value):
        unknown = {name: one for name, one in value.items() if name not in known}
        found[UNKNOWN_FIELDS] = msgspec.json.encode(unknown).decode()
    return found


def _spread(value: dict[str, Any], kind: inspect.StructType) -> dict[str, Any]:
    del kind
    text = value.pop(UNKNOWN_FIELDS, "")
    return value | msgspec.json.decode(text) if text else value
