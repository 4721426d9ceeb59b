"""Values of policies on the command line: from words to REST's JSON, and back.

    7d   10GiB   true   unlimited       a single value
    time=7d size=10GiB                  an object: a word for each field
    {"retentionTimeInMinutes": 10080}   REST's JSON itself

All types come from the rows of `policy_json`. The name of a stored field contains its unit (`retention_ms`,
`retention_bytes`), so it tells times from sizes, and gives the field its short name here: `time` and `size` of
`retention`. A number without a unit is REST's own number, whatever its unit.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any, Final, Literal

from msgspec import inspect as kinds

from quire.metadata.records import field_names
from quire.runtime.errors import ConfigurationError
from quire.runtime.settings import format_duration_ms, format_size, parse_duration_ms, parse_size
from quire.serving.admin.policy_json import Number, PolicyJson, Shape, Value

UNLIMITED: Final = "unlimited"
OFF: Final = "off"
TRUE: Final = ("true", "on", "yes")
FALSE: Final = ("false", OFF, "no")
UNITS: Final = {
    "time": {1: "milliseconds", 1000: "seconds", 60_000: "minutes"},
    "size": {1: "", 1 << 20: "MiB"},
}
_PLAIN: Final = re.compile(r"-?[0-9]{1,19}")
_SHORT_SIZE: Final = re.compile(r"[0-9.]+[kmgt]", re.IGNORECASE)
"""Size in Pulsar's notation, `10G`, which means 10 GiB."""


def kebab(name: str) -> str:
    """Return a name of REST in the notation of commands: `message-ttl` for `messageTTL`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_", "-", name).lower()


def simplified(name: str) -> str:
    """Return a name without its notation, so that `messageTTL`, `message_ttl` and `message-ttl` are equal."""
    return re.sub("[-_]", "", name).lower()


@dataclass(frozen=True)
class Scalar:
    """Type of one word: `measure` says which units a number may have, `unit` is REST's unit in ms or bytes."""

    kind: kinds.Type
    measure: Literal["time", "size", ""] = ""
    unit: int = 1
    zero: str = ""
    """Word for 0, if that has a meaning of its own."""

    @property
    def form(self) -> str:
        """The word's form, such as `TIME|unlimited`."""
        if isinstance(self.kind, kinds.IntType):
            return "|".join([(self.measure or "number").upper(), *self._special])
        if isinstance(self.kind, kinds.BoolType):
            return "true|false"
        if options := self.options:
            return "|".join(options)
        if isinstance(self.kind, kinds.ListType):
            return f"{_scalar(self.kind.item_type).form}[,…]"
        return "TEXT" if isinstance(self.kind, kinds.StrType) else "JSON"

    @property
    def bare(self) -> str:
        """The unit of numbers without a unit; empty if there is only one unit."""
        return UNITS[self.measure].get(self.unit, f"units of {self._shown(1)}") if self.measure else ""

    @property
    def options(self) -> Sequence[str]:
        """All values, if the type is an enumeration."""
        if isinstance(self.kind, kinds.EnumType):
            return [str(one.value) for one in self.kind.cls]
        return [str(one) for one in self.kind.values] if isinstance(self.kind, kinds.LiteralType) else ()

    @property
    def choices(self) -> Sequence[str]:
        """Values that a shell can complete."""
        if isinstance(self.kind, kinds.BoolType):
            return ("true", "false")
        return self.options or list(self._special)

    @property
    def _special(self) -> Mapping[str, int]:
        """Words for numbers with a meaning of their own."""
        if isinstance(self.kind, kinds.IntType) and self.kind.ge is not None and self.kind.ge < 0:
            return {UNLIMITED: -1}
        return {self.zero: 0} if self.zero else {}

    def parse(self, text: str) -> Any:
        """Return the value in JSON. Raises `ConfigurationError`."""
        if isinstance(self.kind, kinds.IntType):
            return self._number(text)
        if isinstance(self.kind, kinds.BoolType):
            return _boolean(text)
        if options := self.options:
            return _one_of(options, text)
        if isinstance(self.kind, kinds.ListType):
            item = _scalar(self.kind.item_type)
            return [item.parse(one.strip()) for one in text.split(",") if one.strip()]
        return text if isinstance(self.kind, kinds.StrType) else _json(text)

    def _number(self, text: str) -> int:
        if text.lower() in self._special:
            return self._special[text.lower()]
        if _PLAIN.fullmatch(text):
            return int(text)
        if not self.measure:
            raise ConfigurationError(f"{text!r} is not a number")
        if self.measure == "time":
            found = parse_duration_ms(text)
        else:
            found = parse_size(f"{text}iB" if _SHORT_SIZE.fullmatch(text) else text)
        if found % self.unit:
            raise ConfigurationError(f"{text!r} is not a whole number of {self.bare}")
        return found // self.unit

    def show(self, value: Any) -> str:
        """Return the word for a value in JSON, which `parse` reads."""
        if isinstance(value, bool) or not isinstance(value, int | str | list):
            return json.dumps(value)
        if isinstance(value, list):
            return ",".join(map(str, value))
        return self._shown(value) if isinstance(value, int) else value

    def _shown(self, value: int) -> str:
        for word, number in self._special.items():
            if value == number:
                return word
        if self.measure and value > 0:
            of = format_duration_ms if self.measure == "time" else format_size
            return of(value * self.unit)
        return str(value)


