"""All sessions of a broker: its listeners, the table of command handlers, and metrics."""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from quire.runtime.errors import ConfigurationError
from quire.runtime.metrics import Values
from quire.runtime.settings import format_address, parse_address
from quire.security.connections import Connections
from quire.security.listener import TlsListener
from quire.serving.operations.client_topics import ClientTopics
from quire.serving.ownership.port import Addresses
from quire.serving.policy.guard import Guard
from quire.serving.session import consume, handshake, lookup, produce
from quire.serving.session.context import SessionContext
from quire.serving.session.revocation import start_revoking
from quire.serving.session.session import Handler, Session
from quire.serving.topic.services import Services

BACKLOG: Final = 1024
STEP_S: Final = 0.01

TABLE: Final[dict[int, Handler]] = {
    **handshake.HANDLERS,
    **lookup.HANDLERS,
    **produce.HANDLERS,
    **consume.HANDLERS,
}
"""Handler of every command that a client may send."""


class Sessions:
    """Sessions of one broker. `guard` is None without authentication."""

    def __init__(
        self, services: Services, topics: ClientTopics, addresses: Addresses, guard: Guard | None = None
    ) -> None:
        self.guard = guard
        self.topics = topics
        self.context = SessionContext.of(services, topics, guard)
        # One message of each connection may wait even if `held` is used up; bytes above its limit count in `budget`.
        held = services.held
        services.budget.add_gauge(lambda: max(0, held.used_bytes - held.limit_bytes))
        self._services = services
        self._settings = services.settings
        self._addresses = addresses
        self._listeners: list[asyncio.Server | TlsListener] = []
        superusers = () if guard is None else guard.authorization.superusers
        self.connections: Connections[Session] = Connections(
            self._settings.connections_max, services.limits, superusers
        )

    # -- life ------------------------------------------------------------------------------------------

    async def listen(self, listener: socket.socket | None, tls: TlsListener | None = None) -> None:
        """Listen on `listener`, a bound socket, and on `tls`; if both are None, at the address in the settings.

        Raises `ConfigurationError`.
        """
        if listener is not None or tls is None:
            address = await self._listen(listener)
            self._addresses.service_url = self._settings.advertise or f"pulsar://{address}"
        else:
            self._addresses.service_url = ""
        if tls is not None:
            tls.start(self.accept)
            self._listeners.append(tls)
            self._addresses.service_url_tls = self._settings.advertise_tls or f"pulsar+ssl://{tls.address}"

    async def _listen(self, listener: socket.socket | None) -> str:
        """Listen without TLS. Return the address as host:port."""
        loop = asyncio.get_running_loop()
        try:
            if listener is not None:
                server = await loop.create_server(self.accept, sock=listener, backlog=BACKLOG)
            else:
                host, port = parse_address(self._settings.listen)
                server = await loop.create_server(self.accept, host, port, backlog=BACKLOG)
        except OSError as error:
            raise ConfigurationError(
                f"cannot listen on {self._settings.listen}: {error.strerror or error}"
            ) from error
        self._listeners.append(server)
        return format_address(*server.sockets[0].getsockname()[:2])

    def start_keep_alive(self) -> None:
        """Start the timers that ping silent clients, and that end logins and permissions that were revoked."""
        self.context.tasks.start_every(self._settings.keep_alive_ms / 1000, self._keep_alive, "keep-alive")
        if self.guard is not None:
            start_revoking(self.guard, self.context.tasks, lambda: list(self.connections))

    def accept(self) -> Session:
        """Create the session of a new connection; asyncio calls this as its protocol factory."""
        return Session(self.context, self.connections, TABLE)

    @property
    def is_listening(self) -> bool:
        """True after the broker began to listen, even if it has stopped since."""
        return bool(self._listeners)

    async def answered(self) -> None:
        """Wait until all pending requests are answered; most are lookups that waited for the end of a hand-over."""
        while any(session.requests.pending for session in self.connections):  # noqa: ASYNC110  once in a process's life
            await asyncio.sleep(STEP_S)

    def stop_listening(self) -> None:
        """Stop accepting connections; open sessions stay open."""
        for listener in self._listeners:
            listener.close()

    def close(self) -> None:
        """Close all sessions."""
        for session in list(self.connections):
            session.close()

    async def _keep_alive(self) -> None:
        for session in list(self.connections):
            session.keep_alive()

    def metrics(self) -> Values:
        """Return counters and gauges by full metric name. Counters include closed sessions, so they never decrease."""
        context, closed = self.context, self.context.sends_of_closed
        tls = [one for one in self._listeners if isinstance(one, TlsListener)]
        return {
            **({} if self.guard is None else self.guard.audit.metrics()),
            "quire_serving_limits_met_total": {
                (limit,): count for limit, count in context.limits_met.items()
            },
            "quire_serving_tls_handshakes_total": sum(one.handshakes_total for one in tls),
            "quire_serving_tls_handshakes_failed_total": sum(one.handshakes_failed_total for one in tls),
            "quire_serving_tls_handshakes_under_way": sum(one.handshakes_under_way for one in tls),
            "quire_serving_connections": len(self.connections),
            "quire_serving_connections_total": self.connections.total,
            "quire_serving_connections_logging_in": self.connections.logging_in,
            "quire_serving_bytes_in_flight": context.budget.used_bytes,
            "quire_serving_bytes_in_flight_max": context.budget.limit_bytes,
            "quire_serving_tenant_share_waits_total": self._services.shares.waits,
            "quire_serving_bytes_held": context.held.used_bytes,
            "quire_serving_bytes_kept": context.kept.used_bytes,
            "quire_serving_slices_waiting": len(context.slices),
            "quire_serving_bytes_of_frames": context.frame_room.used_bytes,
            "quire_serving_fast_sends_total": closed.fast
            + sum(one.inbound.fast_sends for one in self.connections),
            "quire_serving_slow_sends_total": closed.slow
            + sum(one.inbound.slow_sends for one in self.connections),
        }
