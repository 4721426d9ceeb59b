"""`/lookup/v2/topic/…`: the broker that serves a topic, and its URLs, optionally for an advertised listener."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aiohttp import web

from quire.runtime.errors import Unavailable
from quire.security.authorization import Action
from quire.serving.admin.route import REQUEST, TOPIC_NAME, Route, Text, flag, query
from quire.serving.broker import Broker
from quire.serving.names import TopicName

LISTENER_HEADER: Final = "X-Pulsar-ListenerName"
TOPIC: Final = "/lookup/v2/topic/{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic}"


def routes(broker: Broker) -> Sequence[Route]:
    async def lookup(request: web.Request, topic: TopicName, listener: str, *, take: bool) -> dict[str, str]:
        owner = await broker.sessions.topics.look_up(str(topic), take=take)
        listener = listener or request.headers.get(LISTENER_HEADER, "")
        if not owner.owns:
            named = {"listenerName": listener} if listener else {}
            asked = request.rel_url.update_query(authoritative="true", **named)
            url = owner.rest_url(tls=request.secure)
            if not url:
                raise Unavailable(
                    f"broker {owner.broker_id} has no REST interface with TLS; use the URL of another broker"
                )
            raise web.HTTPTemporaryRedirect(f"{url}{asked.raw_path_qs}")
        urls = owner.urls_for(listener)
        return {
            "brokerUrl": urls.plain,
            "brokerUrlTls": urls.tls,  # the C++ client crashes without this field
            "httpUrl": owner.http_url,
            "httpUrlTls": owner.http_url_tls,
            "nativeUrl": urls.plain,
        }

    async def bundle(topic: TopicName) -> Text:
        """Return the bundle as plain text, as Pulsar's clients expect."""
        low, _, high = (await broker.registry.ownership.bundle_of(topic)).rpartition("/")[2].partition("_")
        return web.Response(text=f"0x{low}_0x{high}")

    listener = query("listenerName", str, "")
    return [
        Route("GET", f"{TOPIC}/bundle", bundle, TOPIC_NAME, may=Action.LOOKUP),
        Route(
            "GET",
            TOPIC,
            lookup,
            REQUEST,
            TOPIC_NAME,
            listener,
            flag("authoritative", "take"),
            may=Action.LOOKUP,
        ),
    ]
