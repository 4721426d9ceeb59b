"""Reading requests: JSON out of the body, and out of it numbers, properties, positions; all with clear refusals."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypedDict

import msgspec
from aiohttp import web
from msgspec import Meta, Struct

from quire.runtime.errors import ConfigurationError, QuireError
from quire.runtime.limits import PROPERTIES_BYTES_MAX
from quire.serving.model.ports import EARLIEST, LATEST, Position

INT64_MAX = (1 << 63) - 1
_UINT64_MAX = (1 << 64) - 1
"""Pulsar's tools send -1 as the largest number of 64 bits."""

_DIGITS_MAX = len(str(INT64_MAX))
_NUMBER = re.compile(r"-?[0-9]{1,20}")


class Absent(QuireError):
    """Pulsar has it and Quire does not (501): better than to take what nobody heeds."""


async def json_of(request: web.Request) -> Any:
    """The body as JSON, None when there is none. Raises `ConfigurationError`."""
    raw = await request.read()
    if not raw.strip():
        return None
    try:
        return msgspec.json.decode(raw)  # strict: half surrogates could be kept nowhere
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"the request's body is not JSON: {error}") from error


def natural(text: str, what: str) -> int:
    """A number from a path or a query. Raises `ConfigurationError`."""
    if not (text.isascii() and text.isdecimal() and len(text) < _DIGITS_MAX):
        raise ConfigurationError(f"{what} must be a number, not {text[:40]!r}")
    return int(text)


def number(value: Any) -> Any:
    """A whole number that came in quotes, as some tools send them, or as it is; None for a bool, which is none."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return int(value)
    return None if isinstance(value, bool) else value


def whole(value: Any, what: str, *, least: int) -> int:
    """A number (some tools send it quoted). Raises `ConfigurationError`."""
    if isinstance(value, str):
        value = natural(value, f"the {what}")
    value = number(value)
    if not isinstance(value, int) or value < least:
        raise ConfigurationError(f"the request's body must be the {what}, a number of at least {least}")
    return value


def properties_of(value: Any) -> dict[str, str]:
    """Properties of a topic or a subscription, none when there is no body. Raises `ConfigurationError`."""
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
        raise ConfigurationError("properties must be a JSON object whose values are texts")
    if sum(len(key) + len(one) for key, one in value.items()) > PROPERTIES_BYTES_MAX:
        raise ConfigurationError(f"properties have {PROPERTIES_BYTES_MAX} characters at most")
    return value


def fields_of(value: Any, **kinds: type) -> dict[str, Any]:
    """The fields `kinds` of a JSON object; absent ones are left out. Raises `ConfigurationError`."""
    if not isinstance(value, dict):
        raise ConfigurationError("the request's body must be a JSON object")
    found: dict[str, Any] = {}
    for name, kind in kinds.items():
        if value.get(name) is None:
            continue
        one = number(value[name]) if kind is int else value[name]
        if not isinstance(one, kind):
            raise ConfigurationError(f"field {name} must be of type {kind.__name__}")
        if isinstance(one, int) and not -INT64_MAX - 1 <= one <= _UINT64_MAX:
            raise ConfigurationError(f"field {name} is beyond what a number may be")
        found[name] = one
    return found


_Number = Annotated[int, Meta(ge=-(1 << 63), extra_json_schema={"maximum": _UINT64_MAX})]


class MessageId(Struct, rename="camel"):
    """Pulsar's JSON for one; other fields are not looked at."""

    ledger_id: _Number
    entry_id: _Number
    is_excluded: bool = False
    excluded: bool = False
    """The same, as the Java client calls it."""


class PositionJson(TypedDict):
    ledgerId: int
    entryId: int
    partitionIndex: int


Properties = dict[str, str] | None
Where = MessageId | Literal["earliest", "latest"] | None


def position_of(value: Any) -> Position:
    """Pulsar's JSON for a message id (`ledgerId`, `entryId`), or `earliest` / `latest`."""
    if value is None or value == "latest":
        return LATEST
    if value == "earliest":
        return EARLIEST
    found = fields_of(value, ledgerId=int, entryId=int, isExcluded=bool, excluded=bool)
    if not {"ledgerId", "entryId"} <= found.keys():
        raise ConfigurationError("a message id needs ledgerId and entryId")
    return Position(_signed(found["ledgerId"]), _signed(found["entryId"]))


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number


def position_json(position: Position, partition: int = -1) -> PositionJson:
    return {"ledgerId": position.ledger_id, "entryId": position.entry_id, "partitionIndex": partition}
