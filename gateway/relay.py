"""Relay between two connections, which forwards bytes unchanged, with back-pressure.

When one side cannot be written to, reading from the other side pauses, so that a slow consumer slows its broker and
does not fill this process's memory. When one side is closed, its earlier bytes are still delivered, and then the other
side is closed. TCP keep-alive or the broker's pings detect a lost peer.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final

from quire.runtime.limits import KIB, MIB

WRITE_HIGH_BYTES: Final = 1 * MIB
WRITE_LOW_BYTES: Final = 256 * KIB

PROBE_AFTER_S: Final = 60
PROBE_EACH_S: Final = 15
PROBES_MAX: Final = 4


def keep_tcp_alive(transport: asyncio.BaseTransport) -> None:
    """Enable TCP keep-alive, for a side that gets no pings."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_AFTER_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_EACH_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES_MAX)


class Relay(asyncio.Protocol):
    """One side of a relay: its input is written to `other`; `count` is called with the number of bytes."""

    def __init__(
        self, other: asyncio.Transport, count: Callable[[int], None], ended: Callable[[], None]
    ) -> None:
        self._other = other
        self._write = other.write
        self._count = count
        self._ended = ended

    def data_received(self, data: bytes) -> None:
        self._count(len(data))
        self._write(data)

    def pause_writing(self) -> None:
        if not self._other.is_closing():
            self._other.pause_reading()

    def resume_writing(self) -> None:
        if not self._other.is_closing():
            self._other.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._other.close()
        self._ended()


def splice(
    client: asyncio.Transport,
    broker: asyncio.Transport,
    count: Callable[[int], None],
    ended: Callable[[], None],
) -> None:
    """Start forwarding; `ended` is called once, when the client's side is closed."""
    for transport in (client, broker):
        transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES, low=WRITE_LOW_BYTES)
        keep_tcp_alive(transport)
    client.set_protocol(Relay(broker, count, ended))
    broker.set_protocol(Relay(client, count, lambda: None))
