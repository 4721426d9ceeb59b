"""`/quire/v1/bookies`, `repair`, `ledgers`, `archive` and `topics`: where messages lie, and what operators want of it.

Every broker answers: what is asked and wanted lies in the metadata store. Of the archive any broker answers for the
whole cluster; `?here=true` asks for what that broker does. A topic's owner has its segments and its raw blocks, for
Spark, in the format of `quire.spark_source.plan`; `explain` is for people: why each segment is still here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from aiohttp import web

from quire.runtime.errors import QuireError
from quire.runtime.limits import READ_BYTES_MAX
from quire.security.authorization import Action
from quire.serving.admin.route import TOPIC_NAME, Bytes, Route, flag, path, path_number, query_number
from quire.serving.broker import Broker
from quire.serving.model.ports import Position
from quire.serving.names import TopicName

BOOKIES: Final = "/quire/v1/bookies"
BOOKIE: Final = f"{BOOKIES}/{{bookie}}"
REPAIR: Final = "/quire/v1/repair"
LEDGERS: Final = "/quire/v1/ledgers"
ARCHIVE: Final = "/quire/v1/archive"
TOPIC: Final = "/quire/v1/topics/{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic}"


def routes(broker: Broker) -> Sequence[Route]:
    return (*_of_topics(broker), *_of_the_cluster(broker))


def _of_topics(broker: Broker) -> Sequence[Route]:
    async def blocks(ledger: int, entry: int, bytes_max: int, topic: TopicName) -> Bytes:
        loaded = await broker.registry.open_persistent(topic)
        found = await loaded.log.read(Position(ledger, entry), min(bytes_max, READ_BYTES_MAX))
        return web.Response(body=b"".join(found), content_type="application/octet-stream")

    span = query_number("ledger"), query_number("entry"), query_number("bytes", str(READ_BYTES_MAX))
    return (
        Route("GET", f"{TOPIC}/segments", broker.admin.statistics.segments, TOPIC_NAME, may=Action.CONSUME),
        Route("GET", f"{TOPIC}/blocks", blocks, *span, TOPIC_NAME, may=Action.CONSUME),
        Route("PUT", f"{TOPIC}/seal", broker.admin.topics.seal, TOPIC_NAME, may=Action.ADMINISTER),
        Route("GET", f"{TOPIC}/explain", broker.admin.statistics.explain, TOPIC_NAME, may=Action.LOOKUP),
    )


def _of_the_cluster(broker: Broker) -> Sequence[Route]:
    bookies, losses, archive = broker.admin.bookies, broker.admin.losses, broker.admin.archive
    bookie, ledger, here = path("bookie"), path_number("ledger"), flag("here")

    async def orphans(*, delete: bool) -> dict[str, Any]:
        found = await bookies.orphans()
        deleted, errors = 0, []
        for orphan in found if delete else ():
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
        return {"orphans": rows, "deleted": deleted, "errors": errors}

    async def recover(ledger_id: int, *, accept_loss: bool) -> dict[str, Any]:
        return await (losses.give_up if accept_loss else losses.recover)(ledger_id)

    return (
        Route("GET", BOOKIES, bookies.all, may=Action.SUPERUSER),
        Route("GET", BOOKIE, bookies.show, bookie, may=Action.SUPERUSER),
        Route("PUT", f"{BOOKIE}/decommission", bookies.decommission, bookie, may=Action.SUPERUSER),
        Route("PUT", f"{BOOKIE}/recover", bookies.recover, bookie, may=Action.SUPERUSER),
        Route("PUT", f"{BOOKIE}/keep", bookies.keep, bookie, may=Action.SUPERUSER),
        Route("GET", REPAIR, bookies.repair, may=Action.SUPERUSER),
        Route("POST", f"{REPAIR}/run", bookies.repair_all, may=Action.SUPERUSER),
        Route("POST", f"{LEDGERS}/orphans", orphans, flag("delete"), may=Action.SUPERUSER),
        Route("GET", f"{LEDGERS}/lost", losses.known, may=Action.SUPERUSER),
        Route("GET", f"{LEDGERS}/{{ledger}}/loss", losses.look, ledger, may=Action.SUPERUSER),
        Route(
            "POST",
            f"{LEDGERS}/{{ledger}}/recover",
            recover,
            ledger,
            flag("accept_loss"),
            may=Action.SUPERUSER,
        ),
        Route("POST", f"{ARCHIVE}/run", archive.run, flag("seal"), here, may=Action.SUPERUSER),
        Route("GET", f"{ARCHIVE}/status", archive.status, here, may=Action.SUPERUSER),
        Route("GET", f"{ARCHIVE}/progress", archive.progress, here, may=Action.SUPERUSER),
        Route("POST", f"{ARCHIVE}/verify", archive.verify, flag("delete_orphans"), may=Action.SUPERUSER),
        Route("POST", f"{ARCHIVE}/repair", archive.repair, here, may=Action.SUPERUSER),
    )
