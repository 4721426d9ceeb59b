"""Who is let in: what a client presents, shown to the provider of its method.

    method   what a client presents                                    provider
    token    a JSON web token                                          `oidc` for an issuer that it knows, else `tokens`
    basic    user:password                                             `basic`
    tls      nothing: the certificate of its connection counts         `certificates`
    none     nothing                                                   the anonymous role, if there is one

Providers answer with an `Identity` or raise `NotAuthenticated`; `Unavailable` when they cannot know now, such as when
an issuer's keys cannot be had. Neither ever lets anybody in.

Connections last, and what let them in may be taken away: `holds` says so.
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
"""Clients of HTTP may name a request; else we do, and say so in the answer. It is in the audit log."""
_REQUEST: Final = re.compile(r"[\w.:-]{1,64}", re.ASCII)
_NEITHER: Final = "neither Bearer nor Basic"
"""In place of a header's scheme, which may be a token whose sender forgot to say Bearer."""
LOOK_EACH_S: Final = 2.0
"""How often connections are looked at for whether they may be there still: `Authentication.holds`, and permissions."""


class Provider(Protocol):
    async def authenticate(self, data: bytes, address: str = "") -> Identity:
        """Who sends `data` from `address`. Raises `NotAuthenticated`, `Unavailable`."""
        ...

    async def look(self) -> None:
        """See whether what it trusts has changed, where that takes time. Raises nothing."""
        ...

    def trusts(self, proof: str) -> bool:
        """Whether who was let in by this would be still; see `Identity.proof`."""
        ...


class IssuerProvider(Provider, Protocol):
    def knows(self, data: bytes) -> bool:
        """Whether the token says to come from an issuer of this provider. Nothing is verified yet."""
        ...

    async def stop(self) -> None: ...


class Authentication:
    """All providers of a process. `start` and `stop` are for those that fetch keys."""

    def __init__(
        self,
        anonymous_role: str,
        providers: Mapping[str, Provider],
        issuers: IssuerProvider | None = None,
        certificates: Provider | None = None,
    ) -> None:
        """`providers` by their methods."""
        self._anonymous_role = anonymous_role
        self._providers = providers
        self._issuers = issuers
        self._certificates = certificates
        every = (*providers.values(), issuers, certificates)
        self._every: Sequence[Provider] = [one for one in every if one is not None]

    async def stop(self) -> None:
        if self._issuers is not None:
            await self._issuers.stop()

    async def authenticate(self, presented: Presented) -> Identity:
        """Who it is. Raises `NotAuthenticated`, `Unavailable`."""
        method, data = presented.method, presented.data
        if method in NONE:
            if not self._anonymous_role:
                raise NotAuthenticated(f"log in: this broker takes {self._methods()}")
            return Identity(self._anonymous_role, "none")
        if len(data) > CREDENTIALS_BYTES_MAX:
            raise NotAuthenticated(f"credentials have {CREDENTIALS_BYTES_MAX} bytes at most")
        if method == "tls" and self._certificates is not None:
            if not presented.certificate:
                raise NotAuthenticated("no certificate of the client came with this connection")
            return await self._certificates.authenticate(presented.certificate, presented.address)
        if method == "token" and self._issuers is not None and self._issuers.knows(data):
            return await self._issuers.authenticate(data, presented.address)
        provider = self._providers.get(method)
        if provider is None:
            raise NotAuthenticated(
                f"this broker does not take the method {method[:40]!r}, but {self._methods()}"
            )
        return await provider.authenticate(data, presented.address)

    async def look(self) -> None:
        """See whether what providers trust has changed; to be asked every `LOOK_EACH_S`, before `holds`."""
        for provider in self._every:
            await provider.look()

    def holds(self, identity: Identity) -> bool:
        """Whether what it was let in by still lets in; False when a user, a password or a key is gone."""
        return not identity.proof or any(one.trusts(identity.proof) for one in self._every)

    def in_request(self, headers: Mapping[str, str], certificate: bytes, address: str) -> Presented:
        """What an HTTP request shows by its header `Authorization`, if it has one. Nothing is verified yet."""
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
        return " or ".join(sorted(found)) or "nobody"


def _decoded(text: str) -> bytes:
    """Of Base64; empty, which is no user and no password, for what is none."""
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return b""


def make_authentication(configuration: AuthenticationConfiguration, clock: Clock) -> Authentication:
    """The providers that are configured. Raises `ConfigurationError` for a key or a file that cannot be used."""
    providers: dict[str, Provider] = {}
    issuers: IssuerProvider | None = None
    certificates: Provider | None = None
    # Each provider is imported where it is wanted: their libraries are an extra, and take a while.
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
        from quire.security.certificate_roles import CertificateRoles

        certificates = CertificateRoles(configuration.certificate, clock)
    return Authentication(configuration.anonymous_role, providers, issuers, certificates)
