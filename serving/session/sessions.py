"""All sessions of a broker: where they come from, and what they share.

They share the memory for what waits, the turns of the event loop for long work, and the way to topics
(`cluster/client_topics`). Names of producers are given here, too.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final
from zlib import crc32

from quire.runtime.clock import Clock
from quire.runtime.errors import ConfigurationError
from quire.runtime.metrics import Values
from quire.runtime.settings import format_address, parse_address
from quire.runtime.slices import Share
from quire.runtime.tasks import Tasks
from quire.security.connections import Connections, too_slow
from quire.security.listener import TlsListener
from quire.serving.cluster.addresses import Addresses
from quire.serving.cluster.client_topics import ClientTopics
from quire.serving.policy.guard import Guard
from quire.serving.session.connection import Connection
from quire.serving.session.frame_room import FrameRoom
from quire.serving.session.inbound import READ_WEIGHT_MAX
from quire.serving.session.revocation import start_revoking
from quire.serving.session.table import TABLE
from quire.serving.settings import BrokerSettings
from quire.serving.topic.services import Services

BACKLOG: Final = 1024
STEP_S: Final = 0.01
NAMES_SINCE_MS: Final = 1_735_689_600_000
"""The year 2025: names of producers tell the time since then."""

NAME_PARTS: Final = 36**3
"""Brokers that begin in one millisecond have names of their own but for one time in so many."""

DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


class Sessions:
    def __init__(
        self, services: Services, topics: ClientTopics, addresses: Addresses, guard: Guard | None = None
    ) -> None:
        """Without a guard nobody logs in."""
        self.guard = guard
        self._services = services
        self.limits, self.limits_met = services.limits, services.limits_met
        self.topics = topics
        self.budget = services.budget
        self.held = services.held
        # One message of each connection may wait, whatever waits already: what is too much counts in the other budget.
        self.budget.add_gauge(lambda: max(0, self.held.used_bytes - self.held.limit_bytes))
        self.frame_room = FrameRoom()
        self.slices = services.slices
        self.read_share = Share(READ_WEIGHT_MAX)
        """For what is read from sockets."""
        self._addresses = addresses
        self._names = _ProducerNames(services, addresses)
        self._listeners: list[asyncio.Server | TlsListener] = []
        superusers = () if guard is None else guard.authorization.superusers
        self.connections: Connections[Connection] = Connections(
            self.settings.connections_max, self.limits, superusers
        )
        self._sends_of_closed = [0, 0]

    @property
    def settings(self) -> BrokerSettings:
        return self._services.settings

    @property
    def clock(self) -> Clock:
        return self._services.clock

    @property
    def tasks(self) -> Tasks:
        return self._services.tasks

    # -- life ------------------------------------------------------------------------------------------

    async def listen(self, listener: socket.socket | None, tls: TlsListener | None = None) -> None:
        """On `listener`, a bound socket, and on `tls`; without either, where the settings say.

        Raises `ConfigurationError`.
        """
        if listener is not None or tls is None:
            address = await self._listen(listener)
            self._addresses.service_url = self.settings.advertise or f"pulsar://{address}"
        else:
            self._addresses.service_url = ""
        if tls is not None:
            tls.start(self._connection)
            self._listeners.append(tls)
            self._addresses.service_url_tls = self.settings.advertise_tls or f"pulsar+ssl://{tls.address}"

    async def _listen(self, listener: socket.socket | None) -> str:
        """Where, as host:port."""
        loop = asyncio.get_running_loop()
        try:
            if listener is not None:
                server = await loop.create_server(self._connection, sock=listener, backlog=BACKLOG)
            else:
                host, port = parse_address(self.settings.listen)
                server = await loop.create_server(self._connection, host, port, backlog=BACKLOG)
        except OSError as error:
            raise ConfigurationError(
                f"cannot listen on {self.settings.listen}: {error.strerror or error}"
            ) from error
        self._listeners.append(server)
        return format_address(*server.sockets[0].getsockname()[:2])

    def start_keep_alive(self) -> None:
        """Look from now on whether clients are still there."""
        self.tasks.start_every(self.settings.keep_alive_ms / 1000, self._keep_alive, "keep-alive")
        if self.guard is not None:
            start_revoking(self.guard, self.tasks, lambda: list(self.connections))

    def _connection(self) -> Connection:
        return Connection(self, TABLE)

    @property
    def is_listening(self) -> bool:
        """Or was, when the broker stops."""
        return bool(self._listeners)

    async def answered(self) -> None:
        """Return when all requests are; lookups, mostly, that waited for the end of a hand-over."""
        while any(session.requests.pending for session in self.connections):  # noqa: ASYNC110  once in a process's life
            await asyncio.sleep(STEP_S)

    def stop_listening(self) -> None:
        """Take no more clients; those who are here stay."""
        for listener in self._listeners:
            listener.close()

    def close(self) -> None:
        """Let all clients go."""
        for session in list(self.connections):
            session.close()

    async def _keep_alive(self) -> None:
        for session in list(self.connections):
            session.keep_alive()

    # -- what sessions tell and ask --------------------------------------------------------------------

    def at_end_of_turn(self, work: Callable[[], None]) -> None:
        self._services.ledgers.at_end_of_turn(work)

    def opened(self, connection: Connection, address: str) -> None:
        """Raises `TooMany`."""
        dropped = self.connections.came(connection, address)
        if dropped is not None:
            dropped.refuse(too_slow())

    def closed(self, connection: Connection) -> None:
        """What it counted stays in the totals."""
        self.connections.left(connection)
        self._sends_of_closed[0] += connection.inbound.fast_sends
        self._sends_of_closed[1] += connection.inbound.slow_sends

    def new_producer_name(self) -> str:
        """One that no other producer of the cluster has."""
        return self._names.next()

    def metrics(self) -> Values:
        """Counters and gauges by their full name. Counters never fall: what closes leaves its count in them."""
        fast, slow = self._sends_of_closed
        tls = [one for one in self._listeners if isinstance(one, TlsListener)]
        return {
            **({} if self.guard is None else self.guard.metrics()),
            "quire_serving_limits_met_total": {(limit,): count for limit, count in self.limits_met.items()},
            "quire_serving_tls_handshakes_total": sum(one.handshakes_total for one in tls),
            "quire_serving_tls_handshakes_failed_total": sum(one.handshakes_failed_total for one in tls),
            "quire_serving_tls_handshakes_under_way": sum(one.handshakes_under_way for one in tls),
            "quire_serving_connections": len(self.connections),
            "quire_serving_connections_total": self.connections.total,
            "quire_serving_connections_logging_in": self.connections.logging_in,
            "quire_serving_bytes_in_flight": self.budget.used_bytes,
            "quire_serving_bytes_in_flight_max": self.budget.limit_bytes,
            "quire_serving_tenant_share_waits_total": self._services.shares.waits,
            "quire_serving_bytes_held": self.held.used_bytes,
            "quire_serving_slices_waiting": len(self.slices),
            "quire_serving_bytes_of_frames": self.frame_room.used_bytes,
            "quire_serving_fast_sends_total": fast + sum(one.inbound.fast_sends for one in self.connections),
            "quire_serving_slow_sends_total": slow + sum(one.inbound.slow_sends for one in self.connections),
        }


class _ProducerNames:
    """Short, for each entry repeats it: when this broker began, what sets it apart from others, a number."""

    def __init__(self, services: Services, addresses: Addresses) -> None:
        self._cluster = services.settings.cluster
        self._began_ms = services.clock.now_ms() - NAMES_SINCE_MS
        self._addresses = addresses
        self._given = 0

    def next(self) -> str:
        self._given += 1
        apart = crc32(self._addresses.name.encode()) % NAME_PARTS
        return f"{self._cluster}-{_letters(self._began_ms * NAME_PARTS + apart)}-{self._given}"


def _letters(number: int) -> str:
    """A number in digits and letters."""
    found = ""
    number = abs(number)
    while number or not found:
        number, digit = divmod(number, len(DIGITS))
        found = DIGITS[digit] + found
    return found
