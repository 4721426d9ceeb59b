"""`/quire/v1/topics/…`: a topic's segments and its raw blocks, for Spark, in the format of `quire.spark_source.plan`.

`explain` is for people: why each segment is still here.
"""

from __future__ import annotations

from aiohttp import web

from quire.runtime.limits import READ_BYTES_MAX
from quire.serving.admin.requests import natural, topic_of
from quire.serving.broker import Broker
from quire.serving.model.ports import Position

TOPIC = "/quire/v1/topics/{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic}"


def routes(broker: Broker) -> list[web.RouteDef]:
    async def segments(request: web.Request) -> web.Response:
        return web.json_response(await broker.admin.statistics.segments(topic_of(request)))

    async def blocks(request: web.Request) -> web.Response:
        position = Position(_number(request, "ledger"), _number(request, "entry"))
        bytes_max = min(_number(request, "bytes", READ_BYTES_MAX), READ_BYTES_MAX)
        topic = await broker.registry.open_persistent(topic_of(request))
        found = await topic.read(position, bytes_max)
        return web.Response(body=b"".join(found), content_type="application/octet-stream")

    async def explain(request: web.Request) -> web.Response:
        return web.json_response(await broker.admin.statistics.explain(topic_of(request)))

    return [
        web.get(f"{TOPIC}/segments", segments),
        web.get(f"{TOPIC}/blocks", blocks),
        web.get(f"{TOPIC}/explain", explain),
    ]


def _number(request: web.Request, name: str, default: int | None = None) -> int:
    text = request.query.get(name, "" if default is None else str(default))
    return natural(text, f"{name} in the query")
