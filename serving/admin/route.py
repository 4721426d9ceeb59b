"""A row of the REST interface: its method and path, what it calls with which arguments, and how the answer is shown.

    Route("DELETE", TOPIC, topics.delete, TOPIC_NAME, flag("force"), may=Action.ADMINISTER)
    Route("GET", f"{BOOKIES}/{{bookie}}", bookies.show, path("bookie"), may=Action.SUPERUSER)

`may` is what the caller must be allowed, at what the path names (`login`); a row without it is none.

Arguments are read in the row's order, all of them before the call: what is wrong with a request is said before
anything is done. What is called returns None (204, no content), a `web.Response` (sent as it is), or what becomes JSON,
converted by `answer` first.

Rows are all that is known of the interface: where each argument stands and what it is called there, and what is called,
whose types and docstring say the rest. Each request goes through `Route.handle`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, Final, Literal

from aiohttp import web

from quire.security.authorization import Action
from quire.serving.admin.login import permitted
from quire.serving.admin.requests import json_of, natural
from quire.serving.names import TopicName


@dataclass(frozen=True)
class Argument:
    """One argument of a call: where it stands in a request, and what becomes of it there."""

    place: Literal["path", "query", "body", "request"]
    parse: Callable[..., Any]
    """Takes the texts of `names`, None for one that is not in the query, or the body's JSON."""
    names: tuple[str, ...] = ()
    """In the path or the query. A body may come as a number in the query instead, under this name."""
    default: str | None = None
    """In the query, when it says nothing."""
    keyword: str = ""
    """Of the call; without one it is passed by its place in the row."""

    async def read(self, request: web.Request) -> Any:
        if self.place == "path":
            return self.parse(*(request.match_info[name] for name in self.names))
        if self.place == "query":
            return self.parse(request.query.get(self.names[0], self.default))
        if self.place == "body":
            for name in self.names:
                if name in request.query:
                    return self.parse(natural(request.query[name], f"{name} in the query"))
            return self.parse(await json_of(request))
        return self.parse(request)


class Route(web.AbstractRouteDef):
    def __init__(
        self,
        method: str,
        path: str,
        call: Callable[..., Any],
        *arguments: Argument,
        answer: Callable[[Any], Any] | None = None,
        may: Action,
    ) -> None:
        self.method = method
        self.path = path
        self.call = call
        self.arguments = arguments
        self.answer = answer
        self.may = may

    def register(self, router: web.UrlDispatcher) -> list[web.AbstractRoute]:
        return web.route(self.method, self.path, self.handle).register(router)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        return await permitted(request, self.may, self._carry_out)

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


def path(*names: str, parse: Callable[..., Any] = str, keyword: str = "") -> Argument:
    return Argument("path", parse, names, keyword=keyword)


def path_number(name: str) -> Argument:
    return path(name, parse=lambda text: natural(text, f"the {name} in the path"))


def query(
    name: str, parse: Callable[[Any], Any], default: str | None = None, *, keyword: str = ""
) -> Argument:
    return Argument("query", parse, (name,), default, keyword)


def query_number(name: str, default: str = "") -> Argument:
    return query(name, lambda text: natural(text, f"{name} in the query"), default)


def flag(name: str, keyword: str = "", *, default: bool = False) -> Argument:
    """`true`, or not, in the query; passed by `keyword`, or else by its name."""
    return query(name, _is_true, str(default), keyword=keyword or name)


def body(parse: Callable[[Any], Any], or_query: str = "") -> Argument:
    """The body's JSON, None without one; or a number in the query, as some of Pulsar's tools send it."""
    return Argument("body", parse, (or_query,) if or_query else ())


def as_it_is(value: Any) -> Any:
    return value


def nothing(_: object) -> None:
    """204, whatever the call returns."""


def _is_true(text: str) -> bool:
    return text.lower() == "true"


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
