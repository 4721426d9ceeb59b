"""Avro definitions: the JSON in which AVRO, JSON and PROTOBUF schemas describe their values.

`parse` makes a tree of types from a definition's JSON (see the [specification]). A name is replaced by the type that
it refers to, so a recursive record makes the tree a graph with cycles. Names are resolved with their namespaces;
attributes that do not matter to a reader of values (documentation, `avro.java.string`) are dropped. Definitions come
from clients, so `DEPTH_MAX` bounds the recursion.

The rules are those of Pulsar's brokers, where they are more lenient than the specification: names may have any
characters (Java's nested classes have a `$`), a type may be an object within an object, and a default is not checked
against its type. A logical type that does not fit its type is ignored, as the specification requires.

The libraries `fastavro` and `avro` also parse definitions. Neither fits: `fastavro` is an optional package, returns the
JSON itself with its references as text, and refuses types within objects; `avro` refuses Java's names; and neither
bounds the depth. So this module parses definitions. `fastavro` only decodes values, with the definition that
`writer_json` returns.

[specification]: https://avro.apache.org/docs/1.12.0/specification/
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, ClassVar, Final, NamedTuple

import msgspec

PRIMITIVES: Final = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))

DEPTH_MAX: Final = 64
"""Maximum depth of types within types in the JSON of a definition."""


class AvroError(ValueError):
    """Raised if a text is not an Avro definition, or too large to compare; the message has the place and the reason."""


class UndefinedType(AvroError):
    """Raised if a definition refers to the type `name`, which it does not define before the place `at`."""

    def __init__(self, at: str, name: str) -> None:
        super().__init__(f"{at or 'it'} is of type {name!r}, which is defined nowhere before it")
        self.at = at
        self.name = name


class Logical(NamedTuple):
    """Logical type. Only decimals have a precision, of at least 1, and a scale, up to the precision."""

    name: str
    precision: int = 0
    scale: int = 0


@dataclass(eq=False, slots=True)
class Primitive:
    kind: str
    """One of `PRIMITIVES`."""
    logical: Logical | None = None


@dataclass(eq=False, slots=True)
class Array:
    items: AvroType
    kind: ClassVar[str] = "array"


@dataclass(eq=False, slots=True)
class Map:
    values: AvroType
    kind: ClassVar[str] = "map"


@dataclass(eq=False, slots=True)
class Union:
    branches: list[AvroType]
    kind: ClassVar[str] = "union"


@dataclass(eq=False, slots=True)
class _Named:
    full_name: str
    """Name with its namespace."""
    aliases: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name without its namespace."""
        return last(self.full_name)


@dataclass(eq=False, slots=True)
class Record(_Named):
    fields: list[Field] = field(default_factory=list)
    kind: ClassVar[str] = "record"


@dataclass(eq=False, slots=True)
class Enum(_Named):
    symbols: tuple[str, ...] = ()
    default: str | None = None
    """Symbol that a reader uses in place of a symbol that it does not know."""
    kind: ClassVar[str] = "enum"


@dataclass(eq=False, slots=True)
class Fixed(_Named):
    size: int = 0
    logical: Logical | None = None
    kind: ClassVar[str] = "fixed"


AvroType = Primitive | Array | Map | Union | Record | Enum | Fixed
"""Any type. Two types are the same only if they are the same object."""


@dataclass(eq=False, slots=True)
class Field:
    """Field of a record."""

    name: str
    type: AvroType
    aliases: tuple[str, ...]
    has_default: bool
    default: Any
    """JSON value of the default in the definition; see `default_value`."""


_PRIMITIVE_TYPES: Final = {name: Primitive(name) for name in PRIMITIVES}


def last(name: str) -> str:
    """Return a name without its namespace."""
    return name.rpartition(".")[2]


def shown(kind: AvroType) -> str:
    """Return a type's kind and name, for errors."""
    return f"{kind.kind} {kind.name}" if isinstance(kind, _Named) else kind.kind


# -- parsing -------------------------------------------------------------------------------------------


def parse(raw: bytes | str) -> AvroType:
    """Return the type that a JSON definition describes. Raises `AvroError`."""
    return _Parser().type(_load(raw), "", "", 0)


