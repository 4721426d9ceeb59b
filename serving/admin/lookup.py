"""`/lookup/v2/topic/…`: which broker serves a topic."""

from __future__ import annotations

from aiohttp import web

from quire.serving.admin.target import AdminTarget


def routes(target: AdminTarget) -> list[web.RouteDef]:
    async def lookup(request: web.Request) -> web.Response:
        part = request.match_info
        await target.namespaces.get(part["tenant"], part["namespace"])
        return web.json_response(
            {
                "brokerUrl": target.service_url,
                "brokerUrlTls": "",  # the C++ client crashes when it is absent
                "httpUrl": target.http_url,
                "httpUrlTls": "",
                "nativeUrl": target.service_url,
            }
        )

    return [
        web.get("/lookup/v2/topic/{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic}", lookup)
    ]
