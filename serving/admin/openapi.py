"""`/quire/v1/openapi.json`: the REST interface as an OpenAPI 3.1 document, made from its rows and from nothing else.

What a row takes stands in its arguments' kinds, what it answers in the types of what it calls (or in `shows`), what may
go wrong in `refusals.REFUSALS`, who may ask in `may`. Kinds are types, of which msgspec makes JSON Schema. A row that
does not say enough raises `TypeError`, and a test asks each.

Bodies are taken more widely than they are shown: some of Pulsar's tools send numbers in quotes, and null for what they
do not say. So each schema of a body is a component of its own, `NAME.sent`.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Coroutine, Iterable, Sequence
from functools import cache, partial
from inspect import getdoc, isroutine
from types import NoneType, UnionType
from typing import Annotated, Any, Final, NoReturn, Union, get_args, get_origin, get_type_hints

import msgspec
from aiohttp import web

from quire import __version__
from quire.security.authorization import Action
from quire.serving.admin.refusals import REFUSALS, Refusal
from quire.serving.admin.route import Argument, Route

PATH: Final = "/quire/v1/openapi.json"
JSON: Final = "application/json"
QUOTED: Final = {"type": "string", "pattern": "^-?[0-9]{1,20}$"}
"""A number as some tools send it."""

SECURITY: Final = {
    "token": {"type": "http", "scheme": "bearer"},
    "basic": {"type": "http", "scheme": "basic"},
    "certificate": {"type": "mutualTLS"},
}
NEEDS: Final = {
    Action.OPEN: "to be let in",
    Action.LOOKUP: "produce or consume on the topic",
    Action.PRODUCE: "produce on the topic",
    Action.CONSUME: "consume on the topic",
    Action.LIST_TOPICS: "produce or consume on the namespace",
    Action.ADMINISTER: "an admin role of the tenant",
    Action.SUPERUSER: "a superuser",
}
_IN_PATH: Final = re.compile(r"\{(\w+)(?::((?:[^{}]|\{[^{}]*\})*))?\}")
_ALTERNATIVES: Final = re.compile(r"[\w-]+(?:\|[\w-]+)*")


def route(rows: Sequence[Route], *, asks_who: bool) -> Route:
    """The row that shows the document of `rows` and of itself; `asks_who`: whether callers have to log in."""

    @cache
    def encoded() -> bytes:
        return msgspec.json.encode(document([*rows, this], __version__, asks_who=asks_who))

    def show() -> Annotated[web.Response, "application/json"]:
        """This document."""
        return web.Response(body=encoded(), content_type=JSON)

    this = Route("GET", PATH, show, may=Action.OPEN)
    return this


def document(rows: Iterable[Route], version: str, *, asks_who: bool = True) -> dict[str, Any]:
    """OpenAPI 3.1 of `rows`. Raises `TypeError` for a row that does not say what it takes or answers."""
    rows = list(rows)
    taken, sent = _schemas([one.kind for row in rows for one in row.arguments], "{name}.sent")
    answers, shown = _schemas([_content(answer_of(row)) for row in rows], "{name}")
    schemas = iter(taken)
    paths: dict[str, dict[str, Any]] = {}
    for row, answer in zip(rows, answers, strict=True):
        methods, method = paths.setdefault(template(row), {}), row.method.lower()
        if method in methods:
            raise TypeError(
                f"{row.method} {row.path} stands twice, for {template(row)} is all that is shown of it"
            )
        arguments = [(one, next(schemas)) for one in row.arguments]
        methods[method] = _operation(row, arguments, answer, asks_who=asks_who)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Quire",
            "version": version,
            "summary": "Pulsar's /admin/v2, and what is Quire's own.",
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": {**shown, **{name: _widened(one) for name, one in sent.items()}},
            "responses": {str(one.status): _refused(one) for one in REFUSALS},
            **({"securitySchemes": SECURITY} if asks_who else {}),
        },
        **({"security": [{name: []} for name in SECURITY]} if asks_who else {}),
    }


def template(row: Route) -> str:
    """The row's path as OpenAPI writes it, without the patterns."""
    return _IN_PATH.sub(r"{\1}", row.path)


def answer_of(row: Route) -> Any:
    """The type of what becomes JSON; NoReturn of a row that only refuses. Raises `TypeError` when it is not said."""
    found = row.shows
    if found is None:
        call = row.call if row.answer is None else row.answer
        while isinstance(call, partial):
            call = call.func
        found = get_type_hints(call, include_extras=True).get("return", Any)
    if get_origin(found) in (Awaitable, Coroutine):
        found = get_args(found)[-1]
    if found in (Any, web.Response):
        raise TypeError(
            f"{row.method} {row.path} does not say what it answers: give its call a type, or `shows`"
        )
    return NoneType if found is None else found


# -- one row -------------------------------------------------------------------------------------------


