"""`/quire/v1/archive`: the archive's work.

Any broker answers for the whole cluster; `?here=true` asks for what that broker does.
"""

from __future__ import annotations

from aiohttp import web

from quire.serving.admin.requests import flag
from quire.serving.broker import Broker

ARCHIVE = "/quire/v1/archive"


def routes(broker: Broker) -> list[web.RouteDef]:
    async def run(request: web.Request) -> web.Response:
        return web.json_response(
            await broker.admin.archive.run(seal=flag(request, "seal"), here=flag(request, "here"))
        )

    async def status(request: web.Request) -> web.Response:
        return web.json_response(await broker.admin.archive.status(here=flag(request, "here")))

    async def verify(request: web.Request) -> web.Response:
        return web.json_response(
            await broker.admin.archive.verify(delete_orphans=flag(request, "delete_orphans"))
        )

    async def repair(request: web.Request) -> web.Response:
        return web.json_response(await broker.admin.archive.repair(here=flag(request, "here")))

    return [
        web.post(f"{ARCHIVE}/run", run),
        web.get(f"{ARCHIVE}/status", status),
        web.post(f"{ARCHIVE}/verify", verify),
        web.post(f"{ARCHIVE}/repair", repair),
    ]