def _load(raw: bytes | str) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (ValueError, RecursionError) as error:
        raise AvroError(f"it is not JSON: {error}") from None


class _Parser:
    """Parser of one definition. `at` is the place of a value in the definition, for error messages."""

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
            raise AvroError(f"{at or 'it'} is not a type: a name, a list or an object with a type")
        match value["type"]:
            case "record" | "error":
                return self._record(value, namespace, at, depth)
            case "enum":
                return self._enum(value, namespace, at)
            case "fixed":
                return self._fixed(value, namespace, at)
            case "array":
                return Array(self.type(value.get("items"), namespace, f"{at}[]", depth + 1))
            case "map":
                return Map(self.type(value.get("values"), namespace, f"{at}[]", depth + 1))
            case kind:
                found = self.type(kind, namespace, at, depth + 1)
                logical = _logical(value) if isinstance(kind, str) else None
                return Primitive(found.kind, logical) if logical and isinstance(found, Primitive) else found

    def _by_name(self, name: str, namespace: str, at: str) -> AvroType:
        if name in PRIMITIVES:
            return _PRIMITIVE_TYPES[name]
        found = self._named.get(_full(name, namespace)) or self._named.get(name)
        if found is None:
            raise UndefinedType(at, name)
        return found

    def _union(self, value: list[Any], namespace: str, at: str, depth: int) -> AvroType:
        branches = [self.type(one, namespace, at, depth + 1) for one in value]
        if any(isinstance(one, Union) for one in branches):
            raise AvroError(f"{at or 'it'} is a union within a union")
        kinds = {(one.kind, id(one) if isinstance(one, _Named) else 0) for one in branches}
        if len(kinds) < len(branches) or not kinds:
            raise AvroError(f"{at or 'it'} is a union of nothing, or of the same type twice")
        return Union(branches)

    def _name(self, kind: str, value: dict[str, Any], namespace: str, at: str) -> tuple[str, tuple[str, ...]]:
        """Return the full name and the aliases of the type that `value` defines."""
        name = value.get("name")
        if not isinstance(name, str) or not name:
            raise AvroError(f"{at or 'it'} is of type {kind} and needs a name")
        own = value.get("namespace", namespace)
        full = _full(name, own if isinstance(own, str) else "")
        if full in self._named or full in PRIMITIVES:
            raise AvroError(f"{at or 'it'} defines {full}, which is another type already")
        return full, _texts(value.get("aliases"))

    def _record(self, value: dict[str, Any], namespace: str, at: str, depth: int) -> AvroType:
        made = Record(*self._name("record", value, namespace, at))
        self._named[made.full_name] = made
        fields = value.get("fields")
        if not isinstance(fields, list):
            raise AvroError(f"{at or 'it'} is a record and needs a list of fields")
        inner = made.full_name.rpartition(".")[0]
        seen: set[str] = set()
        for one in fields:
            name = one.get("name") if isinstance(one, dict) else None
            if not isinstance(name, str) or not name or name in seen or "type" not in one:
                raise AvroError(f"each field of {made.name} needs a type and a name of its own, not {name!r}")
            seen.add(name)
            kind = self.type(one["type"], inner, f"{at}.{name}", depth + 1)
            aliases = _texts(one.get("aliases"))
            made.fields.append(Field(name, kind, aliases, "default" in one, one.get("default")))
        return made

    def _enum(self, value: dict[str, Any], namespace: str, at: str) -> AvroType:
        made = Enum(*self._name("enum", value, namespace, at))
        symbols, default = value.get("symbols"), value.get("default")
        if not isinstance(symbols, list) or not all(isinstance(one, str) for one in symbols):
            raise AvroError(f"{at or 'it'} is an enum and needs a list of symbols")
        made.symbols = tuple(symbols)
        made.default = default if default in symbols else None
        self._named[made.full_name] = made
        return made

    def _fixed(self, value: dict[str, Any], namespace: str, at: str) -> AvroType:
        made = Fixed(*self._name("fixed", value, namespace, at))
        size = value.get("size")
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise AvroError(f"{at or 'it'} is of type fixed and needs a size in bytes")
        logical = _logical(value)
        made.size, made.logical = size, logical if logical and _fits(logical, size) else None
        self._named[made.full_name] = made
        return made


