"""`/admin/v2/bookies`: the cluster's bookies in Pulsar's form; `storage` has Quire's own requests about them.

A bookie's rack is a setting of the bookie, so requests to change it are rejected (`absent`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypedDict

from quire.runtime.errors import NotFound
from quire.security.authorization import Action
from quire.serving.admin.route import Route, path
from quire.serving.broker import Broker

BOOKIES: Final = "/admin/v2/bookies"
RACKS: Final = f"{BOOKIES}/racks-info"
GROUP: Final = "default"
"""Name of the only group of bookies in Pulsar's JSON of racks."""


class RawBookieInfo(TypedDict):
    bookieId: str


class BookiesClusterInfo(TypedDict):
    bookies: list[RawBookieInfo]


class BookieInfo(TypedDict):
    rack: str
    hostname: str


def routes(broker: Broker) -> Sequence[Route]:
    may = Action.SUPERUSER

    async def listed() -> BookiesClusterInfo:
        every = await broker.admin.bookies.all()
        return {"bookies": [{"bookieId": _id(one)} for one in every]}

    async def racks() -> dict[str, dict[str, BookieInfo]]:
        """Return the bookies that have a rack, by group and address."""
        found = {_id(one): _info(one) for one in await broker.admin.bookies.all() if one["rack"]}
        return {GROUP: found} if found else {}

    async def rack(bookie: str) -> BookieInfo:
        """Return the rack of a bookie: its address, its UUID or an unambiguous prefix of it."""
        found = await broker.admin.bookies.show(bookie)
        if not found["rack"]:
            raise NotFound(f"bookie {bookie} has no rack; its setting rack names one")
        return _info(found)

    return (
        Route("GET", f"{BOOKIES}/all", listed, may=may),
        Route("GET", RACKS, racks, may=may),
        Route("GET", f"{RACKS}/{{bookie}}", rack, path("bookie"), may=may),
    )


def _id(bookie: dict[str, Any]) -> str:
    """Return the bookie's id in Pulsar's sense: its address, or its UUID if it has none."""
    return str(bookie["address"] or bookie["uuid"])


def _info(bookie: dict[str, Any]) -> BookieInfo:
    return {"rack": bookie["rack"], "hostname": bookie["address"].rpartition(":")[0]}
