"""CONNECT where people log in, and what happens when credentials expire.

    logging in    CONNECT came, its credentials are being looked at; any other command breaks the protocol
    logged in     CONNECTED was sent; the role is in `identity`
    challenged    the credentials have expired and AUTH_CHALLENGE was sent: AUTH_RESPONSE must bring new ones of the
                  same role within `REFRESH_S`
    ended         wrong credentials, or none in time, or what let it in was taken away: ERROR with AuthenticationError,
                  and the connection is closed

Who cannot be challenged (an old client; a proxy, whose client has its own credentials) is closed when they expire, and
logs in anew.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final
from weakref import ref

from quire.runtime.errors import NotAuthenticated, NotAuthorized, QuireError
from quire.security.identity import Identity, Presented
from quire.serving.policy.guard import Guard
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    from quire.serving.session.connection import Connection

REFRESH_S: Final = 10.0
LOOK_S_MAX: Final = 86_400.0
"""Credentials of years are looked at once a day: a timer is not for years."""


class Login:
    """Of one connection, to which it refers weakly: a circle would stay until the collector comes."""

    def __init__(
        self, connection: Connection, guard: Guard, identity: Identity, body: pb.CommandConnect
    ) -> None:
        self.identity = identity
        self._connection = ref(connection)
        self._guard = guard
        self._method = body.auth_method_name
        self._can_refresh = body.feature_flags.supports_auth_refresh and not identity.original
        self._protocol_version = body.protocol_version
        self._is_challenged = False
        self._timer: asyncio.TimerHandle | None = None
        self._wait()

    def end(self) -> None:
        """The connection is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        """Until the credentials expire."""
        self.end()
        connection = self._connection()
        if self.identity.expires_ms is None or connection is None:
            return
        left_s = (self.identity.expires_ms - connection.host.clock.now_ms()) / 1000
        loop = asyncio.get_running_loop()
        if left_s > LOOK_S_MAX:
            self._timer = loop.call_later(LOOK_S_MAX, self._wait)
        else:
            self._timer = loop.call_later(max(0.0, left_s), self._expired)

    def _expired(self) -> None:
        connection = self._connection()
        if connection is None or connection.is_closed:
            return
        if self._can_refresh and not self._is_challenged:
            self._is_challenged = True
            connection.write(commands.auth_challenge(self._method, self._protocol_version))
            self._timer = asyncio.get_running_loop().call_later(REFRESH_S, self._expired)
            return
        error = NotAuthenticated(f"the credentials of {self.identity} have expired; log in again")
        self._guard.audit.record(
            "login-failed", self.identity, connection.peer.address, "expiry", outcome=str(error)
        )
        connection.refuse(error)

    def withdraw(self) -> None:
        """What it was let in by counts no longer: somebody took it away, so nobody is asked for better."""
        connection = self._connection()
        if connection is None or connection.is_closed:
            return
        error = NotAuthenticated(f"the credentials of {self.identity} count no longer; log in again")
        self._guard.audit.record(
            "revoked", self.identity, connection.peer.address, "CONNECT", outcome=str(error)
        )
        connection.refuse(error)

    def refresh(self, body: pb.CommandAuthResponse) -> None:
        """AUTH_RESPONSE. One that nobody asked for is dropped: it can only be late."""
        connection = self._connection()
        if not self._is_challenged or connection is None:
            return
        self._is_challenged = False
        self.end()
        certificate = connection.outbound.peer_certificate()
        method, data = body.response.auth_method_name, body.response.auth_data
        connection.requests.start(self._look_at(method, data, certificate), "AUTH_RESPONSE")

    async def _look_at(self, method: str, data: bytes, certificate: bytes) -> None:
        connection = self._connection()
        if connection is None:
            return
        address = connection.peer.address
        try:
            async with asyncio.timeout(REFRESH_S):
                identity = await self._guard.log_in(Presented(method, data, certificate, address), "")
            if identity.role != self.identity.role:
                raise NotAuthorized(f"a session of {self.identity.role} cannot become one of {identity.role}")
            if identity.expires_ms is not None and identity.expires_ms <= connection.host.clock.now_ms():
                raise NotAuthenticated("the new credentials have expired as well")
        except (QuireError, TimeoutError) as error:
            connection.refuse(
                error if isinstance(error, QuireError) else NotAuthenticated("logging in took too long")
            )
            return
        except Exception as error:  # a bug must not leave the session without an end
            connection.fail(error)
            return
        self.identity = identity
        self._wait()


async def log_in(connection: Connection, guard: Guard, body: pb.CommandConnect) -> Login:
    """By the credentials of CONNECT. Raises `NotAuthenticated`, `NotAuthorized`, `Unavailable`."""
    certificate, address = connection.outbound.peer_certificate(), connection.peer.address
    presented = Presented(body.auth_method_name, body.auth_data, certificate, address)
    identity = await guard.log_in(presented, body.original_principal)
    return Login(connection, guard, identity, body)
