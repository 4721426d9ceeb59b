"""`/admin/v2/tenants`. Roles that nobody would heed are not taken (501), and none are shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quire.metadata.records import TenantRecord
from quire.serving.admin.requests import Absent, fields_of
from quire.serving.admin.route import TENANT, Route, as_it_is, body
from quire.serving.broker import Broker

TENANTS = "/admin/v2/tenants"
ONE = f"{TENANTS}/{{tenant}}"


def _record(name: str, body: Any, cluster: str) -> TenantRecord:
    found = fields_of(body or {}, adminRoles=list, allowedClusters=list)
    if found.get("adminRoles"):
        raise Absent("roles are not heeded yet, everybody may do everything: leave adminRoles empty")
    clusters = tuple(map(str, found.get("allowedClusters", ()))) or (cluster,)
    return TenantRecord(name=name, allowed_clusters=clusters)


def routes(broker: Broker) -> Sequence[Route]:
    namespaces, cluster = broker.namespaces, broker.services.settings.cluster

    async def create(name: str, value: Any) -> None:
        await namespaces.create_tenant(name, _record(name, value, cluster))

    async def update(name: str, value: Any) -> None:
        await namespaces.update_tenant(name, _record(name, value, cluster))

    def shown(record: TenantRecord) -> dict[str, list[str]]:
        return {"adminRoles": [], "allowedClusters": list(record.allowed_clusters)}

    return (
        Route("GET", TENANTS, namespaces.tenants),
        Route("GET", ONE, namespaces.tenant, TENANT, answer=shown),
        Route("PUT", ONE, create, TENANT, body(as_it_is)),
        Route("POST", ONE, update, TENANT, body(as_it_is)),
        Route("DELETE", ONE, namespaces.delete_tenant, TENANT),
    )
