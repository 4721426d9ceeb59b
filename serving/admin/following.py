"""Forwarding of a request for another broker's topic, instead of a redirection.

A page in a browser may send requests only to its own origin, so it cannot follow a redirection to another broker. With
the header `X-Quire-Follow: true` a broker sends the request to the owner itself, as brokers do for partitions
(`operations/fan_out`). This broker has already authorized the caller, and audits the change. Requests whose response is
not JSON are redirected nevertheless.
"""

from __future__ import annotations

from typing import Final

from aiohttp import web

from quire.serving.admin.requests import json_of
from quire.serving.ownership.peers import Peers
from quire.serving.ownership.port import NotOwner

HEADER: Final = "X-Quire-Follow"
PEERS: Final = web.AppKey("peers", Peers)


async def followed(request: web.Request, elsewhere: NotOwner) -> web.StreamResponse:
    """Return the owner's response, if the header requests that. Raises `elsewhere`, and the owner's error."""
    if request.headers.get(HEADER, "").lower() != "true":
        raise elsewhere
    body = await json_of(request)
    try:
        said = await request.app[PEERS].ask(request.method, elsewhere, request.raw_path, body)
    except ValueError:
        raise elsewhere from None
    return web.Response(status=204) if said is None else web.json_response(said)
