"""Server and client contexts out of the configuration, made anew when a file of theirs changes.

Certificates live for months and some for hours; whoever renews them writes new files. A context is asked for at each
handshake, and looks at its files once in `LOOK_S`: when they have changed, it is made anew, and connections from then
on get the new one. Those that are open keep theirs. Files that cannot be used, such as a certificate whose key is not
written yet, change nothing: that is told once, and looked at again.

Between processes of one cluster (`between_processes`) both sides show a certificate that the cluster's authority has
signed, and the caller looks whether it is for the host that it called. Whether the other one may be there at all is
`certificates.is_of_a_process`: a certificate for users, of the same authority, opens no bookie.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from ssl import SSLContext, TLSVersion
from typing import Final, Literal

from quire.runtime.errors import ConfigurationError
from quire.runtime.tls import ClientTls, changes_of, present, trust
from quire.security.configuration import Configuration, Internal, Tls

LOOK_S: Final = 1.0

_VERSIONS: Final = {"1.2": TLSVersion.TLSv1_2, "1.3": TLSVersion.TLSv1_3}
_SHOWN: Final = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}

_log = logging.getLogger(__name__)

ClientCertificates = Literal["none", "optional", "required"]


class FollowedContext:
    """The context that `make` makes of `files`, as they are now. Raises `ConfigurationError` when it is made."""

    def __init__(
        self,
        make: Callable[[], SSLContext],
        files: Sequence[str],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make = make
        self._files = files
        self._now = now
        self._looked_at = now()
        self._seen = self._look()
        self._context = make()

    def current(self) -> SSLContext:
        """To be asked for at each handshake."""
        now = self._now()
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            seen = self._look()
            if seen != self._seen:
                self._change(seen)
        return self._context

    def _look(self) -> list[tuple[int, int, int]]:
        return [changes_of(file) for file in self._files]

    def _change(self, seen: list[tuple[int, int, int]]) -> None:
        self._seen = seen
        try:
            self._context = self._make()
        except ConfigurationError as error:
            _log.error("certificates have changed and cannot be used, so the former ones stay: %s", error)
        else:
            _log.info("certificates have changed: %s", ", ".join(self._files))


def for_clients(tls: Tls) -> FollowedContext:
    """What a process shows its clients. Raises `ConfigurationError`."""
    if not tls.certificate:
        raise ConfigurationError("[tls] of the security file needs a certificate and its key")
    if tls.client_certificates != "none" and not tls.authority:
        raise ConfigurationError(
            f"[tls] of the security file has client_certificates = {tls.client_certificates!r} and no authority "
            "that signs them"
        )
    return _server(tls.certificate, tls.key, tls.authority, tls.client_certificates, tls.minimum)


def _server(
    certificate: str, key: str, authority: str, shown: ClientCertificates, minimum: Literal["1.2", "1.3"]
) -> FollowedContext:
    def make() -> SSLContext:
        context = SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = _VERSIONS[minimum]
        context.options |= ssl.OP_NO_RENEGOTIATION  # else a client could ask for handshakes without end
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
    """Both ends of connections between brokers, bookies and gateways."""

    server: FollowedContext
    client: FollowedContext
    required: bool


def between_processes(configuration: Configuration) -> BetweenProcesses | None:
    """None where the file has no authority, or no certificate, that would do for it: connections inside are plain.

    Raises `ConfigurationError`.
    """
    files = _inside(configuration)
    required = configuration.internal is not None and configuration.internal.required
    if not files.authority or not files.certificate:
        if configuration.internal is not None:
            raise ConfigurationError(
                "[internal] of the security file needs a certificate, its key and an authority, or those of [tls]"
            )
        return None
    minimum = configuration.tls.minimum if configuration.tls is not None else "1.2"
    server = _server(files.certificate, files.key, files.authority, "required", minimum)
    if not _is_for_clients(files.certificate):
        if configuration.internal is not None:
            raise ConfigurationError(
                f"{files.certificate} may be shown by servers only, and processes call one another: name one under "
                "[internal] that clients may show as well"
            )
        return None
    return BetweenProcesses(server, _client(files), required)


def to_brokers(configuration: Configuration, *, shows_itself: bool = True) -> FollowedContext | None:
    """For gateways and brokers that call a broker where its clients do. None: without TLS.

    A gateway where nobody logs in must not show its certificate: it would pass for each client's.
    """
    tls, own = configuration.tls, configuration.client
    if tls is None and configuration.internal is None and not own.authority:
        return None
    inside = _inside(configuration)
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
    """Imported late: it needs a library that processes without a security file do without."""
    from quire.security.certificates import is_for_clients

    return is_for_clients(Path(file).read_bytes())


def _inside(configuration: Configuration) -> ClientTls:
    internal, tls = configuration.internal or Internal(), configuration.tls or Tls()
    own = internal if internal.certificate or internal.key else tls
    return ClientTls(internal.authority or tls.authority, own.certificate, own.key)
