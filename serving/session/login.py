"""Authentication of one connection: CONNECT, and expiry of the credentials.

    logging in    CONNECT was received, its credentials are being verified; other commands violate the protocol
    logged in     CONNECTED was sent; `Peer.identity` contains the role
    challenged    the credentials have expired and AUTH_CHALLENGE was sent: AUTH_RESPONSE must contain new ones of the
                  same role within `REFRESH_S`
    ended         the credentials were wrong, late or revoked: the broker sends ERROR with AuthenticationError
                  and closes the connection

The connection of a client that cannot be challenged is closed when the credentials expire, and the client logs in
again. This concerns old clients, and proxies, whose clients have credentials of their own.
"""

from __future__ import annotations

import asyncio
from typing import Final
from weakref import ref

from quire.runtime.errors import NotAuthenticated, NotAuthorized, QuireError
from quire.security.audit import Caller
from quire.security.identity import Identity, Presented
from quire.serving.policy.guard import Guard
from quire.serving.session.connection import Connection
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb

REFRESH_S: Final = 10.0
LOOK_S_MAX: Final = 86_400.0
"""Maximum duration of the expiry timer, in seconds; for credentials that are valid longer, it is set again daily."""


class Login:
    """Login of one connection.

    It references the connection weakly, because a reference cycle stays in memory until the garbage collector runs,
    which is rare.
    """

    def __init__(self, connection: Connection, guard: Guard, body: pb.CommandConnect) -> None:
        self._connection = ref(connection)
        self._guard = guard
        self._method = body.auth_method_name
        self._can_refresh = body.feature_flags.supports_auth_refresh and not _identity(connection).original
        self._protocol_version = body.protocol_version
        self._is_challenged = False
        self._timer: asyncio.TimerHandle | None = None
        self._wait()

    def end(self) -> None:
        """Stop the timer, because the connection is closed or its credentials change."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        """Set the timer to the expiry of the credentials."""
        self.end()
        connection = self._connection()
        if connection is None or (expires_ms := _identity(connection).expires_ms) is None:
            return
        left_s = (expires_ms - connection.context.clock.now_ms()) / 1000
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
        identity = _identity(connection)
        error = NotAuthenticated(f"the credentials of {identity} have expired; log in again")
        caller = Caller(identity, connection.peer.address, "expiry")
        self._guard.audit.record("login-failed", caller, outcome=str(error))
        connection.refuse(error)

    def withdraw(self) -> None:
        """Close the connection without a challenge, because its credentials were revoked."""
        connection = self._connection()
        if connection is None or connection.is_closed:
            return
        identity = _identity(connection)
        error = NotAuthenticated(f"the credentials of {identity} were revoked; log in again")
        caller = Caller(identity, connection.peer.address, "CONNECT")
        self._guard.audit.record("revoked", caller, outcome=str(error))
        connection.refuse(error)

    def refresh(self, body: pb.CommandAuthResponse) -> None:
        """Handle AUTH_RESPONSE; ignore it if no challenge is pending, because it came too late."""
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
            role = _identity(connection).role
            if identity.role != role:
                raise NotAuthorized(f"the role of a session cannot change from {role} to {identity.role}")
            if identity.expires_ms is not None and identity.expires_ms <= connection.context.clock.now_ms():
                raise NotAuthenticated("the new credentials have expired, too")
        except (QuireError, TimeoutError) as error:
            connection.refuse(
                error
                if isinstance(error, QuireError)
                else NotAuthenticated("verifying the credentials took too long")
            )
            return
        except Exception as error:  # a bug must not leave the session open with expired credentials
            connection.fail(error)
            return
        connection.peer.identity = identity
        self._wait()


async def log_in(connection: Connection, guard: Guard, body: pb.CommandConnect) -> Login:
    """Authenticate the client by the credentials in CONNECT.

    Raises `NotAuthenticated`, `NotAuthorized`, `Unavailable`.
    """
    certificate, address = connection.outbound.peer_certificate(), connection.peer.address
    presented = Presented(body.auth_method_name, body.auth_data, certificate, address)
    connection.peer.identity = await guard.log_in(presented, body.original_principal)
    return Login(connection, guard, body)


def _identity(connection: Connection) -> Identity:
    identity = connection.peer.identity
    assert identity is not None
    return identity
