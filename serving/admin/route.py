"""Row of the REST interface: its method and path, the function and its arguments, and the form of the answer.

    Route("DELETE", TOPIC, topics.delete, TOPIC_NAME, flag("force"), may=Action.ADMINISTER)
    Route("GET", f"{BOOKIES}/{{bookie}}", bookies.show, path("bookie"), may=Action.SUPERUSER)

`may` is the permission that the caller needs for the tenant, namespace, topic and subscription in the path (`login`).
Every row has one.

Arguments are read in the row's order, all of them before the call, so an invalid request has no effect.
The function returns None (204, no content), a `web.Response` (sent unchanged), or an object that becomes JSON
(structs, too), converted by `answer` first. The JSON's type is `shows`; if that is None, the return type of `answer`
or, without `answer`, of the function.

Rows describe the whole interface: the place, name and kind of each argument, and the function with its types and
docstring. `openapi` generates a document from them. `Route.handle` handles each request.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable
from typing import Annotated, Any, Final, Literal

from aiohttp import web
from msgspec import Meta, to_builtins

from quire.runtime.errors import ConfigurationError
from quire.runtime.http_server import reserve
from quire.security.authorization import Action
from quire.serving.admin.following import followed
from quire.serving.admin.login import permitted
from quire.serving.admin.requests import json_of, natural, path_names
from quire.serving.names import TopicName
from quire.serving.ownership.port import NotOwner

_encode: Final = partial(json.dumps, default=to_builtins)

Word = Annotated[str, Meta(min_length=1)]
NATURAL_MAX: Final = 10**18 - 1
Natural = Annotated[int, Meta(ge=0, le=NATURAL_MAX)]
"""Number that `requests.natural` parses."""

Positive = Annotated[int, Meta(ge=1, le=NATURAL_MAX)]

Bytes = Annotated[web.Response, "application/octet-stream"]
Text = Annotated[web.Response, "text/plain"]
"""Response that is sent unchanged, with this content type."""


@dataclass(frozen=True)
class Argument:
    """One argument of a call: where it is in a request, and how it is parsed."""

    place: Literal["path", "query", "body", "request"]
    parse: Callable[..., Any]
    """Function of the strings of `names` (None if absent from the query), or of the body's JSON."""
    names: tuple[str, ...] = ()
    """Names in the path or the query. A body may instead be sent as a number in the query, under this name."""
    kind: Any = None
    """Type of the parameter or body, from which `openapi` generates a schema."""
    default: str | None = None
    """Value if the parameter is absent from the query."""
    is_required: bool = False
    """True if `parse` rejects None, so that the parameter must be in the query."""
    keyword: str = ""
    """Keyword of the argument in the call; if empty, the argument is positional."""

    async def read(self, request: web.Request) -> Any:
        if self.place == "path":
            return self.parse(*(path_names(request)[name] for name in self.names))
        if self.place == "query":
            return self.parse(request.query.get(self.names[0], self.default))
        if self.place == "body":
            sent = await json_of(request)
            for name in self.names:
                if name in request.query:
                    if sent is not None:
                        raise ConfigurationError(f"send {name} in the query or as the body, not as both")
                    return self.parse(natural(request.query[name], f"{name} in the query"))
            return self.parse(sent)
        return self.parse(request)


class Route(web.AbstractRouteDef):
    def __init__(
        self,
        method: str,
        path: str,
        call: Callable[..., Any],
        *arguments: Argument,
        answer: Callable[[Any], Any] | None = None,
        shows: Any = None,
        may: Action,
        holds: int = 0,
    ) -> None:
        """Create a row. `holds` is the memory (bytes) of a call until its response is sent, if that may be large."""
        self.method = method
        self.path = path
        self.call = call
        self.arguments = arguments
        self.answer = answer
        self.shows = shows
        self.may = may
        self.holds = holds

    def register(self, router: web.UrlDispatcher) -> list[web.AbstractRoute]:
        return web.route(self.method, self.path, self.handle).register(router)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        return await permitted(request, self.may, self._carry_out_or_follow)

    async def _carry_out_or_follow(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._carry_out(request)
        except NotOwner as elsewhere:
            return await followed(request, elsewhere)

    async def _carry_out(self, request: web.Request) -> web.StreamResponse:
        read = [(one.keyword, await one.read(request)) for one in self.arguments]
        if self.holds:
            await reserve(request, self.holds)
        found = self.call(
            *(value for keyword, value in read if not keyword),
            **{keyword: value for keyword, value in read if keyword},
        )
        if isawaitable(found):
            found = await found
        if self.answer is not None:
            found = self.answer(found)
        if isinstance(found, web.StreamResponse):
            return found
        return web.Response(status=204) if found is None else web.json_response(found, dumps=_encode)


def path(*names: str, parse: Callable[..., Any] = str, kind: Any = Word) -> Argument:
    """Return an argument from variables of the path, each of type `kind`."""
    return Argument("path", parse, names, kind)


def path_number(name: str) -> Argument:
    return path(name, parse=lambda text: natural(text, f"the {name} in the path"), kind=Natural)


def query(
    name: str, parse: Callable[[Any], Any], default: str | None = None, *, kind: Any = str, keyword: str = ""
) -> Argument:
    return Argument("query", parse, (name,), kind, default, keyword=keyword)


def query_number(
    name: str, default: str | None = None, *, least: int = 0, most: int = NATURAL_MAX, keyword: str = ""
) -> Argument:
    def parse(text: str | None) -> int:
        number = natural(text or "", f"{name} in the query")
        if not least <= number <= most:
            raise ConfigurationError(f"{name} in the query must be {least} to {most}, not {number}")
        return number

    kind = Annotated[int, Meta(ge=least, le=most)]
    return Argument("query", parse, (name,), kind, default, keyword=keyword, is_required=default is None)


def flag(name: str, keyword: str = "", *, default: bool = False) -> Argument:
    """Return an argument that is `true` or `false` in the query; it is passed by `keyword`, or else by its name."""

    def parse(text: str) -> bool:
        if text.lower() not in ("true", "false"):
            raise ConfigurationError(f"{name} in the query must be true or false, not {text[:40]!r}")
        return text.lower() == "true"

    return query(name, parse, str(default), kind=bool, keyword=keyword or name)


def body(parse: Callable[[Any], Any], kind: Any, or_query: str = "") -> Argument:
    """Return the argument for the body's JSON (None if empty) or, as some tools send it, a number in the query."""
    return Argument("body", parse, (or_query,) if or_query else (), kind)


def as_it_is(value: Any) -> Any:
    return value


def nothing(_: object) -> None:
    """Answer 204, regardless of the call's result."""


def _topic(domain: str, tenant: str, namespace: str, topic: str) -> TopicName:
    return TopicName.parse(f"{domain}://{tenant}/{namespace}/{topic}")


REQUEST: Final = Argument("request", as_it_is)
TENANT: Final = path("tenant")
OF_NAMESPACE: Final = (TENANT, path("namespace"))
DOMAIN: Final = path("domain")
TOPIC_NAME: Final = path("domain", "tenant", "namespace", "topic", parse=_topic)
SUBSCRIPTION_NAME: Final = path("subscription")

NAMESPACE: Final = "/admin/v2/namespaces/{tenant}/{namespace}"
TOPICS: Final = "/admin/v2/{domain:persistent|non-persistent}/{tenant}/{namespace}"
TOPIC: Final = f"{TOPICS}/{{topic}}"
SUBSCRIPTION: Final = f"{TOPIC}/subscription/{{subscription}}"
