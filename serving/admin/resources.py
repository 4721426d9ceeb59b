"""All resources of the REST interface, in the order in which the router tries their rows."""

from __future__ import annotations

from quire.serving.admin import (
    absent,
    brokers,
    lookup,
    messages,
    namespaces,
    openapi,
    overview,
    permissions,
    policies,
    schemas,
    search,
    storage,
    subscriptions,
    tables,
    tenants,
    topics,
)
from quire.serving.admin.route import Route
from quire.serving.broker import Broker

RESOURCES = (
    absent,
    brokers,
    overview,
    storage,
    tenants,
    namespaces,
    permissions,
    policies,
    tables,
    topics,
    subscriptions,
    messages,
    search,
    schemas,
    lookup,
)


def routes(broker: Broker) -> list[Route]:
    """Return all rows, including that of the OpenAPI document."""
    found = [route for resource in RESOURCES for route in resource.routes(broker)]
    return [*found, openapi.route(found, asks_who=broker.registry.guard is not None)]
