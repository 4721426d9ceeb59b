"""`/quire/v1/doctor` and `/quire/v1/support`: what each process of the cluster says of itself, asked at any broker.

A broker asks the others, and the bookies that have an HTTP port; so who reaches one address sees every machine.
`?here=true` asks for this process alone, which is how brokers ask one another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final

from msgspec import Struct, to_builtins

from quire.runtime.errors import NotFound, QuireError
from quire.runtime.member import DOCTOR, SUPPORT
from quire.security.authorization import Action
from quire.serving.admin.route import Route, flag
from quire.serving.broker import Broker

ASK_S: Final = 10.0
"""Longer than the checks of a process may take."""


class Members(Struct, rename="camel"):
    members: list[dict[str, Any]]
    """What each says of itself: `kind`, `name`, `version`, and what was asked for."""
    silent: list[str]
    """Why others say nothing."""
    unasked: list[str]
    """Who cannot be asked, and why that is no fault."""


def routes(broker: Broker) -> Sequence[Route]:
    member = broker.admin.member
    return (
        _route(DOCTOR, broker, member.doctor, "What is wrong with each process, and what to do."),
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
                unasked.append(f"{name}: it is of a version that says nothing of itself")
            elif isinstance(answer, QuireError):
                found.silent.append(f"{name} does not say how it is: {answer}")
            else:
                found.members += answer.get("members", [answer])
        return found

    ask.__doc__ = says
    return Route("GET", path, ask, flag("here"), answer=to_builtins, shows=Members, may=Action.SUPERUSER)


def _other_brokers(broker: Broker) -> Iterator[tuple[str, str]]:
    """What each is called, and where it is asked."""
    addresses = broker.addresses
    for row in broker.ownership.brokers():
        urls = row["httpUrl"], row["httpUrlTls"]
        if urls != (addresses.http_url, addresses.http_url_tls):
            yield f"broker {row['broker']}", broker.fan_out.peers.choose(*urls)


def _bookies(broker: Broker, unasked: list[str]) -> Iterator[tuple[str, str]]:
    for record in broker.services.ledgers.available():
        if record.http_url:
            yield f"bookie {record.address}", record.http_url
        elif record.address:  # one without is of this very process
            unasked.append(f"bookie {record.address}: it has no HTTP port (--http)")


async def _ask(broker: Broker, name: str, url: str) -> dict[str, Any] | QuireError:
    try:
        said: dict[str, Any] = await broker.fan_out.peers.ask_at("GET", url, "?here=true", timeout_s=ASK_S)
    except QuireError as error:
        return error
    return said
