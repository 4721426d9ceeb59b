"""Authentication of clients at the gateway, which is then a [proxy] in Pulsar's sense.

With `[authentication]` in its security file, the gateway verifies a client's credentials. It presents its own
credentials (`[client]`) to brokers, together with the client's role, the *original principal*. Brokers accept an
original principal only from proxy roles, and require that both roles have the permission. So clients can authenticate
with certificates although TLS ends at the gateway. When a client's credentials expire, its connection is closed, and it
reconnects with new ones.

Without `[authentication]`, the gateway forwards credentials to the broker, which verifies them, and challenges the
client itself when they expire.

[proxy]: https://pulsar.apache.org/docs/administration-proxy/
"""

from __future__ import annotations

import asyncio
from typing import Final

from multidict import CIMultiDict

from quire.runtime.errors import NotAuthenticated, NotAuthorized, Unavailable
from quire.runtime.limits import HANDSHAKE_S
from quire.security.audit import Caller
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
    """Authentication of clients at the gateway, created by `proxy_of` if it is configured."""

    def __init__(self, security: Security, authentication: Authentication) -> None:
        self._security = security
        self.audit = security.audit
        self.authentication = authentication

    async def log_in(self, presented: Presented, original: str) -> Identity:
        """Verify a client's credentials. Raises `NotAuthenticated`, `NotAuthorized` or `Unavailable`."""
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                identity = await self.authentication.authenticate(presented)
            return self._no_proxy(identity, original)
        except (NotAuthenticated, NotAuthorized, Unavailable, TimeoutError) as failed:
            late = Unavailable("logging in took too long; try again later")
            error = late if isinstance(failed, TimeoutError) else failed
            caller = Caller(None, presented.address, presented.by, presented.request)
            self.audit.record("login-failed", caller, outcome=str(error))
            raise error from None

    def withdrawn(self, identity: Identity, address: str) -> None:
        """Record in the audit log that a connection is closed because its credentials were revoked."""
        outcome = f"the credentials of {identity} are no longer valid"
        self.audit.record("revoked", Caller(identity, address, "CONNECT"), outcome=outcome)

    def _no_proxy(self, identity: Identity, original: str) -> Identity:
        """Return the identity, but reject a proxy, because the gateway cannot check for which role it may act."""
        if original or identity.role in self._security.authorization.proxies:
            raise NotAuthorized("a gateway's clients cannot act for other roles")
        return identity

    def connect(self, body: pb.CommandConnect, identity: Identity) -> pb.CommandConnect:
        """Return the CONNECT for the broker, which replaces the client's. Raises `ConfigurationError`."""
        own = self._security.credentials
        made = pb.CommandConnect()
        made.CopyFrom(body)
        for field in _OF_A_CLIENT:
            made.ClearField(field)
        made.auth_method_name, made.auth_data = self._security.configuration.client.method, own.data()
        made.original_principal = identity.role
        return made

    def headers(self, headers: CIMultiDict[str], identity: Identity, request: str) -> CIMultiDict[str]:
        """Return the headers of a request for the broker, with the gateway's credentials and request id.

        See `connect`.
        """
        made = without_credentials(headers)
        made.update(self._security.credentials.headers())
        made[ORIGINAL_PRINCIPAL] = identity.role
        made[REQUEST_ID] = request
        return made


def without_credentials(headers: CIMultiDict[str]) -> CIMultiDict[str]:
    """Return a copy of the headers without those that identify a user."""
    made = CIMultiDict(headers)
    for name in ("Authorization", "Cookie", ORIGINAL_PRINCIPAL):
        made.popall(name, None)
    return made


def proxy_of(security: Security | None) -> Proxy | None:
    """Return the proxy, or None if clients do not log in at the gateway."""
    if security is None or security.authentication is None:
        return None
    return Proxy(security, security.authentication)