def _full(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list) else ()


def _logical(value: dict[str, Any]) -> Logical | None:
    name, precision, scale = value.get("logicalType"), value.get("precision"), value.get("scale", 0)
    if not isinstance(name, str):
        return None
    if name != "decimal":
        return Logical(name)
    if type(precision) is int and type(scale) is int and 0 <= scale <= precision > 0:
        return Logical(name, precision, scale)
    return None


def _fits(logical: Logical, size: int) -> bool:
    """Return whether a number of `size` bytes can have as many decimal digits as the precision of `logical`."""
    return logical.precision <= math.log10(2) * (8 * size - 1)


# -- from a tree ---------------------------------------------------------------------------------------


def default_value(kind: AvroType, default: Any) -> Any:
    """Convert a field's default from JSON to the Python value that `fastavro` would read.

    In JSON, bytes are text with one character for each byte. In a union, a default of null has the type null, and any
    other default has the first type that is not null.
    """
    match kind:
        case Union():
            is_null = default is None
            branch = next((one for one in kind.branches if (one.kind == "null") == is_null), None)
            return default if branch is None else default_value(branch, default)
        case Primitive(kind="bytes") | Fixed() if isinstance(default, str):
            raw, logical = default.encode("latin-1"), kind.logical
            if logical is None or logical.name != "decimal":
                return raw
            return Decimal(int.from_bytes(raw, "big", signed=True)).scaleb(-logical.scale)
        case Array() if isinstance(default, list):
            return [default_value(kind.items, one) for one in default]
        case Map() if isinstance(default, dict):
            return {key: default_value(kind.values, one) for key, one in default.items()}
        case Record() if isinstance(default, dict):
            types = {one.name: one.type for one in kind.fields}
            return {
                name: default_value(types[name], one) if name in types else one
                for name, one in default.items()
            }
    return default


def writer_json(
    tree: AvroType, keeps: Callable[[Primitive | Fixed, Logical], bool] = lambda _kind, _logical: True
) -> Any:
    """Return the definition as JSON for `fastavro`, to write values, and to read them without schema resolution.

    It has no aliases, and no defaults except those of enums. It has the logical types that `keeps` accepts.
    """
    defined: set[str] = set()

    def logical(kind: Primitive | Fixed) -> dict[str, Any]:
        if kind.logical is None or not keeps(kind, kind.logical):
            return {}
        name, precision, scale = kind.logical
        return {"logicalType": name} | ({"precision": precision, "scale": scale} if precision else {})

    def of(kind: AvroType) -> Any:
        match kind:
            case Primitive():
                found = logical(kind)
                return {"type": kind.kind, **found} if found else kind.kind
            case Array():
                return {"type": "array", "items": of(kind.items)}
            case Map():
                return {"type": "map", "values": of(kind.values)}
            case Union():
                return [of(one) for one in kind.branches]
        if kind.full_name in defined:
            return kind.full_name
        defined.add(kind.full_name)
        made = {"type": kind.kind, "name": kind.full_name}
        match kind:
            case Record():
                return {**made, "fields": [{"name": one.name, "type": of(one.type)} for one in kind.fields]}
            case Enum():
                default = {} if kind.default is None else {"default": kind.default}
                return {**made, "symbols": list(kind.symbols), **default}
        return {**made, "size": kind.size, **logical(kind)}

    return of(tree)


def normal(raw: bytes) -> bytes:
    """Return a definition in normal form: without white space and documentation, and with sorted keys."""
    return msgspec.json.encode(_normal(_load(raw)), order="sorted")


def _normal(value: Any) -> Any:
    if isinstance(value, list):
        return [_normal(one) for one in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"type"} and isinstance(value["type"], str):
        return value["type"]
    nested = ("type", "items", "values", "fields")
    return {key: _normal(one) if key in nested else one for key, one in value.items() if key != "doc"}
