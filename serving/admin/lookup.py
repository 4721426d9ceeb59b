"""`/lookup/v2/topic/…`: which broker serves a topic, and its URL for clients that come by a listener."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aiohttp import web

from quire.serving.admin.route import REQUEST, TOPIC_NAME, Route, flag
from quire.serving.broker import Broker
from quire.serving.names import TopicName

LISTENER_HEADER: Final = "X-Pulsar-ListenerName"
TOPIC: Final = "/lookup/v2/topic/{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic}"


def routes(broker: Broker) -> Sequence[Route]:
    async def lookup(request: web.Request, topic: TopicName, *, take: bool) -> dict[str, str]:
        owner = await broker.sessions.topics.look_up(str(topic), take=take)
        listener = request.query.get("listenerName", "") or request.headers.get(LISTENER_HEADER, "")
        if not owner.owns:
            named = {"listenerName": listener} if listener else {}
            asked = request.rel_url.update_query(authoritative="true", **named)
            raise web.HTTPTemporaryRedirect(f"{owner.http_url}{asked.raw_path_qs}")
        url = owner.url_for(listener)
        return {
            "brokerUrl": url,
            "brokerUrlTls": "",  # the C++ client crashes when it is absent
            "httpUrl": owner.http_url,
            "httpUrlTls": "",
            "nativeUrl": url,
        }

    return [Route("GET", TOPIC, lookup, REQUEST, TOPIC_NAME, flag("authoritative", "take"))]
