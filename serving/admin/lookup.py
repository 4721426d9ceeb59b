"""`/lookup/v2/topic/…`: which broker serves a topic, and its URL for clients that come by a listener."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from quire.serving.admin.requests import flag, topic_of
from quire.serving.broker import Broker

LISTENER_HEADER: Final = "X-Pulsar-ListenerName"


def routes(broker: Broker) -> list[web.RouteDef]:
    async def lookup(request: web.Request) -> web.Response:
        owner = await broker.sessions.topics.look_up(
            str(topic_of(request)), take=flag(request, "authoritative")
        )
        listener = request.query.get("listenerName", "") or request.headers.get(LISTENER_HEADER, "")
        if not owner.owns:
            named = {"listenerName": listener} if listener else {}
            asked = request.rel_url.update_query(authoritative="true", **named)
            raise web.HTTPTemporaryRedirect(f"{owner.http_url}{asked.raw_path_qs}")
        url = owner.url_for(listener)
        return web.json_response(
            {
                "brokerUrl": url,
                "brokerUrlTls": "",  # the C++ client crashes when it is absent
                "httpUrl": owner.http_url,
                "httpUrlTls": "",
                "nativeUrl": url,
            }
        )

    return [
        web.get("/lookup/v2/topic/{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic}", lookup)
    ]
