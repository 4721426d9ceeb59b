"""Who a client is, where the gateway asks: then it is a proxy, in Pulsar's sense.

With `[authentication]` in its security file the gateway looks at a client's credentials itself, and presents its own
(`[client]`) to brokers with the client's role beside them, the *original principal*. Brokers believe that from the
roles that they know as proxies alone, and let pass what both may do. So certificates of clients work though TLS ends
here.
When a client's credentials expire its connection is closed, and it comes back with new ones.

Without, nothing is looked at here: credentials travel on to the broker, which judges them, and challenges their client
itself when they expire.
"""

from __future__ import annotations

import asyncio
from typing import Final

from multidict import CIMultiDict

from quire.runtime.errors import NotAuthenticated, NotAuthorized, Unavailable
from quire.runtime.limits import HANDSHAKE_S
from quire.security.authentication import REQUEST_ID, Authentication
from quire.security.identity import Identity, Presented
from quire.security.security import Security
from quire.wire import pulsar_pb2 as pb

ORIGINAL_PRINCIPAL: Final = "X-Original-Principal"
_OF_A_CLIENT: Final = (
    "auth_method",
    "auth_data",
    "auth_method_name",
    "original_principal",
    "original_auth_data",
    "original_auth_method",
)


class Proxy:
    """Where clients log in at the gateway; `proxy_of` makes one where they do."""

    def __init__(self, security: Security, authentication: Authentication) -> None:
        self._security = security
        self.audit = security.audit
        self.authentication = authentication

    async def log_in(self, presented: Presented, original: str) -> Identity:
        """Raises `NotAuthenticated`, `NotAuthorized`, `Unavailable`."""
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                identity = await self.authentication.authenticate(presented)
            return self._no_proxy(identity, original)
        except (NotAuthenticated, NotAuthorized, Unavailable, TimeoutError) as failed:
            late = Unavailable("logging in took too long; try again")
            error = late if isinstance(failed, TimeoutError) else failed
            address, by, request = presented.address, presented.by, presented.request
            self.audit.record("login-failed", None, address, by, outcome=str(error), request=request)
            raise error from None

    def withdrawn(self, identity: Identity, address: str) -> None:
        """It goes, for what it was let in by counts no longer."""
        outcome = f"the credentials of {identity} count no longer"
        self.audit.record("revoked", identity, address, "CONNECT", outcome=outcome)

    def _no_proxy(self, identity: Identity, original: str) -> Identity:
        """Who speaks for others speaks to brokers: here nobody would ask whether he himself may."""
        if original or identity.role in self._security.authorization.proxies:
            raise NotAuthorized("a gateway speaks for its clients, and its clients for nobody else")
        return identity

    def connect(self, body: pb.CommandConnect, identity: Identity) -> pb.CommandConnect:
        """What the broker is told in place of the client's own CONNECT. Raises `ConfigurationError`."""
        own = self._security.credentials
        made = pb.CommandConnect()
        made.CopyFrom(body)
        for field in _OF_A_CLIENT:
            made.ClearField(field)
        made.auth_method_name, made.auth_data = self._security.configuration.client.method, own.data()
        made.original_principal = identity.role
        return made

    def headers(self, headers: CIMultiDict[str], identity: Identity, request: str) -> CIMultiDict[str]:
        """As `connect`, of a request; brokers call it what it is called here."""
        made = CIMultiDict(headers)
        for name in ("Authorization", ORIGINAL_PRINCIPAL):
            made.popall(name, None)
        made.update(self._security.credentials.headers())
        made[ORIGINAL_PRINCIPAL] = identity.role
        made[REQUEST_ID] = request
        return made


def proxy_of(security: Security | None) -> Proxy | None:
    """None where clients do not log in at the gateway."""
    if security is None or security.authentication is None:
        return None
    return Proxy(security, security.authentication)
