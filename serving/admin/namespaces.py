"""`/admin/v2/namespaces`: namespaces; `bundles` has the requests about their bundles.

`policies` serves the policies of both namespaces and topics.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Literal

from aiohttp import web

from quire.metadata.records import Policies
from quire.runtime.errors import ConfigurationError, NotFound
from quire.security.authorization import Action
from quire.serving.admin import bundles, policy_json, properties, resource_quotas
from quire.serving.admin.namespace_json import namespace_of
from quire.serving.admin.permissions import are_heeded, shown_permissions
from quire.serving.admin.policies import require_to_lift
from quire.serving.admin.route import (
    NAMESPACE,
    OF_NAMESPACE,
    REQUEST,
    SUBSCRIPTION_NAME,
    TENANT,
    Route,
    body,
    query,
)
from quire.serving.broker import Broker
from quire.serving.policy.resolved import limits_of

MODES: Final = {
    "PERSISTENT": ("persistent",),
    "NON_PERSISTENT": ("non-persistent",),
    "ALL": ("persistent", "non-persistent"),
}


Made = tuple[Policies, tuple[str, ...] | None]
"""Policies and boundaries, as returned by `namespace_of`."""


def routes(broker: Broker) -> Sequence[Route]:
    others = bundles, properties, resource_quotas
    return (*_namespaces(broker), *(row for one in others for row in one.routes(broker)))


def _namespaces(broker: Broker) -> Sequence[Route]:
    namespaces, subscriptions = broker.namespaces, broker.admin.subscriptions
    cluster = broker.services.settings.cluster

    async def show(tenant: str, namespace: str) -> dict[str, Any]:
        record = await namespaces.get(tenant, namespace)
        shown = {**policy_json.shown(record.policies, cluster), **shown_permissions(record.policies)}
        return {**shown, "bundles": bundles.bundles_of(record)}

    async def create(tenant: str, namespace: str, made: Made, request: web.Request) -> None:
        await require_to_lift(request, limits_of(made[0]))
        await namespaces.create(tenant, namespace, *made)

    async def delete(tenant: str, namespace: str, request: web.Request) -> None:
        """Delete an empty namespace. Only a superuser may delete one that has limits."""
        with suppress(NotFound):  # a deletion in progress is continued
            record = await namespaces.get(tenant, namespace)
            await require_to_lift(request, limits_of(record.policies))
        await namespaces.delete(tenant, namespace)

    async def topics(tenant: str, namespace: str, domains: Sequence[str]) -> list[str]:
        found = [await broker.fan_out.topics(tenant, namespace, domain) for domain in domains]
        return sorted(name for names in found for name in names)

    clear_all = partial(subscriptions.clear_backlog, name=None)
    policies = body(
        partial(namespace_of, cluster=cluster, is_authorizing=are_heeded(broker)), dict[str, Any] | None
    )
    mode = query("mode", _domains, "PERSISTENT", kind=Literal[tuple(MODES)])
    of_one = *OF_NAMESPACE, SUBSCRIPTION_NAME
    return (
        Route("GET", "/admin/v2/namespaces/{tenant}", namespaces.list, TENANT, may=Action.ADMINISTER),
        Route("GET", NAMESPACE, show, *OF_NAMESPACE, may=Action.ADMINISTER),
        Route("PUT", NAMESPACE, create, *OF_NAMESPACE, policies, REQUEST, may=Action.ADMINISTER),
        Route("DELETE", NAMESPACE, delete, *OF_NAMESPACE, REQUEST, may=Action.ADMINISTER),
        Route("GET", f"{NAMESPACE}/topics", topics, *OF_NAMESPACE, mode, may=Action.LIST_TOPICS),
        Route("POST", f"{NAMESPACE}/clearBacklog", clear_all, *OF_NAMESPACE, may=Action.ADMINISTER),
        Route(
            "POST",
            f"{NAMESPACE}/clearBacklog/{{subscription}}",
            subscriptions.clear_backlog,
            *of_one,
            may=Action.ADMINISTER,
        ),
        Route(
            "POST",
            f"{NAMESPACE}/unsubscribe/{{subscription}}",
            subscriptions.delete_everywhere,
            *of_one,
            may=Action.ADMINISTER,
        ),
    )


def _domains(mode: str) -> Sequence[str]:
    """Return the domains that a mode selects."""
    if mode.upper() not in MODES:
        raise ConfigurationError(f"invalid mode {mode.upper()[:40]!r}: use {', '.join(MODES)}")
    return MODES[mode.upper()]
