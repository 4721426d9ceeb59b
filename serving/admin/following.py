"""A request for a topic of another broker, carried out there instead of redirected.

A page of a browser may ask the origin that it came from alone, so it cannot follow a redirection to another broker.
With the header `X-Quire-Follow: true` a broker asks the owner itself, as brokers ask one another for partitions
(`cluster/fan_out`): whether the caller may was asked before, and the change is written down where it was asked for.
Answers that are no JSON are redirected all the same.
"""

from __future__ import annotations

from typing import Final

from aiohttp import web

from quire.serving.admin.requests import json_of
from quire.serving.cluster.peers import Peers
from quire.serving.cluster.port import NotOwner

HEADER: Final = "X-Quire-Follow"
PEERS: Final = web.AppKey("peers", Peers)


async def followed(request: web.Request, elsewhere: NotOwner) -> web.StreamResponse:
    """The owner's answer, if that was asked for. Raises `elsewhere`, and what the owner refuses."""
    if request.headers.get(HEADER, "").lower() != "true":
        raise elsewhere
    body = await json_of(request)
    try:
        said = await request.app[PEERS].ask(request.method, elsewhere, request.raw_path, body)
    except ValueError:
        raise elsewhere from None
    return web.Response(status=204) if said is None else web.json_response(said)
