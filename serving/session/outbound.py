"""Write side of one connection: all bytes of one event loop iteration (*turn*) are sent in one write.

    write(…), write_many(…) ─▶ one list ─▶ one writelines at the end of the turn

While the client does not read, the connection is not writable, and its consumers get no messages. If the client
continues to send requests meanwhile, the broker does not read the socket either (`Stop.ANSWERS`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from quire.runtime.limits import KIB, MIB, UNREAD_ANSWERS_BYTES_MAX
from quire.runtime.tls import peer_certificate
from quire.serving.session.inbound import Inbound, Stop
from quire.wire.block import Buffer

WRITE_HIGH_BYTES: Final = 1 * MIB
"""Number of unsent bytes above which the connection's consumers get no more messages."""

WRITE_LOW_BYTES: Final = 256 * KIB


class Outbound:
    """Write buffer of one connection."""

    def __init__(
        self,
        transport: asyncio.Transport,
        inbound: Inbound,
        at_end: Callable[[Callable[[], None]], object],
    ) -> None:
        transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES, low=WRITE_LOW_BYTES)
        self._transport = transport
        self._inbound = inbound
        self._at_end = at_end
        self._out: list[Buffer] = []
        self._delivery_bytes = 0
        """Number of bytes in `_out` that are messages for consumers."""
        self._unread_bytes = 0
        """Bytes of responses queued since the write buffer became full."""
        self.is_closed = False
        self.is_writable = True

    def write(self, data: Buffer) -> None:
        """Queue bytes; all bytes of a turn are sent in one write. After the connection is closed, they are dropped."""
        if self.is_closed:
            return
        if not self._out:
            self._at_end(self._flush)
        self._out.append(data)
        if not self.is_writable:
            self._unread_bytes += len(data)
            if self._unread_bytes >= UNREAD_ANSWERS_BYTES_MAX:
                self._inbound.stop(Stop.ANSWERS)

    def write_many(self, parts: Sequence[Buffer]) -> None:
        """Queue MESSAGE frames for a consumer."""
        if self.is_closed:
            return
        if not self._out:
            self._at_end(self._flush)
        self._out += parts
        self._delivery_bytes += sum(map(len, parts))
        if self._delivery_bytes >= WRITE_HIGH_BYTES:
            # flush now, so that asyncio calls `pause_writing` before another consumer of this connection gets messages
            self._flush()

    def _flush(self) -> None:
        out, self._out = self._out, []
        self._delivery_bytes = 0
        if not out:
            return
        if len(out) == 1:
            self._transport.write(out[0])
        else:
            self._transport.writelines(out)

    def peer_certificate(self) -> bytes:
        """Return the peer's TLS certificate; see `quire.runtime.tls`."""
        return peer_certificate(self._transport)

    @property
    def unsent_bytes(self) -> int:
        """Number of bytes in the write buffer, which the client has not read yet."""
        return self._transport.get_write_buffer_size()

    def resumed(self) -> None:
        """Resume writing, because the client reads again."""
        self.is_writable = True
        self._unread_bytes = 0
        self._inbound.go_on(Stop.ANSWERS)

    def close(self) -> None:
        """Send the queued bytes, then close the connection."""
        if not self.is_closed:
            self._flush()
            self.is_closed = True
            self._transport.close()

    def abort(self) -> None:
        """Close the connection without sending the queued bytes."""
        self.is_closed = True
        self._transport.abort()

    def lost(self) -> None:
        """Drop all queued bytes, because the connection is closed."""
        self.is_closed = True
        self._out.clear()
