"""Avro definitions: whether data written by one can be read by another. A core.

`parse` makes a graph of types from a definition's JSON; a name stands for the type that it names, so a graph may have
circles. `unreadable` is Avro's *schema resolution*, asked without data:

    writer a union         the reader must read every branch
    reader a union         some branch of it must read what the writer has
    records                every field of the reader is read from the writer's of that name (or alias), or has a default
    enums                  same name; every symbol of the writer is known, or the reader has a default
    fixed                  same name, same size
    arrays, maps           their items
    int → long → float → double, string ↔ bytes

The names of records do not matter, as for the Java library's reader, on which Pulsar's own check rests: a class may
move to another package, and two languages call it differently. Names of enums and fixed types count without their
namespaces.

The answer is a greatest fixed point: every pair (reader's type, writer's type) that is reached becomes a node which
needs all or one of others; what cannot be read outright fails, and failure spreads backwards. So circles need no
special case, no pair is looked at twice, nothing recurses as deep as a definition is, and the reason leads from the
root to the place. Work is bounded (`PAIRS_MAX`), for a definition may be hostile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

PRIMITIVES: Final = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
PROMOTED_FROM: Final = {
    "long": ("int",),
    "float": ("int", "long"),
    "double": ("int", "long", "float"),
    "bytes": ("string",),
    "string": ("bytes",),
}
DEPTH_MAX: Final = 64
"""Types within types, by what is written."""

PAIRS_MAX: Final = 100_000
"""Pairs of types in one comparison, each as often as something needs it: a tenth of a second."""


class AvroError(ValueError):
    """The text is no Avro definition, or more than can be compared; says where and why."""


@dataclass(eq=False, slots=True)
class Field:
    name: str
    type: AvroType
    has_default: bool
    aliases: tuple[str, ...]


@dataclass(eq=False, slots=True)
class AvroType:
    """One type. Two are the same only if they are one object."""

    kind: str
    name: str = ""
    """Of a record, enum or fixed type, without its namespace."""
    aliases: tuple[str, ...] = ()
    fields: list[Field] = field(default_factory=list)
    branches: list[AvroType] = field(default_factory=list)
    items: AvroType | None = None
    symbols: tuple[str, ...] = ()
    has_default: bool = False
    """An enum that reads symbols it does not know."""
    size: int = 0


_PRIMITIVE_TYPES: Final = {name: AvroType(name) for name in PRIMITIVES}


# -- reading definitions -------------------------------------------------------------------------------


def parse(raw: bytes) -> AvroType:
    """The type that a definition in JSON describes. Raises `AvroError`."""
    return _Parser().type(load(raw), "", "", 0)


def load(raw: bytes) -> Any:
    """The definition's JSON. Raises `AvroError`."""
    try:
        return msgspec.json.decode(raw)
    except (ValueError, RecursionError) as error:
        raise AvroError(f"it is not JSON: {error}") from None


