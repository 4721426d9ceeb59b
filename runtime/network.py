"""Where connections come from, and those that are dead and do not say so.

A peer that loses power, or is cut off, says nothing; without probes its connection stays open for ever where nobody
asks anything, and for a quarter of an hour where bytes wait for it.
"""

from __future__ import annotations

import asyncio
import socket
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final

IDLE_S: Final = 5
PROBE_INTERVAL_S: Final = 2
PROBES: Final = 3
"""A silent peer is known after IDLE_S + PROBES * PROBE_INTERVAL_S."""

UNACKNOWLEDGED_MS: Final = 15_000
"""Bytes that the peer's system did not take for so long mean that it is gone."""

_NETWORK_BITS: Final = 64


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """Let the system find out about a dead peer, where it can; the connection is then lost in the ordinary way."""
    sock: socket.socket | None = transport.get_extra_info("socket")
    if sock is None or not hasattr(socket, "TCP_USER_TIMEOUT"):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_INTERVAL_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)


def peer_address(transport: asyncio.BaseTransport | None) -> str:
    """`/host:port` of the other side; empty when it is gone, or has none."""
    peer = None if transport is None else transport.get_extra_info("peername")
    return f"/{peer[0]}:{peer[1]}" if peer else ""


def network_of(address: str) -> str:
    """Of `/host:port` the host; of IPv6 its network (/64), for one machine may have all of that. "" for no address."""
    host = address.removeprefix("/").rpartition(":")[0]
    try:
        found = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if not isinstance(found, IPv6Address):
        return host
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ip_network((int(found), _NETWORK_BITS), strict=False))
