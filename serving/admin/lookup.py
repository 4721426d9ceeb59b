"""`/lookup/v2/topic/…`: which broker serves a topic."""

from __future__ import annotations

from aiohttp import web

from quire.serving.admin.target import AdminTarget


def routes(target: AdminTarget) -> list[web.RouteDef]:
    async def lookup(request: web.Request) -> web.Response:
        part = request.match_info
        await target.namespaces.get(part["tenant"], part["namespace"])
        return web.json_response(
            {"brokerUrl": target.service_url, "httpUrl": target.http_url, "nativeUrl": ""}
        )

    return [
        web.get("/lookup/v2/topic/{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic}", lookup)
    ]
