"""The provider of the method `tls`: the client's certificate says its role; see `certificates` for the rule."""

from __future__ import annotations

from quire.runtime.clock import Clock
from quire.runtime.errors import ConfigurationError, NotAuthenticated
from quire.security.certificates import RoleRule, expires_at, read
from quire.security.configuration import Certificate
from quire.security.identity import Identity, role_of


class CertificateRoles:
    """TLS has proven the certificate, when the connection began; whether it has expired since is looked at here."""

    def __init__(self, settings: Certificate, clock: Clock) -> None:
        """Raises `ConfigurationError` for a pattern that is none."""
        self._rule = RoleRule(settings.pattern)
        self._prefix = settings.prefix
        self._clock = clock

    async def authenticate(self, data: bytes, address: str = "") -> Identity:
        """`data` is the certificate, DER. Raises `NotAuthenticated`."""
        try:
            certificate = read(data)
        except ConfigurationError:
            raise NotAuthenticated("the client's certificate cannot be read") from None
        role = role_of(self._rule.role_of(certificate), "what the certificate's subject says", self._prefix)
        expires_ms = int(expires_at(certificate).timestamp() * 1000)
        if expires_ms <= self._clock.now_ms():
            raise NotAuthenticated("the client's certificate has expired; connect with a new one")
        return Identity(role, "tls", expires_ms)

    async def look(self) -> None: ...

    def trusts(self, proof: str) -> bool:
        """There is none: time alone ends a certificate."""
        return False
