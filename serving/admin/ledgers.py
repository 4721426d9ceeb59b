"""`/quire/v1/ledgers`: what was lost for good, and an operator's recovery of one ledger. Any broker answers."""

from __future__ import annotations

from aiohttp import web

from quire.serving.admin.requests import flag, natural
from quire.serving.broker import Broker

LEDGERS = "/quire/v1/ledgers"


def routes(broker: Broker) -> list[web.RouteDef]:
    losses = broker.admin.losses

    async def lost(_: web.Request) -> web.Response:
        return web.json_response(await losses.known())

    async def look(request: web.Request) -> web.Response:
        return web.json_response(await losses.look(_ledger(request)))

    async def recover(request: web.Request) -> web.Response:
        do = losses.give_up if flag(request, "accept_loss") else losses.recover
        return web.json_response(await do(_ledger(request)))

    return [
        web.get(f"{LEDGERS}/lost", lost),
        web.get(f"{LEDGERS}/{{ledger}}/loss", look),
        web.post(f"{LEDGERS}/{{ledger}}/recover", recover),
    ]


def _ledger(request: web.Request) -> int:
    return natural(request.match_info["ledger"], "the ledger in the path")
