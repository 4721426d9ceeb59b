"""`/admin/v2/tenants`. Roles that nobody would heed are not taken (501), and none are shown."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from quire.metadata.records import TenantRecord
from quire.serving.admin.requests import Absent, fields_of, json_of, no_content
from quire.serving.broker import Broker

TENANTS = "/admin/v2/tenants"


def _record(name: str, body: Any, cluster: str) -> TenantRecord:
    found = fields_of(body or {}, adminRoles=list, allowedClusters=list)
    if found.get("adminRoles"):
        raise Absent("roles are not heeded yet, everybody may do everything: leave adminRoles empty")
    clusters = tuple(map(str, found.get("allowedClusters", ()))) or (cluster,)
    return TenantRecord(name=name, allowed_clusters=clusters)


def routes(broker: Broker) -> list[web.RouteDef]:
    namespaces = broker.namespaces

    async def names(_: web.Request) -> web.Response:
        return web.json_response(await namespaces.tenants())

    async def get(request: web.Request) -> web.Response:
        record = await namespaces.tenant(request.match_info["tenant"])
        return web.json_response({"adminRoles": [], "allowedClusters": list(record.allowed_clusters)})

    async def put(request: web.Request) -> web.Response:
        name = request.match_info["tenant"]
        await namespaces.create_tenant(
            name, _record(name, await json_of(request), broker.services.settings.cluster)
        )
        return no_content()

    async def post(request: web.Request) -> web.Response:
        name = request.match_info["tenant"]
        await namespaces.update_tenant(
            name, _record(name, await json_of(request), broker.services.settings.cluster)
        )
        return no_content()

    async def delete(request: web.Request) -> web.Response:
        await namespaces.delete_tenant(request.match_info["tenant"])
        return no_content()

    return [
        web.get(TENANTS, names),
        web.get(f"{TENANTS}/{{tenant}}", get),
        web.put(f"{TENANTS}/{{tenant}}", put),
        web.post(f"{TENANTS}/{{tenant}}", post),
        web.delete(f"{TENANTS}/{{tenant}}", delete),
    ]
