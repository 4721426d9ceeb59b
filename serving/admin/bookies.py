"""`/quire/v1/bookies` and `/quire/v1/repair`: the cluster's storage nodes, what is wanted of them, and repair.

Every broker answers: what is asked and wanted lies in the metadata store.
"""

from __future__ import annotations

from aiohttp import web

from quire.runtime.errors import QuireError
from quire.serving.admin.requests import flag, no_content
from quire.serving.broker import Broker

BOOKIES = "/quire/v1/bookies"
REPAIR = "/quire/v1/repair"
ORPHANS = "/quire/v1/ledgers/orphans"


def routes(broker: Broker) -> list[web.RouteDef]:
    bookies = broker.admin.bookies

    async def list_all(_: web.Request) -> web.Response:
        return web.json_response(await bookies.all())

    async def show(request: web.Request) -> web.Response:
        return web.json_response(await bookies.show(request.match_info["bookie"]))

    async def decommission(request: web.Request) -> web.Response:
        return web.json_response(await bookies.decommission(request.match_info["bookie"]))

    async def recover(request: web.Request) -> web.Response:
        return web.json_response(await bookies.recover(request.match_info["bookie"]))

    async def keep(request: web.Request) -> web.Response:
        return web.json_response(await bookies.keep(request.match_info["bookie"]))

    async def repair(_: web.Request) -> web.Response:
        return web.json_response(await bookies.repair())

    async def repair_all(_: web.Request) -> web.Response:
        await bookies.repair_all()
        return no_content()

    async def orphans(request: web.Request) -> web.Response:
        found = await bookies.orphans()
        deleted, errors = 0, []
        for orphan in found if flag(request, "delete") else ():
            try:
                await bookies.delete_ledger(orphan.ledger_id)
                deleted += 1
            except QuireError as error:
                errors.append(str(error))
        rows = [
            {
                "ledger": each.ledger_id,
                "purpose": each.purpose,
                "bytes": each.bytes,
                "createdMs": each.created_ms,
            }
            for each in found
        ]
        return web.json_response({"orphans": rows, "deleted": deleted, "errors": errors})

    return [
        web.get(BOOKIES, list_all),
        web.get(f"{BOOKIES}/{{bookie}}", show),
        web.put(f"{BOOKIES}/{{bookie}}/decommission", decommission),
        web.put(f"{BOOKIES}/{{bookie}}/recover", recover),
        web.put(f"{BOOKIES}/{{bookie}}/keep", keep),
        web.get(REPAIR, repair),
        web.post(f"{REPAIR}/run", repair_all),
        web.post(ORPHANS, orphans),
    ]
