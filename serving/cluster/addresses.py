"""Where a broker is reached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass
class Addresses:
    """Known when the broker listens; `http_url` is "" where it has no REST interface."""

    service_url: str
    """`pulsar://host:port` for clients."""
    listeners: Mapping[str, str]
    """Its URLs for clients in other networks, by the names of listeners."""
    http_url: str = ""
    """For operators and other brokers."""
