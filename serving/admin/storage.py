"""`/quire/v1/bookies`, `repair`, `ledgers`, `archive` and `topics`: storage, and operators' requests about it.

Every broker answers, because the state and the requests are in the metadata store. For the archive, any broker answers
for the whole cluster; with `?here=true`, only for its own work. A topic's owner returns its segments and raw blocks,
for Spark, in the format of `quire.spark_source.plan`; `explain` returns the reasons why each segment is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from aiohttp import web

from quire.runtime.errors import NotFound, QuireError, WrongCluster
from quire.runtime.limits import BLOCK_BYTES_HARD_MAX, READ_BYTES_MAX
from quire.security.authorization import Action
from quire.serving.admin import pulsar_bookies
from quire.serving.admin.route import TOPIC_NAME, Bytes, Route, flag, path, path_number, query_number
from quire.serving.broker import Broker
from quire.serving.model.ports import Position
from quire.serving.names import TopicName

BOOKIES: Final = "/quire/v1/bookies"
BOOKIE: Final = f"{BOOKIES}/{{bookie}}"
REPAIR: Final = "/quire/v1/repair"
LEDGERS: Final = "/quire/v1/ledgers"
ARCHIVE: Final = "/quire/v1/archive"
BLOCKS_BYTES_MAX: Final = max(READ_BYTES_MAX, BLOCK_BYTES_HARD_MAX)
TOPIC: Final = "/quire/v1/topics/{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic}"


def routes(broker: Broker) -> Sequence[Route]:
    return (*_of_topics(broker), *_of_the_cluster(broker), *pulsar_bookies.routes(broker))


def _of_topics(broker: Broker) -> Sequence[Route]:
    async def blocks(ledger: int, entry: int, bytes_max: int, topic: TopicName) -> Bytes:
        loaded = await broker.registry.open_persistent(topic)
        try:
            found = await loaded.log.read(Position(ledger, entry), min(bytes_max, READ_BYTES_MAX))
        except NotFound:
            raise NotFound(
                f"cannot read ledger {ledger} of {topic}: it was trimmed, or it is only in an archive that this "
                "broker does not have"
            ) from None
        return web.Response(body=b"".join(found), content_type="application/octet-stream")

    async def growth(topic: TopicName) -> dict[str, int]:
        """Return the current number of partitions, and the number before the last growth (0 if there was none)."""
        record = await broker.fan_out.record(topic)
        return {
            "partitions": record.partitions,
            "grewFrom": 0 if record.growth is None else record.growth.first,
        }

    span = query_number("ledger"), query_number("entry"), query_number("bytes", str(READ_BYTES_MAX))
    times = query_number("start_ms", "0", keyword="start_ms"), query_number("end_ms", "0", keyword="end_ms")
    return (
        Route(
            "GET",
            f"{TOPIC}/segments",
            broker.admin.statistics.segments,
            *times,
            TOPIC_NAME,
            may=Action.CONSUME,
        ),
        Route(
            "GET", f"{TOPIC}/blocks", blocks, *span, TOPIC_NAME, may=Action.CONSUME, holds=BLOCKS_BYTES_MAX
        ),
        Route("GET", f"{TOPIC}/growth", growth, TOPIC_NAME, may=Action.LOOKUP),
        Route("PUT", f"{TOPIC}/seal", broker.admin.topics.seal, TOPIC_NAME, may=Action.ADMINISTER),
        Route("GET", f"{TOPIC}/explain", broker.admin.statistics.explain, TOPIC_NAME, may=Action.LOOKUP),
    )


def _of_the_cluster(broker: Broker) -> Sequence[Route]:
    bookies, losses, archive = broker.admin.bookies, broker.admin.losses, broker.admin.archive
    bookie, ledger, here = path("bookie"), path_number("ledger"), flag("here")

    async def orphans(*, delete: bool) -> dict[str, Any]:
        found = await bookies.orphans()
        deleted, errors, unproven = 0, list[str](), ""
        try:
            await bookies.confirm_orphans(found)
        except WrongCluster as error:
            if delete:
                raise
            unproven = str(error)
        for orphan in found if delete else ():
            try:
                await bookies.delete_orphan(orphan)
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
        return {"orphans": rows, "deleted": deleted, "errors": errors, "unproven": unproven}

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
