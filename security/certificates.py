"""Reader of peers' certificates: the role of a client, and whether a peer is a process of the cluster.

`tls` has already verified that the peer owns the certificate and that a trusted authority signed it. This module only
reads it. A role is the subject's common name, or, with a rule, the first group of a regular expression that the whole
subject must match, written `CN=reports,OU=analytics,O=Example` (RFC 4514: a comma within a field is escaped, `=` is
not). So the rule should contain each field: with `.*`, one field's text could be taken for another field. A certificate
that does not match the rule has no role.
"""

from __future__ import annotations

from datetime import datetime

import re2
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from quire.runtime.clock import Clock
from quire.runtime.errors import ConfigurationError, NotAuthenticated
from quire.security.configuration import Certificate
from quire.security.identity import Identity, role_of


class RoleRule:
    """Rule for the role in a subject: `pattern`, a regular expression with one group, or "" for the common name.

    Raises `ConfigurationError`.
    """

    def __init__(self, pattern: str = "") -> None:
        self._expression = None
        if not pattern:
            return
        options = re2.Options()
        options.log_errors = False
        try:
            self._expression = re2.compile(pattern, options)
        except re2.error as error:
            raise ConfigurationError(
                f"the certificate pattern {pattern[:100]!r} is not a regular expression: {_words(error)}"
            ) from None
        if self._expression.groups != 1:
            raise ConfigurationError(
                f"the certificate pattern {pattern!r} must have one group for the role, such as CN=([^,]+),OU=x"
            )

    def role_of(self, certificate: x509.Certificate) -> str:
        """Return the role, or "" if the certificate contains none."""
        subject = certificate.subject
        if self._expression is None:
            names = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
            return str(names[0].value) if len(names) == 1 else ""
        found = self._expression.fullmatch(subject.rfc4514_string())
        return (found[1] or "") if found is not None else ""


class CertificateRoles:
    """Provider of the method `tls`, which reads the role from the client's certificate.

    TLS has verified the certificate when the connection began. This class only checks whether it has expired since.
    """

    def __init__(self, settings: Certificate, clock: Clock) -> None:
        """Read the pattern. Raises `ConfigurationError` if it is malformed."""
        self._rule = RoleRule(settings.pattern)
        self._prefix = settings.prefix
        self._clock = clock

    async def authenticate(self, data: bytes, address: str = "") -> Identity:
        """Return the identity of a certificate (DER). Raises `NotAuthenticated`."""
        try:
            certificate = read(data)
        except ConfigurationError:
            raise NotAuthenticated("the client's certificate cannot be read") from None
        role = role_of(self._rule.role_of(certificate), "the role in the certificate's subject", self._prefix)
        expires_ms = int(expires_at(certificate).timestamp() * 1000)
        if expires_ms <= self._clock.now_ms():
            raise NotAuthenticated("the client's certificate has expired; reconnect with a new one")
        return Identity(role, "tls", expires_ms, prefix=self._prefix)

    async def look(self) -> None: ...

    def trusts(self, proof: str) -> bool:
        """Return False, because an identity from a certificate has no proof; it ends only when it expires."""
        return False


def read(der: bytes) -> x509.Certificate:
    """Parse a certificate. Raises `ConfigurationError` if it is malformed."""
    try:
        return x509.load_der_x509_certificate(der)
    except ValueError as error:
        raise ConfigurationError(f"the certificate cannot be read: {error}") from None


def expires_at(certificate: x509.Certificate) -> datetime:
    return certificate.not_valid_after_utc


def is_of_a_process(certificate: x509.Certificate) -> bool:
    """Return whether the certificate is valid for servers, so that a process of the cluster may present it.

    A user's certificate is not, even if the same authority signed it. A certificate without an extended key usage is
    valid for everything.
    """
    return _is_for(certificate, ExtendedKeyUsageOID.SERVER_AUTH)


def is_for_clients(pem: bytes) -> bool:
    """Return whether the first certificate in `pem` is valid for clients; most public authorities exclude this use."""
    return _is_for(x509.load_pem_x509_certificate(pem), ExtendedKeyUsageOID.CLIENT_AUTH)


def _is_for(certificate: x509.Certificate, purpose: x509.ObjectIdentifier) -> bool:
    try:
        return purpose in certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return True
    except ValueError:
        return False


def _words(error: re2.error) -> str:
    said = error.args[0] if error.args else error
    return said.decode(errors="replace") if isinstance(said, bytes) else str(said)
