"""`/quire/v1/overview` and `/quire/v1/whoami`: summary of the cluster, and the caller, for the console's first page.

The overview needs no scan of topics or segments, so it can be requested every few seconds. Each broker reports on
itself. For a broker that does not answer, the list contains its last load report, and the error. `members` has more
detailed reports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from aiohttp import web
from msgspec import Struct
from msgspec.structs import asdict

from quire import __version__
from quire.security.authorization import Action
from quire.serving.admin import connections, members
from quire.serving.admin.login import identity_of
from quire.serving.admin.route import REQUEST, Route, query_number
from quire.serving.broker import Broker
from quire.serving.model.rates import Rate
from quire.serving.operations.history import SAMPLES_MAX, STEP_S, Series, added
from quire.serving.ownership.peers import reader_of
from quire.serving.ownership.port import BrokerStats
from quire.tiering.offload import OffloadStatus

OVERVIEW: Final = "/quire/v1/overview"
HISTORY_MINUTES_MAX: Final = SAMPLES_MAX * STEP_S // 60


class BrokerNow(Struct, rename="camel"):
    """Report of one broker. Rates are per second."""

    http_url: str
    http_url_tls: str
    version: str
    msg_rate_in: float
    msg_throughput_in: float
    connections: int
    why_not_ready: list[str]
    warnings: list[str]


class BrokerSeen(BrokerStats):
    """A broker's last report, and `now` if it answered."""

    now: BrokerNow | None


class Overview(Struct, rename="camel"):
    cluster: str
    brokers: list[BrokerSeen]
    bookies: list[dict[str, Any]]
    repair: dict[str, Any]
    archive: OffloadStatus | None
    """Archiving on the broker that serves the request; None without an archive."""
    silent: list[str]


class Who(Struct, rename="camel"):
    role: str
    """Role of the caller; empty without authentication."""
    asks_who: bool
    is_superuser: bool
    cluster: str
    version: str


def routes(broker: Broker) -> Sequence[Route]:
    rate, clock = Rate(), broker.services.clock

    def now() -> BrokerNow:
        """Report on this broker only, for other brokers."""
        messages, bytes_in = rate.per_second(clock.monotonic(), *broker.registry.totals.incoming())
        return BrokerNow(
            broker.addresses.http_url,
            broker.addresses.http_url_tls,
            __version__,
            messages,
            bytes_in,
            len(broker.sessions.connections),
            list(broker.why_not_ready()),
            list(broker.warnings()),
        )

    async def overview() -> Overview:
        """Report on the whole cluster."""
        bookies, offloading = broker.admin.bookies, broker.offloading
        answers, every, repair = await asyncio.gather(
            broker.fan_out.ask_brokers("GET", f"{OVERVIEW}/here"), bookies.all(), bookies.repair()
        )
        said = [now(), *map(reader_of(BrokerNow), answers.said)]
        by_url = {url: one for one in said for url in (one.http_url, one.http_url_tls) if url}
        brokers = [
            BrokerSeen(**asdict(one), now=by_url.get(one.http_url) or by_url.get(one.http_url_tls))
            for one in broker.ownership.brokers()
        ]
        archive = None if offloading is None else offloading.offloader.status()
        return Overview(broker.services.settings.cluster, brokers, every, repair, archive, answers.silent)

    async def history(minutes: int) -> Series:
        """Return the rates of the whole cluster over the last minutes, as far as its brokers remember them."""
        path = f"{OVERVIEW}/history/here?minutes={minutes}"
        answers = await broker.fan_out.ask_brokers("GET", path)
        own = broker.admin.metrics.history.series(minutes)
        return added([own, *map(reader_of(Series), answers.said)], minutes)

    minutes = query_number("minutes", "60", least=1, most=HISTORY_MINUTES_MAX)

    def who(request: web.Request) -> Who:
        guard, identity = broker.registry.guard, identity_of(request)
        return Who(
            "" if identity is None else identity.original or identity.role,
            guard is not None,
            guard is None or identity is None or guard.authorization.is_superuser(identity),
            broker.services.settings.cluster,
            __version__,
        )

    return (
        Route("GET", f"{OVERVIEW}/here", now, may=Action.SUPERUSER),
        Route("GET", OVERVIEW, overview, may=Action.SUPERUSER),
        Route(
            "GET",
            f"{OVERVIEW}/history/here",
            broker.admin.metrics.history.series,
            minutes,
            may=Action.SUPERUSER,
        ),
        Route("GET", f"{OVERVIEW}/history", history, minutes, may=Action.SUPERUSER),
        *connections.routes(broker),
        *members.routes(broker),
        Route("GET", "/quire/v1/whoami", who, REQUEST, may=Action.OPEN),
    )
