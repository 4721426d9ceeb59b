"""`/quire/v1/topics/…`: a topic's segments and its raw blocks, for Spark, in the format of `quire.spark_source.plan`.

`explain` is for people: why each segment is still here.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from quire.runtime.limits import READ_BYTES_MAX
from quire.security.authorization import Action
from quire.serving.admin.route import TOPIC_NAME, Route, query_number
from quire.serving.broker import Broker
from quire.serving.model.ports import Position
from quire.serving.names import TopicName

TOPIC = "/quire/v1/topics/{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic}"


def routes(broker: Broker) -> Sequence[Route]:
    async def blocks(ledger: int, entry: int, bytes_max: int, topic: TopicName) -> web.Response:
        loaded = await broker.registry.open_persistent(topic)
        found = await loaded.log.read(Position(ledger, entry), min(bytes_max, READ_BYTES_MAX))
        return web.Response(body=b"".join(found), content_type="application/octet-stream")

    span = query_number("ledger"), query_number("entry"), query_number("bytes", str(READ_BYTES_MAX))
    return (
        Route("GET", f"{TOPIC}/segments", broker.admin.statistics.segments, TOPIC_NAME, may=Action.CONSUME),
        Route("GET", f"{TOPIC}/blocks", blocks, *span, TOPIC_NAME, may=Action.CONSUME),
        Route("GET", f"{TOPIC}/explain", broker.admin.statistics.explain, TOPIC_NAME, may=Action.LOOKUP),
    )
