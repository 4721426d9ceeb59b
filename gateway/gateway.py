"""Process-wide parts of a gateway: the list of brokers, clients' connections, the REST interface."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final

from quire.gateway.brokers import Brokers
from quire.gateway.connection import Connection
from quire.gateway.http import make_app
from quire.gateway.login import Proxy, proxy_of
from quire.metadata.store import MetadataStore
from quire.runtime.errors import TooMany
from quire.runtime.http_server import HttpServer
from quire.runtime.member import Member
from quire.runtime.metrics import MetricSource, Values
from quire.runtime.tasks import Tasks
from quire.security.authentication import LOOK_EACH_S
from quire.security.configuration import COUNTED, Configuration
from quire.security.connections import Connections, too_slow
from quire.security.listener import TlsListener
from quire.security.security import Security
from quire.security.tls import FollowedContext

BACKLOG = 1024
OF_CONNECTIONS: Final = tuple(limit for limit in COUNTED if limit.startswith(("connections", "requests")))

KEEP_ALIVE_S = 30.0
"""Seconds without activity after which a client is pinged; after the same time again it is disconnected."""

GONE_S = 3.0
"""Seconds after which the relays to an unregistered broker are closed, if the broker has not closed them itself."""

_Relay = tuple[asyncio.Transport, asyncio.Transport]


class Gateway:
    """A running gateway between `start` and `stop`. Implements `connection.Host`."""

    def __init__(
        self,
        store: MetadataStore,
        rng: Random,
        connections_max: int,
        more_metrics: MetricSource = dict,
        tls: FollowedContext | None = None,
        security: Security | None = None,
    ) -> None:
        """Create a gateway.

        `tls` is for connections to brokers that support it; `security` may require authentication.
        """
        self.proxy = proxy_of(security)
        self.brokers = Brokers(store, rng, self._broker_gone, tls)
        self.tasks = Tasks("gateway")
        self.member = Member("gateway", "")
        """Status of this process for `doctor` and support bundles; the code that starts the process adds to it."""
        self._more_metrics = more_metrics
        configuration = Configuration() if security is None else security.configuration
        self.requests_per_s = configuration.limits.requests_per_s
        self.connections: Connections[Connection] = Connections(
            connections_max, configuration.limits, configuration.authorization.superusers
        )
        self._limits_met = Counter(dict.fromkeys(OF_CONNECTIONS, 0))
        self._relays: dict[str, set[_Relay]] = {}
        self._relayed_bytes = 0
        self._lookups = 0
        self._listeners: list[asyncio.Server | TlsListener] = []
        self._http: HttpServer | None = None

    async def start(
        self,
        clients: socket.socket | None,
        rest: socket.socket | None,
        clients_tls: TlsListener | None = None,
        rest_tls: TlsListener | None = None,
    ) -> None:
        """Start serving on the bound sockets. Raises `Unavailable` if the metadata store cannot be read."""
        await self.brokers.start()
        self._http = HttpServer(make_app(self.brokers, self.metrics, self.proxy, self.member))
        await self._http.start()
        if rest is not None:
            self._listeners.append(await self._http.listen(rest))
        if rest_tls is not None:
            rest_tls.start(self._http)
        if clients is not None:
            loop = asyncio.get_running_loop()
            server = await loop.create_server(lambda: Connection(self), sock=clients, backlog=BACKLOG)
            self._listeners.append(server)
        if clients_tls is not None:
            clients_tls.start(lambda: Connection(self))
            self._listeners.append(clients_tls)
        self.tasks.start(self._keep_alive(), "keep-alive")
        if self.proxy is not None:
            withdrawn = partial(self._end_withdrawn, self.proxy)
            self.tasks.start_every(LOOK_EACH_S, withdrawn, "check credentials")

    async def _end_withdrawn(self, proxy: Proxy) -> None:
        """Close connections and relays whose credentials were revoked."""
        await proxy.authentication.look()
        for connection in list(self.connections):
            if connection.identity is not None and not proxy.authentication.holds(connection.identity):
                proxy.withdrawn(connection.identity, connection.address)
                connection.identity = None
                connection.close()

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(KEEP_ALIVE_S)
            for connection in list(self.connections):
                connection.keep_alive()

    async def stop(self) -> None:
        """Stop the gateway, and disconnect clients last.

        Clients reconnect at once, and back off if they are refused. So they are disconnected when a new gateway may
        already be starting.
        """
        await self.tasks.stop()
        if self._http is not None:
            await self._http.stop()
        for listener in self._listeners:
            listener.close()
        for connection in list(self.connections):
            connection.close()
        await self.brokers.stop()

    def metrics(self) -> Values:
        return {
            "quire_gateway_connections": len(self.connections),
            "quire_gateway_connections_total": self.connections.total,
            "quire_gateway_connections_logging_in": self.connections.logging_in,
            "quire_gateway_limits_met_total": {(limit,): count for limit, count in self._limits_met.items()},
            "quire_gateway_relayed_bytes_total": self._relayed_bytes,
            "quire_gateway_lookups_total": self._lookups,
            "quire_gateway_brokers": len(self.brokers.all()),
            **({} if self.proxy is None else self.proxy.audit.metrics()),
            **self._more_metrics(),
        }

    # -- connections -----------------------------------------------------------------------------------

    def opened(self, connection: Connection, address: str) -> None:
        dropped = self.connections.came(connection, address)
        if dropped is not None:
            dropped.refuse(too_slow())

    def closed(self, connection: Connection) -> None:
        self.connections.left(connection)

    def too_fast(self) -> None:
        self._limits_met["requests_per_s"] += 1

    def refused(self, error: TooMany) -> None:
        self._limits_met[error.limit] += 1

    def relay_begins(
        self, connection: Connection, address: str, client: asyncio.Transport, broker: asyncio.Transport
    ) -> Callable[[], None]:
        relay = (client, broker)
        self._relays.setdefault(address, set()).add(relay)

        def ended() -> None:
            self.closed(connection)
            self._relays[address].discard(relay)
            if not self._relays[address]:
                del self._relays[address]

        return ended

    def _broker_gone(self, address: str) -> None:
        """Schedule closing the relays to a broker whose session has ended; other brokers take over its topics.

        A broker that shuts down closes its connections itself. A broker that hangs or is partitioned does not, and its
        clients would wait for their own timeouts.
        """
        asyncio.get_running_loop().call_later(GONE_S, self._cut, address)

    def _cut(self, address: str) -> None:
        if self.brokers.knows_service(address):
            return
        for client, broker in list(self._relays.get(address, ())):
            client.abort()
            broker.abort()

    def relayed(self, size_bytes: int) -> None:
        self._relayed_bytes += size_bytes

    def looked_up(self) -> None:
        self._lookups += 1
