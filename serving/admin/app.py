"""Joins the resources, which are rows (`route`), into one aiohttp application; `refusals` has the errors."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

from aiohttp import web

from quire.runtime import probes
from quire.serving.admin import (
    absent,
    brokers,
    lookup,
    messages,
    namespaces,
    openapi,
    permissions,
    policies,
    schemas,
    storage,
    subscriptions,
    tenants,
    topics,
)
from quire.serving.admin.login import GUARD, logged_in, name_request
from quire.serving.admin.refusals import LIMITS_MET, REQUEST_BYTES_MAX, errors_as_json
from quire.serving.admin.route import Route
from quire.serving.broker import Broker

RESOURCES = (
    absent,
    brokers,
    storage,
    tenants,
    namespaces,
    permissions,
    policies,
    topics,
    subscriptions,
    messages,
    schemas,
    lookup,
)


def routes(broker: Broker) -> list[Route]:
    """Every row, in the order in which a request finds its own."""
    found = [route for resource in RESOURCES for route in resource.routes(broker)]
    return [*found, openapi.route(found, version("quire"), asks_who=broker.registry.guard is not None)]


def make_app(broker: Broker, more_metrics: Sequence[probes.MetricSource] = ()) -> web.Application:
    """The REST interface of one broker. `more_metrics` are those of its process's other parts."""
    middlewares = [errors_as_json] if broker.registry.guard is None else [errors_as_json, logged_in]
    application = web.Application(middlewares=middlewares, client_max_size=REQUEST_BYTES_MAX)
    application[LIMITS_MET] = broker.services.limits_met
    if broker.registry.guard is not None:
        application[GUARD] = broker.registry.guard
        application.on_response_prepare.append(name_request)
    application.add_routes(routes(broker))
    application.add_routes(probes.routes(broker, more_metrics))
    return application
