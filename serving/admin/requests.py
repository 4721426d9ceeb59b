"""Parsing of requests: JSON in the body, and numbers, properties and positions in it. Errors name the invalid part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypedDict
from urllib.parse import unquote, unquote_plus

import msgspec
from aiohttp import web
from msgspec import Meta, Struct

from quire.runtime.errors import ConfigurationError, QuireError
from quire.runtime.http_server import body_of
from quire.runtime.limits import PROPERTIES_BYTES_MAX
from quire.serving.admin.values import INT64_MAX, number
from quire.serving.model.ports import EARLIEST, LATEST, Position

_UINT64_MAX = (1 << 64) - 1
"""Largest unsigned 64-bit number, which Pulsar's tools send for -1."""

_DIGITS_MAX = len(str(INT64_MAX))
_PLAIN: Final = ("key", "value")
_NAMES: Final = web.RequestKey("names", dict[str, str])


class Absent(QuireError):
    """Rejection (501) of a feature of Pulsar that Quire does not support, because nothing would enforce it."""


async def json_of(request: web.Request) -> Any:
    """Return the body's JSON, None if the body is empty. Raises `ConfigurationError`."""
    raw = await body_of(request)
    if not raw.strip():
        return None
    try:
        return msgspec.json.decode(raw)  # strict, because lone surrogates could not be stored
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"the request's body is not JSON: {error}") from error


def path_names(request: web.Request) -> Mapping[str, str]:
    """Return the variables of a request's path, decoded from its raw segments. Raises `ConfigurationError`.

    Pulsar's admin clients encode names as in forms, where `+` is a space. They encode a topic's subscription twice, as
    in a form and then as a path segment, but keys and values only as path segments, where `+` is itself.
    """
    found = request.get(_NAMES)
    if found is None:
        resource = request.match_info.route.resource
        template = "" if resource is None else resource.canonical
        pairs = zip(template.split("/"), request.rel_url.raw_path.split("/"), strict=False)
        raw = {word[1:-1]: segment for word, segment in pairs if word.startswith("{")}
        twice = {"subscription"} if "topic" in raw else set()
        found = request[_NAMES] = {
            name: _decoded(one, twice=name in twice, form=name not in _PLAIN) for name, one in raw.items()
        }
    return found


def _decoded(segment: str, *, twice: bool, form: bool) -> str:
    try:
        once = unquote(segment, errors="strict") if twice else segment
        text = unquote_plus(once, errors="strict") if form else unquote(once, errors="strict")
        text.encode()
    except UnicodeError:
        raise ConfigurationError(f"{segment[:100]!r} in the path is not UTF-8") from None
    return text


def natural(text: str, what: str) -> int:
    """Parse a number in a path or a query. Raises `ConfigurationError`."""
    if not (text.isascii() and text.isdecimal() and len(text) < _DIGITS_MAX):
        raise ConfigurationError(
            f"{what} must be a number of at most {_DIGITS_MAX - 1} digits, not {text[:40]!r}"
        )
    return int(text)


def whole(value: Any, what: str, *, least: int) -> int:
    """Parse a number, which some tools send in quotes. Raises `ConfigurationError`."""
    if isinstance(value, str):
        value = natural(value, f"the {what}")
    value = number(value)
    if not isinstance(value, int) or value < least:
        raise ConfigurationError(f"the request's body must be the {what}, a number of at least {least}")
    return value


def properties_of(value: Any) -> dict[str, str]:
    """Parse properties of a topic or a subscription; empty if there is no body. Raises `ConfigurationError`."""
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
        raise ConfigurationError("properties must be a JSON object whose values are strings")
    if sum(len(key) + len(one) for key, one in value.items()) > PROPERTIES_BYTES_MAX:
        raise ConfigurationError(f"properties exceed the limit of {PROPERTIES_BYTES_MAX} characters")
    return value


def fields_of(value: Any, **kinds: type) -> dict[str, Any]:
    """Return the fields of a JSON object that are in `kinds`, after checking their types.

    Absent and null fields are omitted from the result. Raises `ConfigurationError` for a value of another type.
    """
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
            raise ConfigurationError(f"field {name} does not fit into 64 bits")
        found[name] = one
    return found


_Number = Annotated[int, Meta(ge=-(1 << 63), extra_json_schema={"maximum": _UINT64_MAX})]


class MessageId(Struct, rename="camel"):
    """Pulsar's JSON of a message id; other fields are ignored."""

    ledger_id: _Number
    entry_id: _Number
    batch_index: int = -1
    is_excluded: bool = False
    excluded: bool = False
    """Name of `isExcluded` in the Java client."""


class PositionJson(TypedDict):
    ledgerId: int
    entryId: int
    partitionIndex: int


Properties = dict[str, str] | None
Where = MessageId | Literal["earliest", "latest"] | None


def position_of(value: Any) -> Position:
    """Parse Pulsar's JSON of a message id (`ledgerId`, `entryId`), `earliest` or `latest`."""
    if value is None or value == "latest":
        return LATEST
    if value == "earliest":
        return EARLIEST
    found = fields_of(value, ledgerId=int, entryId=int, isExcluded=bool, excluded=bool)
    if not {"ledgerId", "entryId"} <= found.keys():
        raise ConfigurationError("a message id must have ledgerId and entryId")
    return Position(_signed(found["ledgerId"]), _signed(found["entryId"]))


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number


def position_json(position: Position, partition: int = -1) -> PositionJson:
    return {"ledgerId": position.ledger_id, "entryId": position.entry_id, "partitionIndex": partition}
