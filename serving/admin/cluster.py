"""`/admin/v2/clusters`, `/admin/v2/brokers`: who is there."""

from __future__ import annotations

from importlib.metadata import version

from aiohttp import web

from quire.runtime.errors import NotFound
from quire.serving.broker import Broker

V2 = "/admin/v2"


def routes(broker: Broker) -> list[web.RouteDef]:
    async def clusters(_: web.Request) -> web.Response:
        return web.json_response([broker.services.settings.cluster])

    def check_cluster(request: web.Request) -> None:
        if request.match_info["cluster"] != broker.services.settings.cluster:
            raise NotFound(
                f"there is no cluster {request.match_info['cluster']}, only {broker.services.settings.cluster}"
            )

    async def cluster(request: web.Request) -> web.Response:
        check_cluster(request)
        return web.json_response(
            {"serviceUrl": broker.addresses.http_url, "brokerServiceUrl": broker.service_url}
        )

    async def brokers(_: web.Request) -> web.Response:
        return web.json_response([one["httpUrl"].partition("://")[2] for one in broker.ownership.brokers()])

    async def brokers_of_cluster(request: web.Request) -> web.Response:
        check_cluster(request)
        return await brokers(request)

    async def version_of_broker(_: web.Request) -> web.Response:
        return web.Response(text=version("quire"))

    async def health(_: web.Request) -> web.Response:
        reasons = broker.why_not_ready()
        return web.Response(text="ok") if not reasons else web.Response(status=503, text="; ".join(reasons))

    return [
        web.get(f"{V2}/clusters", clusters),
        web.get(f"{V2}/clusters/{{cluster}}", cluster),
        web.get(f"{V2}/brokers", brokers),
        web.get(f"{V2}/brokers/health", health),
        web.get(f"{V2}/brokers/version", version_of_broker),
        web.get(f"{V2}/brokers/{{cluster}}", brokers_of_cluster),
    ]
