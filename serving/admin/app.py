"""aiohttp application of the REST interface, built from the rows (`route`) of all resources."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from quire.runtime import probes
from quire.serving.admin.following import PEERS
from quire.serving.admin.login import GUARD, logged_in, name_request, sees_all
from quire.serving.admin.refusals import LIMITS_MET, REQUEST_BYTES_MAX, errors_as_json
from quire.serving.admin.resources import routes
from quire.serving.broker import Broker
from quire.serving.console import pages

SCRAPES: Final = web.AppKey("SCRAPES", probes.Scrapes)
"""Source of `/metrics`, for exporters."""


def make_app(broker: Broker, more_metrics: probes.Sources = ()) -> web.Application:
    """Create the REST interface of a broker. `more_metrics` are the metrics of other parts of the process."""
    middlewares = [errors_as_json] if broker.registry.guard is None else [errors_as_json, logged_in]
    application = web.Application(middlewares=middlewares, client_max_size=REQUEST_BYTES_MAX)
    application[PEERS] = broker.fan_out.peers
    application[LIMITS_MET] = broker.services.limits_met
    if broker.registry.guard is not None:
        application[GUARD] = broker.registry.guard
        application.on_response_prepare.append(name_request)
    application.add_routes(routes(broker))
    scrapes = probes.Scrapes(
        [broker.metrics, *more_metrics], broker.admin.metrics.collect, sees_all, broker.services.slices
    )
    application[SCRAPES] = scrapes
    broker.admin.member.metrics = scrapes.text
    application.add_routes(probes.routes(broker, scrapes))
    application.add_routes(pages.routes())
    return application
