"""Who is at the other end of a connection, and whether it is still there.

A connection that does not say CONNECT in time is closed. Once per keep-alive interval the broker looks whether it heard
of the peer: it pings after one silent interval and closes after two.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from quire.runtime.limits import NAME_CHARS_MAX
from quire.serving.session.inbound import Inbound, Stop
from quire.serving.session.outbound import Outbound
from quire.wire import commands

if TYPE_CHECKING:
    from quire.serving.session.login import Login

_log: Final = logging.getLogger(__name__)


class Peer:
    def __init__(self, address: str, number: int, handshake: asyncio.TimerHandle) -> None:
        """`handshake` closes the connection when it does not come in time."""
        self.name: Final = f"c{number}{address}"
        """`c17/10.0.0.5:41230` in every line of the log about it: ports are used again, numbers are not."""
        self._handshake = handshake
        self._was_pinged = False
        self._unsent_bytes = 0
        """What the write buffer held when we last looked whether the peer reads."""
        self.was_heard = True
        self.is_connected = False
        """CONNECT was answered."""
        self.address = address
        self.client_version = ""
        self.wants_index = False
        """The client takes entries with broker entry metadata, and the settings allow it."""
        self.login: Login | None = None
        """None where nobody is asked who he is, and until CONNECT comes."""

    @property
    def knows_end_of_topic(self) -> bool:
        """Whether REACHED_END_OF_TOPIC may be sent: other clients close the connection when they meet it."""
        version = self.client_version.lower()
        return "java" in version or version.startswith("quire")

    def connected(self, client_version: str, *, wants_index: bool) -> None:
        """CONNECT came."""
        self._handshake.cancel()
        if not self.is_connected:
            role = "" if self.login is None else f" as {self.login.identity}"
            _log.info("connection %s is of %s%s", self.name, client_version[:NAME_CHARS_MAX], role)
        self.is_connected = True
        self.client_version = client_version[:NAME_CHARS_MAX]
        self.wants_index = wants_index

    def lost(self) -> None:
        """The connection is gone."""
        self._handshake.cancel()
        if self.login is not None:
            self.login.end()

    def keep_alive(self, inbound: Inbound, outbound: Outbound) -> None:
        """To be called once per keep-alive interval: ping after one silent interval, close after two.

        One that is not read cannot be heard. It is pinged, and nothing is awaited: that it is gone is seen when
        something is sent to it, while nobody looks at the socket otherwise.
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
            _log.info("closing connection %s: silent since it was pinged", self.name)
            outbound.abort()
