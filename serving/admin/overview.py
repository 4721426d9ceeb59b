"""`/quire/v1/overview` and `/quire/v1/whoami`: the cluster at a glance, and who asks. The first page of the console.

What is in the overview costs no walk over topics or segments, so it can be asked every few seconds. Each broker tells
of itself; one that does not answer is listed by what it reported last, and why it is silent is said beside.
What each process says of itself at length is in `members`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from aiohttp import web
from msgspec import Struct, to_builtins

from quire import __version__
from quire.security.authorization import Action
from quire.serving.admin import members
from quire.serving.admin.login import identity_of
from quire.serving.admin.route import REQUEST, Route
from quire.serving.broker import Broker
from quire.serving.model.rates import Rate

OVERVIEW: Final = "/quire/v1/overview"


class BrokerNow(Struct, rename="camel"):
    """What a broker tells of itself. Rates are per second."""

    http_url: str
    http_url_tls: str
    version: str
    msg_rate_in: float
    msg_throughput_in: float
    connections: int
    why_not_ready: list[str]
    warnings: list[str]


class Overview(Struct, rename="camel"):
    cluster: str
    brokers: list[dict[str, Any]]
    """As `/quire/v1/brokers`; of those that answered with a field `now`."""
    bookies: list[dict[str, Any]]
    repair: dict[str, Any]
    archive: dict[str, Any] | None
    """What the broker that was asked does for it; None where there is no archive."""
    silent: list[str]


class Who(Struct, rename="camel"):
    role: str
    """Empty where nobody logs in."""
    asks_who: bool
    is_superuser: bool
    cluster: str
    version: str


def routes(broker: Broker) -> Sequence[Route]:
    rate, clock = Rate(), broker.services.clock

    def now() -> BrokerNow:
        """This broker alone, as it is asked by others."""
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
        """Of the whole cluster."""
        bookies, offloading = broker.admin.bookies, broker.offloading
        answers, every, repair = await asyncio.gather(
            broker.fan_out.others("GET", f"{OVERVIEW}/here"), bookies.all(), bookies.repair()
        )
        said = [to_builtins(now()), *answers.said]
        by_url = {url: one for one in said for url in (one["httpUrl"], one["httpUrlTls"]) if url}
        brokers = [
            {**row, "now": by_url.get(row["httpUrl"]) or by_url.get(row["httpUrlTls"])}
            for row in broker.ownership.brokers()
        ]
        archive = None if offloading is None else offloading.status()
        return Overview(broker.services.settings.cluster, brokers, every, repair, archive, answers.silent)

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
        Route("GET", f"{OVERVIEW}/here", now, answer=to_builtins, shows=BrokerNow, may=Action.SUPERUSER),
        Route("GET", OVERVIEW, overview, answer=to_builtins, shows=Overview, may=Action.SUPERUSER),
        *members.routes(broker),
        Route("GET", "/quire/v1/whoami", who, REQUEST, answer=to_builtins, shows=Who, may=Action.OPEN),
    )