class _Parser:
    """`at` is where in the definition something is, for errors."""

    def __init__(self) -> None:
        self._named: dict[str, AvroType] = {}

    def type(self, value: Any, namespace: str, at: str, depth: int) -> AvroType:
        if depth > DEPTH_MAX:
            raise AvroError(f"{at or 'it'} lies more than {DEPTH_MAX} types deep")
        if isinstance(value, str):
            return self._by_name(value, namespace, at)
        if isinstance(value, list):
            return self._union(value, namespace, at, depth)
        if not isinstance(value, dict) or "type" not in value:
            raise AvroError(f"{at or 'it'} is no type: a name, a list or an object with a type")
        kind = value["type"]
        if kind in ("record", "error"):
            return self._record(value, namespace, at, depth)
        if kind == "enum":
            return self._enum(value, namespace, at)
        if kind == "fixed":
            return self._fixed(value, namespace, at)
        if kind in ("array", "map"):
            key = "items" if kind == "array" else "values"
            items = self.type(value.get(key), namespace, f"{at}[]", depth + 1)
            return AvroType(kind, items=items)
        return self.type(kind, namespace, at, depth + 1)

    def _by_name(self, name: str, namespace: str, at: str) -> AvroType:
        if name in PRIMITIVES:
            return _PRIMITIVE_TYPES[name]
        found = self._named.get(_full(name, namespace)) or self._named.get(name)
        if found is None:
            raise AvroError(f"{at or 'it'} is of type {name!r}, which is defined nowhere before it")
        return found

    def _union(self, value: list[Any], namespace: str, at: str, depth: int) -> AvroType:
        branches = [self.type(one, namespace, at, depth + 1) for one in value]
        if any(one.kind == "union" for one in branches):
            raise AvroError(f"{at or 'it'} is a union within a union")
        kinds = [(one.kind, id(one) if one.name else 0) for one in branches]
        if len(set(kinds)) < len(kinds) or not kinds:
            raise AvroError(f"{at or 'it'} is a union of nothing, or of the same type twice")
        return AvroType("union", branches=branches)

    def _define(self, kind: str, value: dict[str, Any], namespace: str, at: str) -> tuple[AvroType, str]:
        """A named type, known by its name from now on; and the namespace within it."""
        name = value.get("name")
        if not isinstance(name, str) or not name:
            raise AvroError(f"{at or 'it'} is of type {kind} and needs a name")
        own = value.get("namespace", namespace)
        full = _full(name, own if isinstance(own, str) else "")
        if full in self._named or full in PRIMITIVES:
            raise AvroError(f"{at or 'it'} defines {full}, which is another type already")
        made = self._named[full] = AvroType(kind, _last(full), _texts(value.get("aliases")))
        return made, full.rpartition(".")[0]

    def _record(self, value: dict[str, Any], namespace: str, at: str, depth: int) -> AvroType:
        made, inner = self._define("record", value, namespace, at)
        fields = value.get("fields")
        if not isinstance(fields, list):
            raise AvroError(f"{at or 'it'} is a record and needs a list of fields")
        seen: set[str] = set()
        for one in fields:
            name = one.get("name") if isinstance(one, dict) else None
            if not isinstance(name, str) or not name or name in seen or "type" not in one:
                raise AvroError(f"each field of {made.name} needs a type and a name of its own, not {name!r}")
            seen.add(name)
            kind = self.type(one["type"], inner, f"{at}.{name}", depth + 1)
            made.fields.append(Field(name, kind, "default" in one, _texts(one.get("aliases"))))
        return made

    def _enum(self, value: dict[str, Any], namespace: str, at: str) -> AvroType:
        made, _ = self._define("enum", value, namespace, at)
        symbols = value.get("symbols")
        if not isinstance(symbols, list) or not all(isinstance(one, str) for one in symbols):
            raise AvroError(f"{at or 'it'} is an enum and needs a list of symbols")
        made.symbols = tuple(symbols)
        made.has_default = value.get("default") in symbols
        return made

    def _fixed(self, value: dict[str, Any], namespace: str, at: str) -> AvroType:
        made, _ = self._define("fixed", value, namespace, at)
        size = value.get("size")
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise AvroError(f"{at or 'it'} is of type fixed and needs a size in bytes")
        made.size = size
        return made


def _full(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list) else ()


def normal(raw: bytes) -> bytes:
    """The definition without what changes no data's meaning: white space, order of keys, prose. `parse` took it."""
    return msgspec.json.encode(_normal(load(raw)), order="sorted")


def _normal(value: Any) -> Any:
    if isinstance(value, list):
        return [_normal(one) for one in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"type"} and isinstance(value["type"], str):
        return value["type"]
    nested = ("type", "items", "values", "fields")
    return {key: _normal(one) if key in nested else one for key, one in value.items() if key != "doc"}


# -- comparing -----------------------------------------------------------------------------------------


class _Need(NamedTuple):
    """What reading one type as another takes: nothing that there is (`why`), or all, or any, of other pairs.

    A part is where it lies, the reader's type and the writer's.
    """

    why: str = ""
    parts: tuple[tuple[str, AvroType, AvroType], ...] = ()
    any_of: bool = False


class _Pair:
    __slots__ = ("because", "dependants", "has_failed", "need", "open")

    def __init__(self, need: _Need) -> None:
        self.need = need
        self.open = len(need.parts)
        """Of `any_of`: those that may still do."""
        self.dependants: list[tuple[_Pair, str]] = []
        self.has_failed = False
        self.because: tuple[str, _Pair] | None = None


