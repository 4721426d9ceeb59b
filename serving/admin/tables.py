"""`/quire/v1/namespaces`: tables of namespaces and topics, in pages (`operations/topic_table`).

The list of namespaces contains those whose topics the caller may list.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, Literal, get_args

from aiohttp import web
from msgspec import Struct, field

from quire.runtime.errors import ConfigurationError
from quire.security.authorization import Action, Place
from quire.serving.admin.login import may
from quire.serving.admin.route import OF_NAMESPACE, REQUEST, Argument, Route, query, query_number
from quire.serving.broker import Broker
from quire.serving.operations.namespace_table import COUNTED_MAX, LOADED_PATH, NamespaceNumbers
from quire.serving.operations.topic_table import ROWS_MAX, Order, TopicPage, TopicQuery

NAMESPACES: Final = "/quire/v1/namespaces"
TOPICS: Final = f"{NAMESPACES}/{{tenant}}/{{namespace}}/topics"

OFFSET_MAX: Final = 100_000
"""Largest offset; to find a later topic, search for its name."""


class NamespaceRow(Struct, rename="camel"):
    namespace: str
    may_administer: bool
    topics: int | None = None
    """Number of persistent topics; None if it was not counted."""
    numbers: NamespaceNumbers = field(default_factory=NamespaceNumbers)


def routes(broker: Broker) -> Sequence[Route]:
    table, of_namespaces = broker.admin.tables.topics, broker.admin.tables.namespaces

    async def listed(request: web.Request) -> list[NamespaceRow]:
        """Return the namespaces whose topics the caller may list."""
        rows = [one async for one in visible(broker, request)]
        loaded = (await of_namespaces.loaded()).namespaces
        for number, row in enumerate(rows):
            row.numbers = loaded.get(row.namespace, row.numbers)
            if number < COUNTED_MAX:
                row.topics = await of_namespaces.topics(*row.namespace.split("/"))
        return rows

    async def found(request: web.Request, contains: str, limit: int) -> list[str]:
        """Return topics of all these namespaces whose name contains a text, or that have this full name."""
        names: list[str] = []
        where, local = _split(contains)
        async for row in visible(broker, request):
            if len(names) >= limit:
                break
            if row.namespace.startswith(where):
                tenant, namespace = row.namespace.split("/")
                names += await of_namespaces.search(tenant, namespace, local, limit - len(names))
        return names

    async def page(tenant: str, namespace: str, *, domain: str, contains: str, **which: Any) -> TopicPage:
        return await table.page(TopicQuery(tenant, namespace, domain, contains), **which)

    async def loaded(tenant: str, namespace: str, **asked: Any) -> TopicPage:
        """Return topics that this broker has loaded: between two names, or the first ones in an order."""
        wanted = TopicQuery(tenant, namespace, asked["domain"], asked["contains"])
        if asked["order"] == "name":
            return await table.loaded_between(wanted, asked["first"], asked["last"])
        return await table.loaded_most(wanted, asked["order"], asked["limit"])

    domain = _one_of("domain", ("persistent", "non-persistent"), "persistent")
    contains = query("contains", str, "", keyword="contains")
    order = _one_of("sort", get_args(Order), "name", keyword="order")
    names = [query(one, str, "", keyword=one) for one in ("first", "last")]
    offset = query_number("offset", "0", most=OFFSET_MAX, keyword="offset")
    limit = query_number("limit", "50", most=ROWS_MAX, keyword="limit")
    text, few = query("contains", str, ""), query_number("limit", "20", least=1, most=ROWS_MAX)
    several = query_number("limit", "50", most=OFFSET_MAX + ROWS_MAX, keyword="limit")
    asked = (*OF_NAMESPACE, domain, contains, order)
    return (
        Route("GET", NAMESPACES, listed, REQUEST, may=Action.OPEN),
        Route("GET", LOADED_PATH, of_namespaces.loaded_here, may=Action.SUPERUSER),
        Route("GET", "/quire/v1/topics", found, REQUEST, text, few, may=Action.OPEN),
        Route(
            "GET",
            TOPICS,
            page,
            *asked,
            offset,
            limit,
            may=Action.LIST_TOPICS,
        ),
        Route(
            "GET",
            f"{TOPICS}/loaded",
            loaded,
            *asked,
            several,
            *names,
            may=Action.LIST_TOPICS,
        ),
    )


async def visible(broker: Broker, request: web.Request) -> AsyncIterator[NamespaceRow]:
    """Yield the namespaces whose topics the caller may list."""
    for tenant in await broker.namespaces.tenants():
        for name in await broker.namespaces.list(tenant):
            place = Place(tenant, name.partition("/")[2])
            administers = await may(request, Action.ADMINISTER, place)
            if administers or await may(request, Action.LIST_TOPICS, place):
                yield NamespaceRow(name, administers)


def _split(text: str) -> tuple[str, str]:
    """Split what a user typed into the start of a namespace and a part of a topic's name."""
    rest = text.rpartition("://")[2]
    tenant, slash, more = rest.partition("/")
    namespace, slash_2, local = more.partition("/")
    return (f"{tenant}/{namespace}", local) if slash and slash_2 else ("", rest)


def _one_of(name: str, words: tuple[str, ...], default: str, keyword: str = "") -> Argument:
    def parse(text: str) -> str:
        if text not in words:
            raise ConfigurationError(f"{name} in the query must be {' or '.join(words)}, not {text[:40]!r}")
        return text

    return query(name, parse, default, kind=Literal[words], keyword=keyword or name)
