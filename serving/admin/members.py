"""`/quire/v1/doctor` and `/quire/v1/support`: what each process of the cluster says of itself, asked at any broker.

A broker asks the others, and the bookies that have an HTTP port; so who reaches one address sees every machine.
`?here=true` asks for this process alone, which is how brokers ask one another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from msgspec import Struct, to_builtins

from quire.runtime.errors import QuireError
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
    without_http: list[str]
    """Addresses of bookies that have no port to be asked at."""


def routes(broker: Broker) -> Sequence[Route]:
    return (
        _route(
            DOCTOR, broker, broker.admin.member.doctor, "What is wrong with each process, and what to do."
        ),
        _route(
            SUPPORT, broker, broker.admin.member.support, "Settings, stacks, log and metrics of each process."
        ),
    )


def _route(path: str, broker: Broker, own: Callable[[], Awaitable[dict[str, Any]]], says: str) -> Route:
    async def ask(*, here: bool) -> Members:
        if here:
            return Members([await own()], [], [])
        brokers, bookies, mine = await asyncio.gather(
            broker.fan_out.others("GET", f"{path}?here=true", timeout_s=ASK_S),
            _ask_bookies(broker, path),
            own(),
        )
        of_brokers = [member for said in brokers.said for member in said["members"]]
        return Members(
            [mine, *of_brokers, *bookies.members], brokers.silent + bookies.silent, bookies.without_http
        )

    ask.__doc__ = says
    return Route("GET", path, ask, flag("here"), answer=to_builtins, shows=Members, may=Action.SUPERUSER)


async def _ask_bookies(broker: Broker, path: str) -> Members:
    found = Members([], [], [])
    asked = []
    for record in broker.services.ledgers.available():
        if record.http_url:
            asked.append(_ask_bookie(broker, record.address, record.http_url + path))
        elif record.address:  # one without is of this very process
            found.without_http.append(record.address)
    for said in await asyncio.gather(*asked):
        if isinstance(said, str):
            found.silent.append(said)
        else:
            found.members.append(said)
    return found


async def _ask_bookie(broker: Broker, address: str, url: str) -> dict[str, Any] | str:
    try:
        said: dict[str, Any] = await broker.fan_out.peers.ask_at("GET", url, "", timeout_s=ASK_S)
    except QuireError as error:
        return f"the bookie {address} does not say how it is: {error}"
    return said
