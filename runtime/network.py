"""Addresses of connections, and detection of dead peers by TCP keepalive.

A peer that loses power or its network sends no FIN. Without keepalive, its idle connection would stay open forever, and
a connection with bytes in flight for 15 minutes.
"""

from __future__ import annotations

import asyncio
import socket
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final

IDLE_S: Final = 5
PROBE_INTERVAL_S: Final = 2
PROBES: Final = 3
"""A silent peer is detected after IDLE_S + PROBES * PROBE_INTERVAL_S seconds."""

UNACKNOWLEDGED_MS: Final = 15_000
"""Time after which a peer that does not acknowledge bytes is dead, in milliseconds."""

_HOSTS: Final = (32, 64)
"""Prefix bits of IPv4 and IPv6 for one host, which may have a whole IPv6 /64."""

_WIDE: Final = (32, 48)
"""Prefix bits of IPv4 and IPv6 for one site, which may have a whole IPv6 /48 (RFC 6177)."""

_SITES: Final = (24, 48)


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """Enable TCP keepalive and TCP_USER_TIMEOUT where the system has them.

    Connections of dead peers are then closed.
    """
    sock: socket.socket | None = transport.get_extra_info("socket")
    if sock is None or not hasattr(socket, "TCP_USER_TIMEOUT"):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_INTERVAL_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)


def peer_address(transport: asyncio.BaseTransport | None) -> str:
    """Return `/host:port` of the peer; "" for a closed connection, or one without an address."""
    peer = None if transport is None else transport.get_extra_info("peername")
    return f"/{peer[0]}:{peer[1]}" if peer else ""


def network_of(address: str) -> str:
    """Return the host of `/host:port`, for IPv6 its /64 network; "" for no address."""
    return _network(address, _HOSTS)


def wide_network_of(address: str) -> str:
    """Return the host of `/host:port`, for IPv6 its site's network (/48)."""
    return _network(address, _WIDE)


def site_of(address: str) -> str:
    """Return the neighbourhood of `/host:port`, which may belong to one owner: an IPv4 /24, or an IPv6 /48."""
    return _network(address, _SITES)


def _network(address: str, bits: tuple[int, int]) -> str:
    if not address:
        return ""
    host = address.removeprefix("/").rpartition(":")[0]
    try:
        found = ip_address(host.partition("%")[0].strip("[]"))
    except ValueError:
        return host
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    length = bits[isinstance(found, IPv6Address)]
    return (
        str(found) if length == found.max_prefixlen else str(ip_network((int(found), length), strict=False))
    )
