"""Who a certificate says its holder is: the role of a client, and whether it is a process of the cluster.

The other side has proven already that the certificate is its own and that a trusted authority has signed it (`tls`).
Here it is only read. A role is the subject's common name; or, by a rule, what the first group of a regular expression
finds in the subject, all of which it must fit, written `CN=reports,OU=analytics,O=Example` (RFC 4514: a comma within a
field is escaped, `=` is not). So write out every field: with `.*` a field's text could pass for another field. A rule
that does not fit gives no role.
"""

from __future__ import annotations

from datetime import datetime

import re2
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from quire.runtime.errors import ConfigurationError


class RoleRule:
    """`pattern` "": the common name. Raises `ConfigurationError` for what is no regular expression with a group."""

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
                f"the rule for certificates {pattern[:100]!r} is no regular expression: {_words(error)}"
            ) from None
        if self._expression.groups != 1:
            raise ConfigurationError(
                f"the rule for certificates {pattern!r} must have one group, the role, such as CN=([^,]+),OU=x"
            )

    def role_of(self, certificate: x509.Certificate) -> str:
        """The role, or "" when the certificate names none."""
        subject = certificate.subject
        if self._expression is None:
            names = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
            return str(names[0].value) if len(names) == 1 else ""
        found = self._expression.fullmatch(subject.rfc4514_string())
        return (found[1] or "") if found is not None else ""


def read(der: bytes) -> x509.Certificate:
    """Raises `ConfigurationError` for what is none."""
    try:
        return x509.load_der_x509_certificate(der)
    except ValueError as error:
        raise ConfigurationError(f"the certificate cannot be read: {error}") from None


def expires_at(certificate: x509.Certificate) -> datetime:
    return certificate.not_valid_after_utc


def is_of_a_process(certificate: x509.Certificate) -> bool:
    """Whether it may be shown by a server. Those of users may not, whoever signed them.

    A certificate that says nothing of what it is for may be used for everything.
    """
    return _is_for(certificate, ExtendedKeyUsageOID.SERVER_AUTH)


def is_for_clients(pem: bytes) -> bool:
    """Whether the first certificate of a file may be shown by who calls. Those of public authorities mostly may not."""
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
