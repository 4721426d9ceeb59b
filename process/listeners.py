"""Listeners of a process for clients: plain ports, TLS ports, or both; and their advertised addresses.

The settings `listen` and `http` are the plain ports. The security file has the TLS ports, and may close the plain ones.
"""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from quire.runtime.errors import ConfigurationError
from quire.runtime.settings import format_address, parse_address
from quire.security.listener import TlsListener
from quire.serving.settings import BrokerSettings

if TYPE_CHECKING:
    from quire.security.security import Security

EVERYWHERE: Final = ("0.0.0.0", "::", "")


@dataclass(frozen=True)
class Listeners:
    """Bound ports of a process; None for a closed port."""

    clients: socket.socket | None = None
    http: socket.socket | None = None
    clients_tls: TlsListener | None = None
    http_tls: TlsListener | None = None

    def audit(self, security: Security | None) -> None:
        """Record clients with untrusted certificates in the audit log: their connections end before CONNECT."""
        for listener in (self.clients_tls, self.http_tls):
            if listener is not None and security is not None:
                listener.on_bad_certificate = security.audit.bad_certificate

    @property
    def service_url(self) -> str:
        """Listening address as `pulsar://host:port`; "" if the plain port is closed."""
        return "" if self.clients is None else url_of("pulsar", self.clients)

    @property
    def http_url(self) -> str:
        return "" if self.http is None else url_of("http", self.http)

    @property
    def urls(self) -> list[str]:
        """Addresses of all ports, first those without TLS."""
        found = [self.service_url, self.http_url]
        for scheme, listener in (("pulsar+ssl", self.clients_tls), ("https", self.http_tls)):
            found.append("" if listener is None else f"{scheme}://{listener.address}")
        return [url for url in found if url]

    def http_url_at(self, advertise: str) -> str:
        """Return `http_url`; if the port listens on all addresses, with the host of `advertise`, if that is given."""
        url = urlsplit(self.http_url)
        host = urlsplit(advertise).hostname
        if not host or not self.http_url or url.hostname not in EVERYWHERE:
            return self.http_url
        return f"http://{format_address(host, url.port or 0)}"

    def with_tls(self, settings: BrokerSettings) -> BrokerSettings:
        """Return the settings with the address for TLS clients: the advertised host and the TLS port."""
        if self.clients_tls is None or settings.advertise_tls:
            return settings
        host, port = parse_address(self.clients_tls.address)
        if settings.advertise:
            host = urlsplit(settings.advertise).hostname or host
        elif host in EVERYWHERE:
            host = parse_address(settings.listen)[0]
        return replace(settings, advertise_tls=f"pulsar+ssl://{format_address(host, port)}")

    def http_url_tls_at(self, service_url_tls: str) -> str:
        """Return the `https://` address at the host of `service_url_tls`; "" without an HTTPS port."""
        if self.http_tls is None:
            return ""
        host, port = urlsplit(service_url_tls).hostname or "", parse_address(self.http_tls.address)[1]
        return f"https://{format_address(host, port)}"


def listen(address: str) -> socket.socket:
    """Bind a socket and listen. Raises `ConfigurationError` with the reason."""
    host, port = parse_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(1024)
    except OSError as error:
        sock.close()
        hint = "; choose another with --listen or --http" if error.errno == errno.EADDRINUSE else ""
        raise ConfigurationError(f"cannot listen on {address}: {error.strerror}{hint}") from error
    sock.setblocking(False)
    return sock


def url_of(scheme: str, sock: socket.socket) -> str:
    """Return the URL of a listening socket."""
    host, port = sock.getsockname()[:2]
    return f"{scheme}://{format_address(host, port)}"
