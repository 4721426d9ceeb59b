"""Shapes of policies' JSON: each is declared once, for input and output.

A shape is a single `Value`, or a struct (`Shape`) with Pulsar's names, units and bounds whose fields have the names of
the stored record; `Unit` is the factor between Pulsar's unit and the stored one. An invalid value is rejected with the
shape's description, which is a struct's docstring, and with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple, get_type_hints

import msgspec
from msgspec import Meta, Struct, ValidationError
from msgspec.structs import asdict

from quire.metadata.records import Record, field_names
from quire.runtime.errors import ConfigurationError
from quire.serving.admin.values import OutOfRange, asks_for_nothing, number


class Unit(NamedTuple):
    """Factor from Pulsar's unit to the stored one; -1 means unlimited."""

    ours: int = 1


def _unquoted(value: Any) -> Any:
    """Convert a number in quotes, as some tools send it."""
    return number(value) if isinstance(value, str) else value


def _converted(value: Any, kind: Any, says: str) -> Any:
    try:
        return msgspec.convert(value, kind)
    except ValidationError as error:
        raise ConfigurationError(f"{says}: {error}") from None


@dataclass(frozen=True)
class Value:
    """Shape of a policy that is a single value; `says` describes valid values."""

    kind: Any
    says: str
    unit: int = 1
    name: str = ""
    """Name of the policy in Pulsar's words, which clients search for in error texts."""

    def parse(self, value: Any) -> Any:
        """Return the value to store. Raises `ConfigurationError`."""
        invalid = f"Invalid value for {self.name}: " if self.name else ""
        found = _converted(_unquoted(value), self.kind, f"{invalid}the request's body must be {self.says}")
        return found * self.unit if self.unit > 1 else found

    def show(self, kept: Any) -> Any:
        return kept // self.unit if self.unit > 1 else kept


class Number(Value):
    """Shape of a policy that is a number within bounds."""

    def parse(self, value: Any) -> Any:
        """Return the number to store.

        Raises `OutOfRange` if it is out of bounds, `ConfigurationError` for anything else.
        """
        try:
            return super().parse(value)
        except ConfigurationError as error:
            if type(_unquoted(value)) is int:
                raise OutOfRange(str(error)) from None
            raise


class NumberOrNull(Number):
    """Shape of a number that Pulsar's clients unset by sending null."""

    def parse(self, value: Any) -> Any:
        return None if value is None else super().parse(value)


def number_of(of: str, most: int, unit: int = 1, name: str = "") -> Number:
    return Number(Annotated[int, Meta(ge=0, le=most)], f"a number of {of}, 0 (off) to {most}", unit, name)


class Shape(Struct, frozen=True, kw_only=True):
    """Shape of a policy that is an object: `record` is stored, with `unlimited` for -1.

    At least one of the fields in `needs` must be given.
    """

    record: ClassVar[type[Record]]
    needs: ClassVar[frozenset[str]] = frozenset()
    unlimited: ClassVar[int] = -1
    is_whole: ClassVar[bool] = False
    """True if a command must give every field, because a missing one means 0 and would delete data."""

    @classmethod
    def units(cls) -> dict[str, int]:
        hints = get_type_hints(cls, include_extras=True)
        marks = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
        return {name: one.ours for name, some in marks.items() for one in some if isinstance(one, Unit)}

    @classmethod
    def parse(cls, value: Any) -> Any:
        """Return the record to store. Raises `ConfigurationError`."""
        says = " ".join(str(cls.__doc__).split()).rstrip(".")
        if isinstance(value, dict):  # null counts as absent
            cls._refuse_unknown(value, says)
            value = {name: _unquoted(one) for name, one in value.items() if one is not None}
        found: Shape = _converted(value, cls, says)
        if cls.needs and not cls.needs & value.keys():
            raise ConfigurationError(says)
        found.check()
        return found.kept()

    @classmethod
    def _refuse_unknown(cls, value: Mapping[str, Any], says: str) -> None:
        """Raise `ConfigurationError` for an unknown field with a value, which would be dropped."""
        for name in value.keys() - set(cls.__struct_encode_fields__):
            if not asks_for_nothing(value[name]):
                raise ConfigurationError(f"{says}: the field {name[:100]!r} is unknown or not supported")

    def check(self) -> None:
        """Check the fields against each other. Raises `ConfigurationError`."""

    def kept(self) -> Any:
        values = asdict(self)
        for name, ours in self.units().items():
            values[name] = self.unlimited if values[name] < 0 else values[name] * ours
        return self.record(**{name: values[name] for name in field_names(self.record)})

    @classmethod
    def show(cls, kept: Any) -> dict[str, Any]:
        values = {name: getattr(kept, name) for name in field_names(type(kept))}
        for name, ours in cls.units().items():
            values[name] = -1 if values[name] == cls.unlimited else values[name] // ours
        shown: dict[str, Any] = msgspec.to_builtins(cls(**values))
        return shown
