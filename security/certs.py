"""Certificate authority for tests, and for clusters without another authority: `quire certs`.

A directory contains the authority, `authority.pem` and `authority-key.pem`, and the certificates that it signed,
`NAME.pem` and `NAME-key.pem`. The authority's key can create any identity: store it where no server can read it.

Processes get certificates for servers and clients, with all their host names and addresses. Users get certificates
for clients only, with the role as common name. Keys use the curve P-256, which every client supports and
which has the cheapest handshake.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from quire.runtime.errors import AlreadyExists, ConfigurationError

AUTHORITY: Final = "authority"
AUTHORITY_DAYS: Final = 3_650
BEFORE: Final = timedelta(minutes=5)
"""Time before a certificate's creation from which it is valid, for peers whose clocks are behind."""

NAME_CHARACTERS_MAX: Final = 64
"""Maximum length of a common name in X.509 ([RFC 5280](https://www.rfc-editor.org/rfc/rfc5280), appendix A)."""


class Authority:
    """Certificate authority. `directory` contains its files, and those of certificates that it signs."""

    def __init__(
        self, directory: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
    ) -> None:
        self._directory = directory
        self._certificate = certificate
        self._key = key

    @classmethod
    def make(cls, directory: Path, name: str = "Quire's own authority") -> Authority:
        """Create an authority. Raises `AlreadyExists` or `ConfigurationError`."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _subject(name)
        usage = x509.BasicConstraints(ca=True, path_length=0)
        certificate = (
            _begun(subject, subject, key.public_key(), AUTHORITY_DAYS)
            .add_extension(usage, critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        _write(directory, AUTHORITY, certificate, key)
        return cls(directory, certificate, key)

    @classmethod
    def load(cls, directory: Path) -> Authority:
        """Load the authority in `directory`. Raises `ConfigurationError`."""
        certificate_file, key_file = files(directory, AUTHORITY)
        try:
            certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
            key = serialization.load_pem_private_key(key_file.read_bytes(), None)
        except (OSError, ValueError, TypeError) as error:
            raise ConfigurationError(
                f"{directory} contains no usable certificate authority: {error}"
            ) from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ConfigurationError(f"{key_file} is not a key from `quire certs make`")
        return cls(directory, certificate, key)

    def sign_process(self, name: str, hosts: Sequence[str], days: float) -> tuple[Path, Path]:
        """Create certificate and key for brokers, bookies and gateways on `hosts`. Raises `AlreadyExists`."""
        if not hosts:
            raise ConfigurationError(
                "a server's certificate needs a host: the name or address that clients connect to"
            )
        names = x509.SubjectAlternativeName([_host(host) for host in hosts])
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        return self._sign(name, days, x509.ExtendedKeyUsage(both), names)

    def sign_user(self, role: str, days: float) -> tuple[Path, Path]:
        """Create certificate and key for a client. Raises `AlreadyExists`."""
        return self._sign(role, days, x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]))

    def _sign(
        self,
        name: str,
        days: float,
        purpose: x509.ExtendedKeyUsage,
        names: x509.SubjectAlternativeName | None = None,
    ) -> tuple[Path, Path]:
        key = ec.generate_private_key(ec.SECP256R1())
        begun = (
            _begun(_subject(name), self._certificate.subject, key.public_key(), days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(purpose, critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
        )
        if names is not None:
            begun = begun.add_extension(names, critical=False)
        return _write(self._directory, name, begun.sign(self._key, hashes.SHA256()), key)


def files(directory: Path, name: str) -> tuple[Path, Path]:
    """Return the paths of certificate and key of `name`. Raises `ConfigurationError` if the name is a path."""
    if not name or name != Path(name).name or not name.isprintable() or name.startswith("."):
        raise ConfigurationError(
            f"{name[:100]!r} is not a valid name for a certificate: it must be a file name without a directory"
        )
    return directory / f"{name}.pem", directory / f"{name}-key.pem"


def _begun(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, days: float
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BEFORE)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _subject(name: str) -> x509.Name:
    if not 0 < len(name) <= NAME_CHARACTERS_MAX:
        raise ConfigurationError(f"the name of a certificate must have 1 to {NAME_CHARACTERS_MAX} characters")
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host.strip("[]")))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError:
        raise ConfigurationError(f"{host!r} is not a host name or address; write it in ASCII") from None


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _write(
    directory: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> tuple[Path, Path]:
    """Write the key, then the certificate. The key's file is created so that only its owner may read it."""
    certificate_file, key_file = files(directory, name)
    for file in (certificate_file, key_file):
        if file.exists():
            raise AlreadyExists(f"{file} already exists; remove it if it is unused")
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(key_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(private)
        certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    except OSError as error:
        raise ConfigurationError(f"cannot write into {directory}: {error.strerror or error}") from None
    return certificate_file, key_file
