"""The client's side of TLS: files of certificates as an `SSLContext`, and errors of files in words.

A client trusts the authorities that it names, else those of the system, and always looks whether the certificate is for
the host that it asked for. Nothing here turns either off: a connection that anybody may read in the middle is no better
than a plain one, and looks as if it were.

`ClientTls` is paths and no more, so it may be pickled and compared; a context is made of it where it is used.
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
"""A file of all authorities that a system trusts has a quarter of a megabyte."""


@dataclass(frozen=True)
class ClientTls:
    """Paths of PEM files. `authority` "": the system's; `certificate` and `key`: what the client says it is."""

    authority: str = ""
    certificate: str = ""
    key: str = ""

    def context(self) -> SSLContext:
        """Of the files as they are now; others may have the same, so it is not to be changed.

        Raises `ConfigurationError` that names the file.
        """
        return _context(self, tuple(changes_of(file) for file in self.files))

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.authority, self.certificate, self.key)))


@lru_cache(maxsize=8)
def _context(files: ClientTls, _as_they_are: tuple[object, ...]) -> SSLContext:
    context = SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # which checks hosts' names
    context.minimum_version = TLSVersion.TLSv1_2
    if files.authority:
        trust(context, files.authority)
    else:
        context.load_default_certs()
    if files.certificate or files.key:
        present(context, files.certificate, files.key)
    return context


def changes_of(file: str) -> tuple[int, int, int]:
    """What changes when a file is written, or another one takes its place. Links are followed: mounted secrets are."""
    try:
        found = os.stat(file)
    except OSError:
        return 0, 0, 0
    return found.st_ino, found.st_mtime_ns, found.st_size


def trust(context: SSLContext, authority: str) -> None:
    """Certificates that an authority of the file has signed are believed. Raises `ConfigurationError`."""
    text = read_pem(authority, "the authority")
    try:
        context.load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigurationError(
            f"{authority} holds no whole certificate of an authority ({_why(error)}); write it anew, as PEM"
        ) from None


def present(context: SSLContext, certificate: str, key: str) -> None:
    """Show `certificate`, followed in its file by those between it and the authority. Raises `ConfigurationError`."""
    if not certificate or not key:
        missing, other = ("certificate", key) if key else ("key", certificate)
        raise ConfigurationError(f"{other} needs a {missing} beside it: name both, or neither")
    read_pem(certificate, "the certificate")
    if "ENCRYPTED" in read_pem(key, "the key"):
        raise ConfigurationError(
            f"the key {key} has a pass phrase, which nobody is here to type; take one without"
        )
    try:
        context.load_cert_chain(certificate, key)
    except (ssl.SSLError, OSError) as error:
        if getattr(error, "reason", "") == "KEY_VALUES_MISMATCH":
            raise ConfigurationError(f"the key {key} is not that of the certificate {certificate}") from None
        raise ConfigurationError(
            f"{certificate} and {key} are not a certificate and its key, as PEM ({_why(error)})"
        ) from None


def read_pem(path: str, what: str) -> str:
    """Raises `ConfigurationError`. A secret that stands in a wrong file is not told."""
    try:
        with Path(path).open("rb") as file:
            found = file.read(PEM_BYTES_MAX + 1)
        text = found.decode("ascii", "ignore")
    except OSError as error:
        raise ConfigurationError(f"{what} {path} cannot be read: {error.strerror or error}") from None
    if len(found) > PEM_BYTES_MAX or "-----BEGIN " not in text:
        raise ConfigurationError(f"{what} {path} is not a PEM file (a text with a line -----BEGIN …)")
    return text


def _why(error: Exception) -> str:
    return str(getattr(error, "reason", "") or error).lower().replace("_", " ")


def peer_certificate(transport: BaseTransport | None) -> bytes:
    """The other side's, DER, as TLS has verified it; empty when none came, without TLS, or without a connection."""
    tls = None if transport is None else transport.get_extra_info("ssl_object")
    return (tls.getpeercert(binary_form=True) or b"") if tls is not None else b""


def why_failed(error: BaseException) -> str:
    """What went wrong between two peers, in words that say whose certificate is to be mended."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message.rstrip('.')}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {_why(error)}"
    return str(error) or type(error).__name__