@dataclass(frozen=True)
class Field:
    """Field of an object: its name on the command line, its name in JSON, and its type."""

    key: str
    word: str
    scalar: Scalar
    names: frozenset[str]
    """Names that are accepted, simplified."""
    is_shown: bool
    """False for older names of other fields, and for fields that accept only one value."""


def parse(policy: PolicyJson, words: Sequence[str]) -> Any:
    """Return the policy's value as REST's JSON. Raises `ConfigurationError` with the reason."""
    value = _parsed(policy, words)
    policy.shape.parse(value)
    return value


def _parsed(policy: PolicyJson, words: Sequence[str]) -> Any:
    if len(words) == 1 and words[0].lstrip()[:1] in ("{", "["):
        return _json(words[0])
    single = single_of(policy)
    if single is None:
        found = _object(fields_of(policy), words)
        _check_whole(policy, found)
        return found
    if isinstance(single.kind, kinds.DictType):
        item = _scalar(single.kind.value_type)
        return {key: item.parse(text) for key, text in map(_pair, words)}
    return single.parse((", " if isinstance(single.kind, kinds.ListType) else " ").join(words))


def _check_whole(policy: PolicyJson, found: Mapping[str, Any]) -> None:
    """Check that no field is missing whose absence would mean 0. Raises `ConfigurationError`."""
    missing = [one.key for one in fields_of(policy) if one.is_shown and one.word not in found]
    if missing and getattr(policy.shape, "is_whole", False):
        raise ConfigurationError(f"give {' and '.join(missing)}, too: a missing field would count as 0")


def _object(fields: Sequence[Field], words: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, text in map(_pair, words):
        field = next((one for one in fields if simplified(key) in one.names), None)
        if field is None:
            keys = [one.key for one in fields if one.is_shown]
            close = get_close_matches(kebab(key), keys, n=1)
            hint = f"did you mean {close[0]}?" if close else f"use {', '.join(keys)}"
            raise ConfigurationError(f"there is no field {key!r}, {hint}")
        if field.word in found:
            raise ConfigurationError(f"{field.key} is given twice")
        try:
            found[field.word] = field.scalar.parse(text)
        except ConfigurationError as error:
            raise ConfigurationError(f"{field.key}: {error}") from None
    return found


def _pair(word: str) -> tuple[str, str]:
    key, equals, text = word.partition("=")
    if not equals:
        raise ConfigurationError(f"{word!r} is not KEY=VALUE")
    return key, text


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"{text!r} is not JSON: {error}") from None


def _boolean(text: str) -> bool:
    if text.lower() not in TRUE + FALSE:
        raise ConfigurationError(f"{text!r} is not true or false")
    return text.lower() in TRUE


def _one_of(options: Sequence[str], text: str) -> str:
    for one in options:
        if simplified(one) == simplified(text):
            return one
    raise ConfigurationError(f"{text!r} is not one of {', '.join(options)}")


