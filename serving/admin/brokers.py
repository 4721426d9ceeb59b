"""`/quire/v1/brokers`: who is there, who owns what, since when and why; and a bundle given away by hand.

`take` is what one broker asks of another, to which it gives a bundle: to own it, and to load the topics that are named.
"""

from __future__ import annotations

from aiohttp import web

from quire.runtime.errors import ConfigurationError
from quire.serving.admin.requests import fields_of, json_of, no_content
from quire.serving.broker import Broker

BROKERS = "/quire/v1/brokers"


def routes(broker: Broker) -> list[web.RouteDef]:
    async def brokers(_: web.Request) -> web.Response:
        return web.json_response(broker.ownership.brokers())

    async def bundles(_: web.Request) -> web.Response:
        return web.json_response(broker.ownership.bundles())

    async def unload(request: web.Request) -> web.Response:
        part = request.match_info
        bundle = f"{part['tenant']}/{part['namespace']}/{part['bundle']}"
        await broker.ownership.release(bundle, "an operator asked for it")
        return no_content()

    async def take(request: web.Request) -> web.Response:
        part = request.match_info
        bundle = f"{part['tenant']}/{part['namespace']}/{part['bundle']}"
        topics = fields_of(await json_of(request) or {}, topics=list).get("topics", [])
        if not all(isinstance(topic, str) for topic in topics):
            raise ConfigurationError("topics must be a list of names")
        await broker.bundles.take(bundle, topics)
        return no_content()

    return [
        web.get(BROKERS, brokers),
        web.get(f"{BROKERS}/bundles", bundles),
        web.put(f"{BROKERS}/bundles/{{tenant}}/{{namespace}}/{{bundle}}/unload", unload),
        web.put(f"{BROKERS}/bundles/{{tenant}}/{{namespace}}/{{bundle}}/take", take),
    ]
