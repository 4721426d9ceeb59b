"""`/admin/v2/tenants`: tenants and their admin roles. Without authorization, roles are rejected (501)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct

from quire.metadata.records import TenantRecord
from quire.runtime.errors import AlreadyExists, ConfigurationError
from quire.security.authorization import Action
from quire.serving.admin.permissions import are_heeded, roles_of
from quire.serving.admin.requests import Absent, fields_of
from quire.serving.admin.route import TENANT, Route, as_it_is, body
from quire.serving.broker import Broker

TENANTS = "/admin/v2/tenants"
ONE = f"{TENANTS}/{{tenant}}"


class TenantJson(Struct, rename="camel"):
    """Request body of a tenant."""

    admin_roles: list[Annotated[str, Meta(min_length=1, max_length=256)]] = []
    allowed_clusters: list[str] = []


def _record(name: str, body: Any, cluster: str, *, takes_roles: bool) -> TenantRecord:
    found = fields_of(body or {}, adminRoles=list, allowedClusters=list)
    roles = roles_of(found.get("adminRoles", []))
    if roles and not takes_roles:
        raise Absent("authorization is disabled, so roles would have no effect: leave adminRoles empty")
    clusters = tuple(found.get("allowedClusters", ())) or (cluster,)
    if not all(isinstance(one, str) for one in clusters):
        raise ConfigurationError("allowedClusters must be a list of names")
    return TenantRecord(name=name, allowed_clusters=clusters, admin_roles=roles)


def routes(broker: Broker) -> Sequence[Route]:
    namespaces, cluster = broker.namespaces, broker.services.settings.cluster
    takes_roles = are_heeded(broker)

    async def create(name: str, value: Any) -> None:
        if name in await namespaces.tenants():  # before the body is checked
            raise AlreadyExists(f"tenant {name} already exists")
        await namespaces.create_tenant(name, _record(name, value, cluster, takes_roles=takes_roles))

    async def update(name: str, value: Any) -> None:
        await namespaces.update_tenant(name, _record(name, value, cluster, takes_roles=takes_roles))

    def shown(record: TenantRecord) -> dict[str, list[str]]:
        return {"adminRoles": list(record.admin_roles), "allowedClusters": list(record.allowed_clusters)}

    return (
        Route("GET", TENANTS, namespaces.tenants, may=Action.SUPERUSER),
        Route("GET", ONE, namespaces.tenant, TENANT, answer=shown, may=Action.ADMINISTER),
        Route("PUT", ONE, create, TENANT, body(as_it_is, TenantJson | None), may=Action.SUPERUSER),
        Route("POST", ONE, update, TENANT, body(as_it_is, TenantJson | None), may=Action.SUPERUSER),
        Route("DELETE", ONE, namespaces.delete_tenant, TENANT, may=Action.SUPERUSER),
    )
