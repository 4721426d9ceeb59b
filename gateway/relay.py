"""Two connections whose bytes are passed on as they come, with back-pressure and one end.

A side that cannot write stops the other's reading, so that a slow consumer slows its broker and not this process's
memory. When one side is gone, what it sent before is still delivered, and the other is closed. A side that vanished
without a word is found by TCP's own probes, or by the broker's pings.
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
    """Let the system find out that the other side is no more, where nobody pings it."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_AFTER_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_EACH_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES_MAX)


class Relay(asyncio.Protocol):
    """One side: what arrives here goes to `other`; `count` is told of the bytes."""

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
    """Pass on from now on; `ended` is called once, when the client's side is gone."""
    for transport in (client, broker):
        transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES, low=WRITE_LOW_BYTES)
        keep_tcp_alive(transport)
    client.set_protocol(Relay(broker, count, ended))
    broker.set_protocol(Relay(client, count, lambda: None))
