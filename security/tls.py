"""TLS contexts for servers and clients, created again when one of their files changes.

Certificates are valid for months or hours, and are renewed by writing new files. Each handshake gets the current
context (`followed`): new connections use the current files, and open ones keep theirs.

Between processes of a cluster (`between_processes`), both sides present a certificate that the cluster's authority
signed, and the caller verifies the host name. `certificates.is_of_a_process` decides whether the peer may be a
process: a bookie refuses a user's certificate from the same authority.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from ssl import SSLContext, TLSVersion
from typing import Final, Literal

from quire.runtime.errors import ConfigurationError
from quire.runtime.tls import ClientTls, present, trust
from quire.security.configuration import Configuration, Internal, Tls
from quire.security.followed import Followed

_VERSIONS: Final = {"1.2": TLSVersion.TLSv1_2, "1.3": TLSVersion.TLSv1_3}
_SHOWN: Final = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}

ClientCertificates = Literal["none", "optional", "required"]
FollowedContext = Followed[SSLContext]


def for_clients(tls: Tls) -> FollowedContext:
    """Return the server context for clients' connections. Raises `ConfigurationError`."""
    if not tls.certificate:
        raise ConfigurationError("[tls] of the security file needs a certificate and its key")
    if tls.client_certificates != "none" and not tls.authority:
        raise ConfigurationError(
            f"[tls] of the security file has client_certificates = {tls.client_certificates!r} but no authority "
            "that signs them"
        )
    return _server(tls.certificate, tls.key, tls.authority, tls.client_certificates, tls.minimum)


def _server(
    certificate: str, key: str, authority: str, shown: ClientCertificates, minimum: Literal["1.2", "1.3"]
) -> FollowedContext:
    def make() -> SSLContext:
        context = SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = _VERSIONS[minimum]
        context.options |= ssl.OP_NO_RENEGOTIATION  # else a client could request handshakes endlessly
        present(context, certificate, key)
        if shown != "none":
            trust(context, authority)
            context.verify_mode = _SHOWN[shown]
        return context

    return FollowedContext(make, [certificate, key, *([authority] if shown != "none" else [])])


def _client(files: ClientTls) -> FollowedContext:
    return FollowedContext(files.context, files.files)


@dataclass(frozen=True)
class BetweenProcesses:
    """TLS contexts of both sides for connections between brokers, bookies and gateways."""

    server: FollowedContext
    client: FollowedContext
    required: bool


def between_processes(configuration: Configuration) -> BetweenProcesses | None:
    """Return contexts for connections between processes; None without a suitable authority or certificate.

    Raises `ConfigurationError`.
    """
    files = files_inside(configuration)
    required = configuration.internal is not None and configuration.internal.required
    if not files.authority or not files.certificate:
        if configuration.internal is not None:
            raise ConfigurationError(
                "[internal] of the security file needs a certificate, its key and an authority (CA): set them there, "
                "or in [tls]"
            )
        return None
    minimum = configuration.tls.minimum if configuration.tls is not None else "1.2"
    server = _server(files.certificate, files.key, files.authority, "required", minimum)
    if not _is_for_clients(files.certificate):
        if configuration.internal is not None:
            raise ConfigurationError(
                f"{files.certificate} is valid for servers only, but processes also connect as clients: "
                "set a certificate in "
                "[internal] that is valid for clients as well"
            )
        return None
    return BetweenProcesses(server, _client(files), required)


def to_brokers(configuration: Configuration, *, shows_itself: bool = True) -> FollowedContext | None:
    """Return the client context for connecting to a broker's client port, or None to connect without TLS.

    A gateway without authentication must not present its certificate, because brokers would authenticate its clients by
    it.
    """
    tls, own = configuration.tls, configuration.client
    if tls is None and configuration.internal is None and not own.authority:
        return None
    inside = files_inside(configuration)
    authority = own.authority or (tls.authority if tls is not None else "") or inside.authority
    if not shows_itself:
        return _client(ClientTls(authority))
    if own.certificate:
        return _client(ClientTls(authority, own.certificate, own.key))
    if not inside.certificate:
        return _client(ClientTls(authority))
    shown = ClientTls(authority, inside.certificate, inside.key)
    checked = _client(shown)
    return checked if _is_for_clients(inside.certificate) else _client(ClientTls(authority))


def _is_for_clients(file: str) -> bool:
    """Return whether a certificate is valid for clients. The import is here because the library is optional."""
    from quire.security.certificates import is_for_clients

    return is_for_clients(Path(file).read_bytes())


def files_inside(configuration: Configuration) -> ClientTls:
    """Return the files for TLS between processes; a field is empty if its file is not configured."""
    internal, tls = configuration.internal or Internal(), configuration.tls or Tls()
    own = internal if internal.certificate or internal.key else tls
    return ClientTls(internal.authority or tls.authority, own.certificate, own.key)
