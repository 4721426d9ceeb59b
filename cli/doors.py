"""Where a process listens to its clients: plain ports, ports with TLS, or both; and what others are told of them.

The settings `listen` and `http` are the plain ports. The security file has those with TLS, and may close the plain
ones.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from quire.cli.parts import Parts, listen, url_of
from quire.runtime.settings import format_address, parse_address
from quire.security import tls
from quire.security.configuration import Configuration
from quire.security.listener import TlsListener
from quire.serving.settings import BrokerSettings

if TYPE_CHECKING:
    from quire.security.security import Security

EVERYWHERE: Final = ("0.0.0.0", "::", "")


@dataclass(frozen=True)
class Doors:
    """None: closed."""

    clients: socket.socket | None
    http: socket.socket | None
    clients_tls: TlsListener | None
    http_tls: TlsListener | None

    def audit(self, security: Security | None) -> None:
        """Write down who shows a certificate that is not trusted: he does not come as far as to log in."""
        for door in (self.clients_tls, self.http_tls):
            if door is not None and security is not None:
                door.on_bad_certificate = security.audit.bad_certificate

    @property
    def service_url(self) -> str:
        """`pulsar://host:port` of the listening address; "" when it is closed."""
        return "" if self.clients is None else url_of("pulsar", self.clients)

    @property
    def http_url(self) -> str:
        return "" if self.http is None else url_of("http", self.http)

    @property
    def urls(self) -> list[str]:
        """All of them, by where they listen; those without TLS first."""
        found = [self.service_url, self.http_url]
        if self.clients_tls is not None and self.http_tls is not None:
            found += [f"pulsar+ssl://{self.clients_tls.address}", f"https://{self.http_tls.address}"]
        return [url for url in found if url]


def open_doors(parts: Parts, clients: str, http: str, security: Configuration) -> Doors:
    """Bind them all; nobody is let in yet. `clients` and `http` are plain. Raises `ConfigurationError`."""
    configured = security.tls
    if configured is None:
        return Doors(parts.listen(clients), parts.listen(http), None, None)
    context = tls.for_clients(configured)
    return Doors(
        parts.listen(clients) if configured.plain else None,
        parts.listen(http) if configured.plain else None,
        listen_tls(parts, configured.listen, context),
        listen_tls(parts, configured.http, context),
    )


def listen_tls(
    parts: Parts, address: str, context: tls.FollowedContext, *, takes_plain: bool = False
) -> TlsListener:
    """Raises `ConfigurationError`."""
    listener = TlsListener(listen(address), context, takes_plain=takes_plain)
    parts.callback(listener.close)
    return listener


def with_tls(settings: BrokerSettings, doors: Doors) -> BrokerSettings:
    """The settings, with what clients that speak TLS are told: the host of what others are told, the port with TLS."""
    if doors.clients_tls is None or settings.advertise_tls:
        return settings
    host, port = parse_address(doors.clients_tls.address)
    if settings.advertise:
        host = urlsplit(settings.advertise).hostname or host
    elif host in EVERYWHERE:
        host = parse_address(settings.listen)[0]
    return replace(settings, advertise_tls=f"pulsar+ssl://{format_address(host, port)}")


def http_url_tls(service_url_tls: str, doors: Doors) -> str:
    """`https://` at the host of `service_url_tls`; "" when there is no such port."""
    if doors.http_tls is None:
        return ""
    host, port = urlsplit(service_url_tls).hostname or "", parse_address(doors.http_tls.address)[1]
    return f"https://{format_address(host, port)}"