def _operation(
    row: Route, arguments: Sequence[tuple[Argument, Any]], answer: Any, *, asks_who: bool
) -> dict[str, Any]:
    said = " ".join((getdoc(row.call) or "").split()) if isroutine(row.call) else ""
    needs = f"Needs {NEEDS[row.may]}." if asks_who else ""
    operation: dict[str, Any] = {
        "operationId": _name(row),
        "tags": [_tag(row)],
        "description": " ".join(filter(None, (said, needs))),
        "parameters": [*_in_path(row, arguments), *_in_query(arguments)],
        "responses": {**_answered(answer_of(row), answer), **_refusals(row, asks_who=asks_who)},
    }
    for one, schema in arguments:
        if one.place == "body":
            required = not _is_optional(one.kind) and not one.names
            content = {JSON: {"schema": _widened(schema)}}
            operation["requestBody"] = {"required": required, "content": content}
    return operation


def _name(row: Route) -> str:
    """Of an operation: the method and the words of the path."""
    words = template(row).removeprefix("/admin/v2").replace("{", "of_").split("/")
    return "_".join((row.method.lower(), *(re.sub(r"\W", "", word) for word in words[1:])))


def _tag(row: Route) -> str:
    """The resource that it belongs to, by the path."""
    word = template(row).split("/")[3]
    return {"{domain}": "topics", "topic": "lookup"}.get(word, word)


def _in_path(row: Route, arguments: Sequence[tuple[Argument, Any]]) -> list[dict[str, Any]]:
    known = {name: schema for one, schema in arguments if one.place == "path" for name in one.names}
    found = []
    for name, pattern in _IN_PATH.findall(row.path):
        schema = known.get(name, {"type": "string", "minLength": 1})
        if _ALTERNATIVES.fullmatch(pattern):
            schema = {"enum": pattern.split("|")}
        elif pattern:
            schema = {"type": "string", "pattern": f"^{pattern}$"}
        found.append({"name": name, "in": "path", "required": True, "schema": schema})
    return found


def _in_query(arguments: Sequence[tuple[Argument, Any]]) -> list[dict[str, Any]]:
    found = []
    for one, schema in arguments:
        if one.place == "query":
            found.append({"name": one.names[0], "in": "query", "required": one.is_required, "schema": schema})
        elif one.place == "body":
            found += [
                {"name": name, "in": "query", "schema": {"type": "integer", "minimum": 0}}
                for name in one.names
            ]
    return found


def _answered(kind: Any, schema: Any) -> dict[str, Any]:
    if kind is NoReturn:
        return {}
    done = {"204": {"description": "It is done, or there is nothing to say."}}
    if kind is NoneType:
        return done
    media = get_args(kind)[1] if _is_response(kind) else JSON
    said = {"200": {"description": "The answer.", "content": {media: {"schema": schema}}}}
    return {**said, **done} if _is_optional(kind) else said


def _refusals(row: Route, *, asks_who: bool) -> dict[str, Any]:
    """What may go wrong; of a row that takes nothing only what may go wrong anywhere."""
    statuses = {
        one.status for one in REFUSALS if one.is_anywhere or row.arguments or answer_of(row) is NoReturn
    }
    if not asks_who:
        statuses -= {401, 403}
    elif row.may is Action.OPEN:
        statuses -= {403}
    return {str(one): {"$ref": f"#/components/responses/{one}"} for one in sorted(statuses)}


def _refused(one: Refusal) -> dict[str, Any]:
    """A redirection has a header, a refusal its reason."""
    if one.status < 400:
        location = {"Location": {"required": True, "schema": {"type": "string"}}}
        return {"description": one.says, "headers": location}
    reason = {"type": "object", "properties": {"reason": {"type": "string"}}, "required": ["reason"]}
    return {"description": one.says, "content": {JSON: {"schema": reason}}}


# -- types ---------------------------------------------------------------------------------------------


def _schemas(kinds: Sequence[Any], name: str) -> tuple[Sequence[Any], dict[str, Any]]:
    """The JSON Schema of each, and what they refer to, called by `name`."""
    found, components = msgspec.json.schema_components(kinds, ref_template=f"#/components/schemas/{name}")
    return found, {name.format(name=one): schema for one, schema in components.items()}


def _content(kind: Any) -> Any:
    """What a schema is made of: not of None beside something, which is 204, nor of bytes."""
    if kind is NoReturn or _is_response(kind):
        return Any
    rest = [one for one in get_args(kind) if one is not NoneType]
    return Union[tuple(rest)] if _is_optional(kind) else kind  # noqa: UP007


def _is_response(kind: Any) -> bool:
    return get_origin(kind) is Annotated and get_args(kind)[0] is web.Response


def _is_optional(kind: Any) -> bool:
    return get_origin(kind) in (Union, UnionType) and NoneType in get_args(kind)


def _widened(schema: Any) -> Any:
    """What is taken where `schema` is meant: numbers in quotes, null for a field that need not be there."""
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "integer":
        return {"anyOf": [schema, QUOTED]}
    wide = dict(schema)
    for word in ("anyOf", "items", "additionalProperties"):
        if isinstance(schema.get(word), list):
            wide[word] = [_widened(one) for one in schema[word]]
        elif word in schema:
            wide[word] = _widened(schema[word])
    required = schema.get("required", ())
    if "properties" in schema:
        wide["properties"] = {
            name: _widened(one) if name in required else {"anyOf": [_widened(one), {"type": "null"}]}
            for name, one in schema["properties"].items()
        }
    return wide
