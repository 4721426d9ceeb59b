"""`/quire/v1/namespaces`: tables of namespaces and topics, in pages (`operations/topic_table`).

The list of namespaces contains those whose topics the caller may list.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, TypedDict, get_args

from aiohttp import web

from quire.runtime.errors import ConfigurationError
from quire.security.authorization import Action, Place
from quire.serving.admin.login import may
from quire.serving.admin.route import OF_NAMESPACE, REQUEST, Argument, Route, query, query_number
from quire.serving.broker import Broker
from quire.serving.operations.topic_table import ROWS_MAX, Order, TopicPage, TopicQuery

NAMESPACES: Final = "/quire/v1/namespaces"
TOPICS: Final = f"{NAMESPACES}/{{tenant}}/{{namespace}}/topics"

OFFSET_MAX: Final = 100_000
"""Largest offset; to find a later topic, search for its name."""


class NamespaceRow(TypedDict):
    namespace: str
    mayAdminister: bool


def routes(broker: Broker) -> Sequence[Route]:
    table, namespaces = broker.admin.table, broker.namespaces

    async def listed(request: web.Request) -> list[NamespaceRow]:
        found: list[NamespaceRow] = []
        for tenant in await namespaces.tenants():
            for name in await namespaces.list(tenant):
                place = Place(tenant, name.partition("/")[2])
                administers = await may(request, Action.ADMINISTER, place)
                if administers or await may(request, Action.LIST_TOPICS, place):
                    found.append({"namespace": name, "mayAdminister": administers})
        return found

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
    several = query_number("limit", "50", most=OFFSET_MAX + ROWS_MAX, keyword="limit")
    asked = (*OF_NAMESPACE, domain, contains, order)
    return (
        Route("GET", NAMESPACES, listed, REQUEST, may=Action.OPEN),
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


def _one_of(name: str, words: tuple[str, ...], default: str, keyword: str = "") -> Argument:
    def parse(text: str) -> str:
        if text not in words:
            raise ConfigurationError(f"{name} in the query must be {' or '.join(words)}, not {text[:40]!r}")
        return text

    return query(name, parse, default, kind=Literal[words], keyword=keyword or name)
