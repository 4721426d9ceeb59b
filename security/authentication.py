"""Authentication: the provider of a client's method verifies its credentials.

    method   credentials                                               provider
    token    a JSON Web Token                                          `oidc` for an issuer that it knows, else `tokens`
    basic    user:password                                             `basic`
    tls      the certificate of the connection                         `certificates`
    none     nothing                                                   the anonymous role, if there is one

A provider returns an `Identity`, or raises `NotAuthenticated`, or `Unavailable` if it cannot verify now, for example
while an issuer's keys cannot be fetched. The client is refused with either error.

Credentials may be revoked while a connection is open: `holds` checks them again.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import Final, Protocol

from quire.runtime.clock import Clock
from quire.runtime.errors import NotAuthenticated
from quire.security.configuration import AuthenticationConfiguration
from quire.security.identity import Identity, Presented

NONE: Final = ("", "none")
CREDENTIALS_BYTES_MAX: Final = 32 << 10
REQUEST_ID: Final = "X-Request-ID"
"""Header with the client's id of an HTTP request, for the audit log; if missing, an id is generated and returned."""
_REQUEST: Final = re.compile(r"[\w.:-]{1,64}", re.ASCII)
_NEITHER: Final = "neither Bearer nor Basic"
"""Logged instead of an unknown scheme, which may be a token whose sender omitted "Bearer"."""
LOOK_EACH_S: Final = 2.0
"""Interval in seconds of checking the credentials and permissions of open connections."""


class Provider(Protocol):
    async def authenticate(self, data: bytes, address: str = "") -> Identity:
        """Verify credentials from `address` and return their identity. Raises `NotAuthenticated`, `Unavailable`."""
        ...

    async def look(self) -> None:
        """Check whether trusted keys or users have changed, if that requires I/O. Raises no error."""
        ...

    def trusts(self, proof: str) -> bool:
        """Return whether the provider would still accept the proof of an identity (`Identity.proof`)."""
        ...


class IssuerProvider(Provider, Protocol):
    def knows(self, data: bytes) -> bool:
        """Return whether the token names an issuer of this provider; nothing is verified yet."""
        ...

    async def stop(self) -> None: ...


class Authentication:
    """All authentication providers of a process. `stop` stops the providers that fetch keys."""

    def __init__(
        self,
        anonymous_role: str,
        providers: Mapping[str, Provider],
        issuers: IssuerProvider | None = None,
        certificates: Provider | None = None,
        prefixes: Sequence[str] = (),
    ) -> None:
        """Create it from the providers by method.

        A role belongs to the provider with the longest prefix, among `prefixes`, that the role begins with.
        """
        self._anonymous_role = anonymous_role
        self._providers = providers
        self._issuers = issuers
        self._certificates = certificates
        self._prefixes = prefixes
        every = (*providers.values(), issuers, certificates)
        self._every: Sequence[Provider] = [one for one in every if one is not None]

    async def stop(self) -> None:
        if self._issuers is not None:
            await self._issuers.stop()

    async def authenticate(self, presented: Presented) -> Identity:
        """Return the identity that the credentials prove. Raises `NotAuthenticated`, `Unavailable`."""
        identity = await self._asked(presented)
        owner = max((one for one in self._prefixes if identity.role.startswith(one)), key=len, default="")
        if identity.method not in NONE and owner != identity.prefix:
            raise NotAuthenticated(
                f"the role {identity.role} begins with {owner!r}, the prefix of another provider; rename the role"
            )
        return identity

    async def _asked(self, presented: Presented) -> Identity:
        """Authenticate with the provider of the client's method."""
        method, data = presented.method, presented.data
        if method in NONE:
            if not self._anonymous_role:
                raise NotAuthenticated(f"log in: this broker accepts {self._methods()}")
            return Identity(self._anonymous_role, "none")
        if len(data) > CREDENTIALS_BYTES_MAX:
            raise NotAuthenticated(f"the credentials are larger than {CREDENTIALS_BYTES_MAX} bytes")
        if method == "tls" and self._certificates is not None:
            if not presented.certificate:
                raise NotAuthenticated("the client presented no certificate on this connection")
            return await self._certificates.authenticate(presented.certificate, presented.address)
        if method == "token" and self._issuers is not None and self._issuers.knows(data):
            return await self._issuers.authenticate(data, presented.address)
        provider = self._providers.get(method)
        if (
            provider is None and self._anonymous_role
        ):  # as in Pulsar: credentials of an unknown method are ignored
            return Identity(self._anonymous_role, "none")
        if provider is None:
            raise NotAuthenticated(
                f"this broker does not support the method {method[:40]!r}; it accepts {self._methods()}"
            )
        return await provider.authenticate(data, presented.address)

    async def look(self) -> None:
        """Let providers check their keys and users for changes; call it every `LOOK_EACH_S`, before `holds`."""
        for provider in self._every:
            await provider.look()

    def holds(self, identity: Identity) -> bool:
        """Return whether the identity's proof is still valid; False after its user, password or key was removed."""
        return not identity.proof or any(one.trusts(identity.proof) for one in self._every)

    def in_request(self, headers: Mapping[str, str], certificate: bytes, address: str) -> Presented:
        """Return the credentials in an HTTP request's `Authorization` header, if any, without verifying them."""
        scheme, _, rest = headers.get("Authorization", "").strip().partition(" ")
        method, data = _NEITHER, b""
        match scheme.lower():
            case "bearer":
                method, data = "token", rest.strip().encode()
            case "basic":
                method, data = "basic", _decoded(rest.strip())
            case "":
                by_certificate = bool(certificate) and self._certificates is not None
                method = "tls" if by_certificate else "none"
        given = headers.get(REQUEST_ID, "")
        request = given if _REQUEST.fullmatch(given) else token_hex(8)
        return Presented(method, data, certificate, address, "HTTP", request)

    def _methods(self) -> str:
        found = {
            *self._providers,
            *(["token"] if self._issuers else []),
            *(["tls"] if self._certificates else []),
        }
        return " or ".join(sorted(found)) or "no credentials"


def _decoded(text: str) -> bytes:
    """Decode Base64. Return empty bytes, which never match a user, if `text` is malformed."""
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return b""


def make_authentication(configuration: AuthenticationConfiguration, clock: Clock) -> Authentication:
    """Create the configured providers. Raises `ConfigurationError` for an unusable key or file."""
    providers: dict[str, Provider] = {}
    issuers: IssuerProvider | None = None
    certificates: Provider | None = None
    # Providers are imported only if configured: their libraries are optional, and slow to import.
    if configuration.token is not None:
        from quire.security.tokens import Tokens

        providers["token"] = Tokens(configuration.token, clock)
    if configuration.basic is not None:
        from quire.security.basic import Passwords

        providers["basic"] = Passwords(configuration.basic, clock)
    if configuration.oidc:
        from quire.security.oidc import Issuers

        issuers = Issuers(configuration.oidc, clock)
    if configuration.certificate is not None:
        from quire.security.certificates import CertificateRoles

        certificates = CertificateRoles(configuration.certificate, clock)
    tables = (configuration.token, configuration.basic, *configuration.oidc, configuration.certificate)
    prefixes = [table.prefix for table in tables if table is not None and table.prefix]
    return Authentication(configuration.anonymous_role, providers, issuers, certificates, prefixes)
