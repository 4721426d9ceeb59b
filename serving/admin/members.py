"""`/quire/v1/doctor` and `/quire/v1/support`: reports of each process of the cluster, from any broker.

A broker requests the reports of the other brokers, and of the bookies that have an HTTP port, so that one address
suffices for all machines. With `?here=true`, as brokers send it to each other, it reports on its own process only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final

from msgspec import Struct

from quire.runtime.errors import NotFound, QuireError
from quire.runtime.member import DOCTOR, SUPPORT
from quire.security.authorization import Action
from quire.serving.admin.route import Route, flag
from quire.serving.broker import Broker

ASK_S: Final = 10.0
"""Time limit, in seconds, for a report; longer than the checks of a process may take."""


class Members(Struct, rename="camel"):
    members: list[dict[str, Any]]
    """Reports of the processes: `kind`, `name`, `version`, and the requested part."""
    silent: list[str]
    """Error texts of processes that did not answer."""
    unasked: list[str]
    """Processes that cannot be asked, each with the reason, which is not a fault."""


def routes(broker: Broker) -> Sequence[Route]:
    member = broker.admin.member
    return (
        _route(DOCTOR, broker, member.doctor, "Findings of each process, with advice."),
        _route(SUPPORT, broker, member.support, "Settings, stacks, log and metrics of each process."),
    )


def _route(path: str, broker: Broker, own: Callable[[], Awaitable[dict[str, Any]]], says: str) -> Route:
    async def ask(*, here: bool) -> Members:
        if here:
            return Members([await own()], [], [])
        unasked: list[str] = []
        others = [*_other_brokers(broker), *_bookies(broker, unasked)]
        mine, *said = await asyncio.gather(own(), *(_ask(broker, name, url + path) for name, url in others))
        found = Members([mine], [], unasked)
        for (name, _), answer in zip(others, said, strict=True):
            if isinstance(answer, NotFound):
                unasked.append(f"{name}: its version does not support this request")
            elif isinstance(answer, QuireError):
                found.silent.append(f"{name} did not report: {answer}")
            else:
                found.members += answer.get("members", [answer])
        return found

    ask.__doc__ = says
    return Route("GET", path, ask, flag("here"), may=Action.SUPERUSER)


def _other_brokers(broker: Broker) -> Iterator[tuple[str, str]]:
    """Yield the names of the other brokers and their REST URLs."""
    addresses = broker.addresses
    for one in broker.ownership.brokers():
        urls = one.http_url, one.http_url_tls
        if urls != (addresses.http_url, addresses.http_url_tls):
            yield f"broker {one.broker}", broker.fan_out.peers.choose(*urls)


def _bookies(broker: Broker, unasked: list[str]) -> Iterator[tuple[str, str]]:
    for record in broker.services.ledgers.available():
        if record.http_url:
            yield f"bookie {record.address}", record.http_url
        elif record.address:  # a bookie without an address is part of this process
            unasked.append(f"bookie {record.address}: it has no HTTP port (--http)")


async def _ask(broker: Broker, name: str, url: str) -> dict[str, Any] | QuireError:
    try:
        said: dict[str, Any] = await broker.fan_out.peers.ask_at("GET", url, "?here=true", timeout_s=ASK_S)
    except QuireError as error:
        return error
    return said
