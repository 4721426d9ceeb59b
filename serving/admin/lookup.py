"""`/lookup/v2/topic/…`: which broker serves a topic."""

from __future__ import annotations

from aiohttp import web

from quire.serving.admin.requests import flag, topic_of
from quire.serving.admin.target import AdminTarget


def routes(target: AdminTarget) -> list[web.RouteDef]:
    async def lookup(request: web.Request) -> web.Response:
        owner = await target.look_up(topic_of(request), take=flag(request, "authoritative"))
        if not owner.owns:
            where = f"{owner.http_url}{request.rel_url.update_query(authoritative='true').raw_path_qs}"
            raise web.HTTPTemporaryRedirect(where)
        return web.json_response(
            {
                "brokerUrl": owner.service_url,
                "brokerUrlTls": "",  # the C++ client crashes when it is absent
                "httpUrl": owner.http_url,
                "httpUrlTls": "",
                "nativeUrl": owner.service_url,
            }
        )

    return [
        web.get("/lookup/v2/topic/{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic}", lookup)
    ]
