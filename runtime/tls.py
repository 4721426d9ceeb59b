"""TLS of clients: certificate files as an `SSLContext`, with readable errors.

A client trusts the configured authorities, else those of the system, and always verifies the host name of the
certificate. Verification cannot be turned off, because an interceptable connection would only look safe.

`ClientTls` has only paths, so it can be pickled and compared; contexts are created on use.
"""

from __future__ import annotations

import os
import ssl
from asyncio import BaseTransport
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from ssl import SSLContext, TLSVersion
from typing import Final

from quire.runtime.errors import ConfigurationError

PEM_BYTES_MAX: Final = 4 << 20
"""Limit of a PEM file. A file of all authorities of a system has 256 KiB."""


@dataclass(frozen=True)
class ClientTls:
    """Paths of PEM files. An empty `authority` means the system's; `certificate` and `key` authenticate the client."""

    authority: str = ""
    certificate: str = ""
    key: str = ""

    def context(self) -> SSLContext:
        """Return a context of the current files. It is shared, so do not change it.

        Raises `ConfigurationError` that contains the file.
        """
        return _context(self, tuple(changes_of(file) for file in self.files))

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.authority, self.certificate, self.key)))


@lru_cache(maxsize=8)
def _context(files: ClientTls, _as_they_are: tuple[object, ...]) -> SSLContext:
    context = SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # also verifies host names
    context.minimum_version = TLSVersion.TLSv1_2
    if files.authority:
        trust(context, files.authority)
    else:
        context.load_default_certs()
    if files.certificate or files.key:
        present(context, files.certificate, files.key)
    return context


def changes_of(file: str) -> tuple[int, int, int]:
    """Return a value that changes when a file is written or replaced.

    Symbolic links are followed, because mounted secrets consist of them.
    """
    try:
        found = os.stat(file)
    except OSError:
        return 0, 0, 0
    return found.st_ino, found.st_mtime_ns, found.st_size


def trust(context: SSLContext, authority: str) -> None:
    """Add the authorities in a file to a context. Raises `ConfigurationError`."""
    text = read_pem(authority, "the authority")
    try:
        context.load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigurationError(
            f"{authority} has no valid certificate of an authority ({_why(error)}); write the file again, as PEM"
        ) from None


def present(context: SSLContext, certificate: str, key: str) -> None:
    """Load `certificate`, a file that also has the intermediate certificates, and its key.

    Raises `ConfigurationError`.
    """
    if not certificate or not key:
        missing, other = ("certificate", key) if key else ("key", certificate)
        raise ConfigurationError(f"{other} needs a {missing}: set both, or neither")
    read_pem(certificate, "the certificate")
    if "ENCRYPTED" in read_pem(key, "the key"):
        raise ConfigurationError(
            f"the key {key} has a pass phrase, which a server cannot enter; use a key without one"
        )
    try:
        context.load_cert_chain(certificate, key)
    except (ssl.SSLError, OSError) as error:
        if getattr(error, "reason", "") == "KEY_VALUES_MISMATCH":
            raise ConfigurationError(
                f"the key {key} does not belong to the certificate {certificate}"
            ) from None
        raise ConfigurationError(
            f"{certificate} and {key} are not a certificate and its key in PEM format ({_why(error)})"
        ) from None


def read_pem(path: str, what: str) -> str:
    """Read a PEM file. Raises `ConfigurationError`, which quotes no content, because it may be a secret."""
    try:
        with Path(path).open("rb") as file:
            found = file.read(PEM_BYTES_MAX + 1)
        text = found.decode("ascii", "ignore")
    except OSError as error:
        raise ConfigurationError(f"cannot read {what} {path}: {error.strerror or error}") from None
    if len(found) > PEM_BYTES_MAX or "-----BEGIN " not in text:
        raise ConfigurationError(f"{what} {path} is not a PEM file (text with a line -----BEGIN …)")
    return text


def _why(error: Exception) -> str:
    return str(getattr(error, "reason", "") or error).lower().replace("_", " ")


def peer_certificate(transport: BaseTransport | None) -> bytes:
    """Return the peer's verified certificate in DER; b"" without a certificate, TLS, or a connection."""
    tls = None if transport is None else transport.get_extra_info("ssl_object")
    return (tls.getpeercert(binary_form=True) or b"") if tls is not None else b""


def why_failed(error: BaseException) -> str:
    """Return the reason of a failed handshake, and the side whose certificate is invalid."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message.rstrip('.')}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {_why(error)}"
    return str(error) or type(error).__name__
