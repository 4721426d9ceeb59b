"""Identity and liveness of a connection's peer.

The broker closes a connection whose client does not send CONNECT in time. Once per keep-alive interval it checks
whether the client sent anything: it pings after one silent interval, and closes the connection after two.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from quire.runtime.limits import NAME_CHARS_MAX
from quire.runtime.network import network_of
from quire.security.authentication import NONE
from quire.security.identity import Identity
from quire.serving.session.inbound import Inbound, Stop
from quire.serving.session.outbound import Outbound
from quire.wire import commands

_log: Final = logging.getLogger(__name__)


class Peer:
    """Peer of one connection. `handshake` is the timer that closes the connection if CONNECT is late."""

    def __init__(self, address: str, number: int, handshake: asyncio.TimerHandle) -> None:
        self.name: Final = f"c{number}{address}"
        """Name in log lines, such as `c17/10.0.0.5:41230`; the number makes it unique, because ports are reused."""
        self._handshake = handshake
        self._was_pinged = False
        self._unsent_bytes = 0
        """Size of the write buffer at the last keep-alive check; it decreases while the client reads."""
        self.was_heard = True
        self.is_connected = False
        """True after CONNECT was answered."""
        self.address = address
        self.client_version = ""
        self.wants_index = False
        """True if the client supports entries with broker entry metadata, and the settings enable them."""
        self.identity: Identity | None = None
        """Identity of the client; None without authentication, and until the client has logged in."""

    @property
    def owner(self) -> str:
        """Owner of this connection's memory in budgets: its role or, without authentication, its network."""
        identity = self.identity
        if identity is None or identity.method in NONE:
            return network_of(self.address)
        return identity.original or identity.role

    @property
    def knows_end_of_topic(self) -> bool:
        """True if the client supports REACHED_END_OF_TOPIC; other clients close the connection when they receive it."""
        version = self.client_version.lower()
        return "java" in version or version.startswith("quire")

    @property
    def reads_absent_versions(self) -> bool:
        """True if the client requires a schema version in the response, which is empty if the topic has no schema.

        Other clients, such as the Go client, would write an empty version into each message. Their consumers would then
        request the schema of that version.
        """
        return "java" in self.client_version.lower()

    def connected(self, client_version: str, *, wants_index: bool) -> None:
        """Store the fields of CONNECT, and stop the handshake timer."""
        self._handshake.cancel()
        if not self.is_connected:
            role = "" if self.identity is None else f" as {self.identity}"
            _log.info(
                "client connected: connection=%s client=%s%s",
                self.name,
                client_version[:NAME_CHARS_MAX],
                role,
            )
        self.is_connected = True
        self.client_version = client_version[:NAME_CHARS_MAX]
        self.wants_index = wants_index

    def lost(self) -> None:
        """Stop the handshake timer, because the connection is closed."""
        self._handshake.cancel()

    def keep_alive(self, inbound: Inbound, outbound: Outbound) -> None:
        """Send a ping after one silent interval; close the connection after two.

        Called once per keep-alive interval.

        While the broker does not read the socket, it cannot receive the client's PONG. It then pings without a
        deadline, only to detect a broken connection.
        """
        if Stop.ANSWERS in inbound.stops:
            unsent = outbound.unsent_bytes
            self.was_heard, self._unsent_bytes = unsent != self._unsent_bytes, unsent
        if not inbound.is_deaf:
            inbound.close_if_slow()
        if inbound.is_deaf:
            self.was_heard = self._was_pinged = False
            if self.is_connected and outbound.is_writable:
                outbound.write(commands.PING)
        elif self.was_heard:
            self.was_heard = self._was_pinged = False
        elif not self._was_pinged:
            self._was_pinged = True
            inbound.rest()
            outbound.write(commands.PING)
        else:
            _log.info("closing a connection, no answer to a ping: connection=%s", self.name)
            outbound.abort()
