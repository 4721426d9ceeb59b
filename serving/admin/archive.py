"""`/quire/v1/archive`: the archive's work.

Any broker answers for the whole cluster; `?here=true` asks for what that broker does.
"""

from __future__ import annotations

from aiohttp import web

from quire.serving.admin.requests import flag
from quire.serving.admin.target import AdminTarget

ARCHIVE = "/quire/v1/archive"


def routes(target: AdminTarget) -> list[web.RouteDef]:
    async def run(request: web.Request) -> web.Response:
        return web.json_response(
            await target.archive_run(seal=flag(request, "seal"), here=flag(request, "here"))
        )

    async def status(request: web.Request) -> web.Response:
        return web.json_response(await target.archive_status(here=flag(request, "here")))

    async def verify(request: web.Request) -> web.Response:
        return web.json_response(await target.archive_verify(delete_orphans=flag(request, "delete_orphans")))

    async def repair(request: web.Request) -> web.Response:
        return web.json_response(await target.archive_repair(here=flag(request, "here")))

    return [
        web.post(f"{ARCHIVE}/run", run),
        web.get(f"{ARCHIVE}/status", status),
        web.post(f"{ARCHIVE}/verify", verify),
        web.post(f"{ARCHIVE}/repair", repair),
    ]
