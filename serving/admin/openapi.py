"""`/quire/v1/openapi.json`: the REST interface as an OpenAPI 3.1 document, generated from its rows.

Parameters are derived from the kinds of a row's arguments, responses from the type of the called function (or from
`shows`), errors from `refusals.REFUSALS`, and permissions from `may`. Kinds are types, for which msgspec generates JSON
Schema. An incomplete row raises `TypeError`; a test checks all rows.

Request bodies may contain more than their schema says: some of Pulsar's tools send numbers in quotes, and null for
unset fields. So each schema of a request body is a separate component, `NAME.sent`.
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
from msgspec import StructMeta

from quire import __version__
from quire.security.authorization import Action
from quire.serving.admin.refusals import REFUSALS, Refusal
from quire.serving.admin.route import Argument, Route

PATH: Final = "/quire/v1/openapi.json"
JSON: Final = "application/json"
QUOTED: Final = {"type": "string", "pattern": "^-?[0-9]{1,20}$"}
"""Schema of a number in quotes, as some tools send it."""

SECURITY: Final = {
    "token": {"type": "http", "scheme": "bearer"},
    "basic": {"type": "http", "scheme": "basic"},
    "certificate": {"type": "mutualTLS"},
}
NEEDS: Final = {
    Action.OPEN: "authentication",
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
    """Return the row that serves the document of `rows` and itself; `asks_who` is True if callers authenticate."""

    @cache
    def encoded() -> bytes:
        return msgspec.json.encode(document([*rows, this], __version__, asks_who=asks_who))

    def show() -> Annotated[web.Response, "application/json"]:
        """Return this document."""
        return web.Response(body=encoded(), content_type=JSON)

    this = Route("GET", PATH, show, may=Action.OPEN)
    return this


def document(rows: Iterable[Route], version: str, *, asks_who: bool = True) -> dict[str, Any]:
    """Generate the OpenAPI 3.1 document of `rows`.

    Raises `TypeError` for a row without types of arguments or response.
    """
    rows = list(rows)
    taken, sent = _schemas([one.kind for row in rows for one in row.arguments], "{name}.sent")
    answers, shown = _schemas([_content(answer_of(row)) for row in rows], "{name}")
    schemas = iter(taken)
    paths: dict[str, dict[str, Any]] = {}
    for row, answer in zip(rows, answers, strict=True):
        methods, method = paths.setdefault(template(row), {}), row.method.lower()
        if method in methods:
            raise TypeError(
                f"{row.method} {row.path} conflicts with another row: both are {template(row)} in the document"
            )
        arguments = [(one, next(schemas)) for one in row.arguments]
        methods[method] = _operation(row, arguments, answer, asks_who=asks_who)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Quire",
            "version": version,
            "summary": "Pulsar's admin API under /admin/v2, and Quire's own requests under /quire/v1.",
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
    """Return the row's path in OpenAPI's notation, without regular expressions."""
    return _IN_PATH.sub(r"{\1}", row.path)


def answer_of(row: Route) -> Any:
    """Return the type of a row's JSON; NoReturn for a row that always fails. Raises `TypeError` if it is unknown."""
    found = row.shows
    if found is None:
        call = row.call if row.answer is None else row.answer
        while isinstance(call, partial):
            call = call.func
        found = get_type_hints(call, include_extras=True).get("return", Any)
    if get_origin(found) in (Awaitable, Coroutine):
        found = get_args(found)[-1]
    if found in (Any, web.Response):
        raise TypeError(f"{row.method} {row.path} has no response type: annotate its call, or set `shows`")
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
            wanted = _widened(schema)
            if one.names:
                wanted = {"anyOf": [wanted, {"type": "null"}]}  # null if the value is in the query
            operation["requestBody"] = {"required": required, "content": {JSON: {"schema": wanted}}}
    return operation


def _name(row: Route) -> str:
    """Return an operation's id: the method and the words of the path."""
    words = template(row).removeprefix("/admin/v2").replace("{", "of_").split("/")
    return "_".join((row.method.lower(), *(re.sub(r"\W", "", word) for word in words[1:])))


def _tag(row: Route) -> str:
    """Return the resource of an operation, from its path."""
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
    done = {"204": {"description": "The request succeeded, and the response has no content."}}
    if kind is NoneType:
        return done
    media = get_args(_without_none(kind))[1] if _is_response(_without_none(kind)) else JSON
    said = {"200": {"description": "The request succeeded.", "content": {media: {"schema": schema}}}}
    return {**said, **done} if _is_optional(kind) else said


def _refusals(row: Route, *, asks_who: bool) -> dict[str, Any]:
    """Return the errors of a row; for a row without arguments, only the general ones."""
    statuses = {
        one.status for one in REFUSALS if one.is_anywhere or row.arguments or answer_of(row) is NoReturn
    }
    if not asks_who:
        statuses -= {401, 403}
    elif row.may is Action.OPEN:
        statuses -= {403}
    return {str(one): {"$ref": f"#/components/responses/{one}"} for one in sorted(statuses)}


def _refused(one: Refusal) -> dict[str, Any]:
    """Describe an error response: a redirection has a header, others a reason."""
    if one.status < 400:
        location = {"Location": {"required": True, "schema": {"type": "string"}}}
        return {"description": one.says, "headers": location}
    reason = {"type": "object", "properties": {"reason": {"type": "string"}}, "required": ["reason"]}
    return {"description": one.says, "content": {JSON: {"schema": reason}}}


# -- types ---------------------------------------------------------------------------------------------


def _schemas(kinds: Sequence[Any], name: str) -> tuple[Sequence[Any], dict[str, Any]]:
    """Return the JSON Schemas of types, and those of the types that they refer to, by `name`."""
    parts = [_alternatives(kind) for kind in kinds]
    found, components = msgspec.json.schema_components(
        [one for some in parts for one in some], ref_template=f"#/components/schemas/{name}"
    )
    schemas = iter(found)
    shown = [[next(schemas) for _ in some] for some in parts]
    joined = [some[0] if len(some) == 1 else {"anyOf": some} for some in shown]
    return joined, {name.format(name=one): schema for one, schema in components.items()}


def _alternatives(kind: Any) -> Sequence[Any]:
    """Return the members of a union of structs, for which msgspec generates no schema; else the type itself."""
    members = get_args(kind) if get_origin(kind) in (Union, UnionType) else ()
    return members if members and all(isinstance(one, StructMeta) for one in members) else (kind,)


def _content(kind: Any) -> Any:
    """Return the type for a schema: without None, which means status 204; `Any` for a response that is not JSON."""
    kind = _without_none(kind)
    return Any if kind is NoReturn or _is_response(kind) else kind


def _without_none(kind: Any) -> Any:
    rest = [one for one in get_args(kind) if one is not NoneType]
    return Union[tuple(rest)] if _is_optional(kind) else kind  # noqa: UP007


def _is_response(kind: Any) -> bool:
    return get_origin(kind) is Annotated and get_args(kind)[0] is web.Response


def _is_optional(kind: Any) -> bool:
    return get_origin(kind) in (Union, UnionType) and NoneType in get_args(kind)


def _widened(schema: Any) -> Any:
    """Extend `schema` to the accepted input: numbers in quotes, null for optional fields."""
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