def show(policy: PolicyJson, value: Any) -> str:
    """Return REST's JSON as words that `parse` reads; empty if the policy is not set."""
    if value is None:
        return ""
    single = single_of(policy)
    if single is not None and not isinstance(value, dict):
        return single.show(value)
    if single is not None:
        words = [f"{key}={one}" for key, one in value.items()]
    else:
        given = [(one, value.get(one.word)) for one in fields_of(policy) if one.is_shown]
        words = [f"{one.key}={one.scalar.show(its)}" for one, its in given if its not in (None, "")]
    return shlex.join(words) or "{}"


def form(policy: PolicyJson) -> str:
    """Describe the policy's value in one line, such as `time=TIME|unlimited size=SIZE|unlimited`."""
    single = single_of(policy)
    if single is not None:
        return "KEY=VALUE…" if isinstance(single.kind, kinds.DictType) else single.form
    return " ".join(f"{one.key}={one.scalar.form}" for one in fields_of(policy) if one.is_shown)


def units(policy: PolicyJson) -> str:
    """Describe the units of numbers without a unit; empty if there is only one."""
    single = single_of(policy)
    if single is not None:
        return single.bare
    bare = ((one.key, one.scalar.bare) for one in fields_of(policy) if one.is_shown)
    return ", ".join(f"{key} in {unit}" for key, unit in bare if unit)


def choices(policy: PolicyJson) -> Sequence[str]:
    """Return words that a shell can complete: `KEY=` of each field and its values, or all values."""
    single = single_of(policy)
    if single is not None:
        return single.choices
    fields = [one for one in fields_of(policy) if one.is_shown]
    return [f"{one.key}={value}" for one in fields for value in (one.scalar.choices or ("",))]


def single_of(policy: PolicyJson) -> Scalar | None:
    """Return the type of a policy that is a single value; None if it is an object with fields."""
    return _single(policy.shape, policy.field)


@cache
def _single(shape: Value | type[Shape], field: str) -> Scalar | None:
    if not isinstance(shape, Value):
        return None
    kind = kinds.type_info(shape.kind)
    zero = UNLIMITED if field.endswith("_max") else OFF
    return _scalar(kind, field, shape.unit, zero if isinstance(shape, Number) else "")


def fields_of(policy: PolicyJson) -> Sequence[Field]:
    """Return the fields of a policy that is an object."""
    return _fields(policy.shape, policy.field)


@cache
def _fields(shape: Value | type[Shape], policy: str) -> Sequence[Field]:
    assert not isinstance(shape, Value)
    info = kinds.type_info(shape)
    assert isinstance(info, kinds.StructType)
    record = getattr(shape, "record", None)
    stored = {one.name for one in info.fields} if record is None else set(field_names(record))
    short = {one.name: _short(policy, one.name) for one in info.fields}
    count, factors = Counter(short.values()), shape.units()
    found = []
    for one in info.fields:
        key = short[one.name] if count[short[one.name]] == 1 else kebab(one.name)
        names = frozenset(map(simplified, (key, one.name, one.encode_name)))
        scalar = _scalar(one.type, one.name, factors.get(one.name, 1))
        found.append(Field(key, one.encode_name, scalar, names, one.name in stored))
    return found


def _short(policy: str, field: str) -> str:
    """Return a short name of a field without its unit and the policy's words: `time` for `retention_ms`."""
    if field == "bytes" or field.startswith("bytes_per_"):
        return "bytes"
    words = field.partition("_per_")[0].split("_")
    if words[-1] == "s":
        del words[-1]
    meant = {"ms": "time", "bytes": "size"}
    dropped = {"max", *policy.split("_")} - meant.keys()
    return "-".join(meant.get(word, word) for word in words if word not in dropped) or kebab(field)


def _scalar(kind: kinds.Type, field: str = "", unit: int = 1, zero: str = "") -> Scalar:
    if isinstance(kind, kinds.UnionType):
        given = [one for one in kind.types if not isinstance(one, kinds.NoneType)]
        kind = given[0] if len(given) == 1 else kind
    words = field.split("_")
    if not isinstance(kind, kinds.IntType):
        return Scalar(kind)
    if "bytes" in words:
        return Scalar(kind, "size", unit, zero)
    if "ms" in words:
        return Scalar(kind, "time", unit, zero)
    if words[-1] == "s" and "per" not in words:
        return Scalar(kind, "time", unit * 1000, zero)
    return Scalar(kind, zero=zero)
