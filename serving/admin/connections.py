"""`/quire/v1/connections`: clients' connections to all brokers, with their producers and consumers; closing one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from quire.runtime.errors import NotFound
from quire.security.authorization import Action
from quire.serving.admin.route import Route, query, query_number
from quire.serving.broker import Broker
from quire.serving.ownership.peers import reader_of
from quire.serving.ownership.port import BrokerStats
from quire.wire.topic_name import escaped

CONNECTIONS: Final = "/quire/v1/connections"
ROWS_MAX: Final = 500
TOPICS_MAX: Final = 20
CONNECTIONS_A_TURN: Final = 100


class ConnectionRow(Struct, rename="camel"):
    """Connection of a client. Rates are per second, over all its producers and consumers."""

    broker: str
    name: str
    """Name in the broker's log, such as `c17/10.0.0.5:41230`."""
    address: str
    client_version: str
    role: str
    """Role of the client; empty without authentication."""
    producers: int
    consumers: int
    topics: list[str]
    """Topics of its producers and consumers, at most `TOPICS_MAX`."""
    msg_rate_in: float = 0.0
    msg_rate_out: float = 0.0


class ConnectionPage(Struct, rename="camel"):
    total: int
    connections: list[ConnectionRow]
    silent: list[str] = []
    """Error texts of brokers that did not answer."""


def routes(broker: Broker) -> Sequence[Route]:
    async def here(contains: str, limit: int) -> ConnectionPage:
        """Return this broker's connections, the busiest first."""
        rows: list[ConnectionRow] = []
        at = next((one.broker for one in broker.ownership.brokers() if _is_own(broker, one)), "")
        now_s = broker.services.clock.monotonic()
        some = list(broker.sessions.connections)
        async for part in broker.services.slices.parts(some, CONNECTIONS_A_TURN):
            every = [_row(at, now_s, one) for one in part if one.peer.is_connected]
            rows += [row for row in every if contains in _text(row)]
        rows.sort(key=_idleness)
        return ConnectionPage(len(rows), rows[:limit])

    async def every(contains: str, limit: int) -> ConnectionPage:
        """Return the connections of all brokers, the busiest first."""
        path = f"{CONNECTIONS}/here?contains={escaped(contains)}&limit={limit}"
        answers = await broker.fan_out.ask_brokers("GET", path)
        pages = [await here(contains, limit), *map(reader_of(ConnectionPage), answers.said)]
        rows = sorted((row for page in pages for row in page.connections), key=_idleness)
        return ConnectionPage(sum(page.total for page in pages), rows[:limit], answers.silent)

    async def close(at: str, name: str) -> None:
        """Close a connection of a broker. Its client connects again, unless it is stopped or refused."""
        peers = broker.fan_out.peers
        found = next((one for one in broker.ownership.brokers() if at and one.broker == at), None)
        if at and found is None:
            raise NotFound(f"the cluster has no broker {at[:100]!r}; it may have left")
        if found is not None and not _is_own(broker, found):
            url = peers.choose(found.http_url, found.http_url_tls)
            await peers.ask_at("DELETE", url, f"{CONNECTIONS}?broker={escaped(at)}&name={escaped(name)}")
            return
        for session in broker.sessions.connections:
            if session.peer.name == name:
                session.close()
                return
        raise NotFound(f"broker {at} has no connection {name}; it may be closed already")

    which = query("contains", str, ""), query_number("limit", "100", least=1, most=ROWS_MAX)
    name = query("broker", str, ""), query("name", str, "")
    return (
        Route("GET", CONNECTIONS, every, *which, may=Action.SUPERUSER),
        Route("GET", f"{CONNECTIONS}/here", here, *which, may=Action.SUPERUSER),
        Route("DELETE", CONNECTIONS, close, *name, may=Action.SUPERUSER),
    )


def _is_own(broker: Broker, one: BrokerStats) -> bool:
    own = broker.addresses
    return (one.http_url, one.http_url_tls) == (own.http_url, own.http_url_tls)


def _idleness(row: ConnectionRow) -> float:
    return -row.msg_rate_in - row.msg_rate_out


def _text(row: ConnectionRow) -> str:
    return "\n".join((row.name, row.client_version, row.role, *row.topics))


def _row(at: str, now_s: float, session: Any) -> ConnectionRow:
    peer, identity = session.peer, session.peer.identity
    producers, consumers = session.producers.values(), session.consumers.values()
    topics = dict.fromkeys(one.topic_name for one in (*producers, *consumers))
    return ConnectionRow(
        at,
        peer.name,
        peer.address,
        peer.client_version,
        "" if identity is None else identity.original or identity.role,
        len(producers),
        len(consumers),
        list(topics)[:TOPICS_MAX],
        sum(one.sent.per_second(now_s)[0] for one in producers),
        sum(one.attached.consumer.meter.stats(now_s).msg_rate_out for one in consumers if one.attached),
    )
