"""Where a broker is reached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class Addresses:
    """Known when the broker listens; "" for a port that is closed, and where there is no REST interface."""

    service_url: str
    """`pulsar://host:port` for clients."""
    listeners: Mapping[str, str]
    """Its URLs for clients in other networks, by the names of listeners."""
    http_url: str = ""
    """For operators and other brokers."""
    service_url_tls: str = ""
    """`pulsar+ssl://host:port`."""
    listeners_tls: Mapping[str, str] = field(default_factory=dict)
    http_url_tls: str = ""

    @property
    def all(self) -> list[str]:
        """Those that are open, without TLS first."""
        urls = (self.service_url, self.http_url, self.service_url_tls, self.http_url_tls)
        return [url for url in urls if url]

    @property
    def name(self) -> str:
        """`host:port`, by which brokers of a cluster are told apart."""
        return (self.service_url or self.service_url_tls).partition("://")[2]
