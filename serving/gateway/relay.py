"""Two connections whose bytes are passed on as they come, with back-pressure and one end.

A side that cannot write stops the other's reading, so that a slow consumer slows its broker and not this process's
memory. When one side is gone, what it sent before is still delivered, and the other is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from quire.runtime.limits import KIB, MIB

WRITE_HIGH_BYTES: Final = 1 * MIB
WRITE_LOW_BYTES: Final = 256 * KIB


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
    client.set_protocol(Relay(broker, count, ended))
    broker.set_protocol(Relay(client, count, lambda: None))
