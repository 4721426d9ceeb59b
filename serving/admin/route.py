"""A row of the REST interface: its method and path, what it calls with which arguments, and how the answer is shown.

    Route("DELETE", TOPIC, topics.delete, TOPIC_NAME, flag("force"), may=Action.ADMINISTER)
    Route("GET", f"{BOOKIES}/{{bookie}}", bookies.show, path("bookie"), may=Action.SUPERUSER)

`may` is what the caller must be allowed, at what the path names (`login`); a row without it is none.

Arguments are read in the row's order, all of them before the call: what is wrong with a request is said before
anything is done. What is called returns None (204, no content), a `web.Response` (sent as it is), or what becomes JSON,
converted by `answer` first. The type of that is taken from the call, or from `answer`, where `shows` does not give it.

Rows are all that is known of the interface: where each argument stands, what it is called there and of what kind it is,
and what is called, whose types and docstring say the rest; `openapi` makes a document of them. Each request goes
through `Route.handle`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import isawaitable
from typing import Annotated, Any, Final, Literal

from aiohttp import web
from msgspec import Meta

from quire.runtime.errors import ConfigurationError
from quire.security.authorization import Action
from quire.serving.admin.following import followed
from quire.serving.admin.login import permitted
from quire.serving.admin.requests import json_of, natural
from quire.serving.cluster.port import NotOwner
from quire.serving.names import TopicName

Word = Annotated[str, Meta(min_length=1)]
NATURAL_MAX: Final = 10**18 - 1
Natural = Annotated[int, Meta(ge=0, le=NATURAL_MAX)]
"""As `requests.natural` reads it."""

Positive = Annotated[int, Meta(ge=1, le=NATURAL_MAX)]

Bytes = Annotated[web.Response, "application/octet-stream"]
Text = Annotated[web.Response, "text/plain"]
"""What is answered as it is says of which type it is."""


@dataclass(frozen=True)
class Argument:
    """One argument of a call: where it stands in a request, and what becomes of it there."""

    place: Literal["path", "query", "body", "request"]
    parse: Callable[..., Any]
    """Takes the texts of `names`, None for one that is not in the query, or the body's JSON."""
    names: tuple[str, ...] = ()
    """In the path or the query. A body may come as a number in the query instead, under this name."""
    kind: Any = None
    """The type of what is sent, of which `openapi` makes a schema."""
    default: str | None = None
    """In the query, when it says nothing."""
    is_required: bool = False
    """In the query: `parse` refuses None."""
    keyword: str = ""
    """Of the call; without one it is passed by its place in the row."""

    async def read(self, request: web.Request) -> Any:
        if self.place == "path":
            return self.parse(*(request.match_info[name] for name in self.names))
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
    ) -> None:
        self.method = method
        self.path = path
        self.call = call
        self.arguments = arguments
        self.answer = answer
        self.shows = shows
        self.may = may

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
        return web.Response(status=204) if found is None else web.json_response(found)


def path(*names: str, parse: Callable[..., Any] = str, kind: Any = Word) -> Argument:
    """Of `kind` is each of the names."""
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
            raise ConfigurationError(f"{name} in the query is from {least} to {most}, not {number}")
        return number

    kind = Annotated[int, Meta(ge=least, le=most)]
    return Argument("query", parse, (name,), kind, default, keyword=keyword, is_required=default is None)


def flag(name: str, keyword: str = "", *, default: bool = False) -> Argument:
    """`true` or `false` in the query; passed by `keyword`, or else by its name."""

    def parse(text: str) -> bool:
        if text.lower() not in ("true", "false"):
            raise ConfigurationError(f"{name} in the query must be true or false, not {text[:40]!r}")
        return text.lower() == "true"

    return query(name, parse, str(default), kind=bool, keyword=keyword or name)


def body(parse: Callable[[Any], Any], kind: Any, or_query: str = "") -> Argument:
    """The body's JSON, None without one; or a number in the query, as some of Pulsar's tools send it."""
    return Argument("body", parse, (or_query,) if or_query else (), kind)


def as_it_is(value: Any) -> Any:
    return value


def nothing(_: object) -> None:
    """204, whatever the call returns."""


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