def unreadable(reader: AvroType, writer: AvroType) -> str | None:
    """Why what is written as `writer` cannot be read as `reader`, and where; None when it can.

    Raises `AvroError` when it is too much to compare.
    """
    root, failed = _expand(reader, writer)
    while failed:
        pair = failed.pop()
        for dependant, label in pair.dependants:
            dependant.open -= 1
            if not dependant.has_failed and not (dependant.need.any_of and dependant.open):
                dependant.has_failed = True
                dependant.because = (label, pair)
                failed.append(dependant)
    return _explain(root) if root.has_failed else None


def _expand(reader: AvroType, writer: AvroType) -> tuple[_Pair, list[_Pair]]:
    """All pairs that the answer for these two may depend on: the first, and those that fail outright."""
    pairs: dict[tuple[int, int], _Pair] = {}
    root = pairs[id(reader), id(writer)] = _Pair(_need(reader, writer))
    waiting, failed, links = [root], [], len(root.need.parts)
    while waiting:
        pair = waiting.pop()
        if pair.need.why:
            pair.has_failed = True
            failed.append(pair)
        for label, its_reader, its_writer in pair.need.parts:
            key = (id(its_reader), id(its_writer))
            part = pairs.get(key)
            if part is None:
                part = pairs[key] = _Pair(_need(its_reader, its_writer))
                waiting.append(part)
                links += len(part.need.parts)
                if links > PAIRS_MAX:
                    raise AvroError("the two definitions are too large to be compared")
            part.dependants.append((pair, label))
    return root, failed


def _need(reader: AvroType, writer: AvroType) -> _Need:
    if writer.kind == "union":
        return _Need(parts=tuple(("", reader, one) for one in writer.branches))
    if reader.kind == "union":
        return _Need(parts=tuple(("", one, writer) for one in reader.branches), any_of=True) \
            if len(reader.branches) else _Need(why="an empty union reads nothing")  # fmt: skip
    if reader.kind != writer.kind:
        if writer.kind in PROMOTED_FROM.get(reader.kind, ()):
            return _Need()
        return _Need(why=f"{_shown(writer)} cannot be read as {_shown(reader)}")
    if reader.items is not None and writer.items is not None:
        return _Need(parts=(("[]", reader.items, writer.items),))
    if reader.kind == "record":
        return _record_need(reader, writer)
    if reader.kind in ("enum", "fixed"):
        return _Need(why=_named_refusal(reader, writer))
    return _Need()


def _record_need(reader: AvroType, writer: AvroType) -> _Need:
    written = {one.name: one for one in writer.fields}
    parts = []
    for one in reader.fields:
        found = next((written[name] for name in (one.name, *one.aliases) if name in written), None)
        if found is not None:
            parts.append((f".{one.name}", one.type, found.type))
        elif not one.has_default:
            return _Need(why=f"field {one.name!r} is not written, and has no default")
    return _Need(parts=tuple(parts))


def _named_refusal(reader: AvroType, writer: AvroType) -> str:
    if writer.name != reader.name and writer.name not in map(_last, reader.aliases):
        return f"{_shown(writer)} cannot be read as {_shown(reader)}, which has another name"
    if reader.size != writer.size:
        return f"{_shown(writer)} has {writer.size} bytes, and {reader.size} are to be read"
    unknown = sorted(set(writer.symbols) - set(reader.symbols))
    if unknown and not reader.has_default:
        return f"symbol {unknown[0]!r} of {_shown(writer)} is not known to the reader"
    return ""


def _shown(one: AvroType) -> str:
    return f"{one.kind} {one.name}" if one.name else one.kind


def _explain(root: _Pair) -> str:
    """From the root to where it fails. What failed later cannot be the reason of what failed before: no circle."""
    steps = list(_steps(root))
    at = "".join(label for label, _ in steps)
    why = steps[-1][1]
    return f"{at.removeprefix('.')}: {why}" if at else why


def _steps(pair: _Pair) -> Iterator[tuple[str, str]]:
    label = ""
    while True:
        if pair.need.any_of:
            _, _, writer = pair.need.parts[0]
            branches = ", ".join(_shown(reader) for _, reader, _ in pair.need.parts[:10])
            yield label, f"{_shown(writer)} cannot be read as any of {branches}"
            return
        yield label, pair.need.why
        if pair.because is None:
            return
        label, pair = pair.because
