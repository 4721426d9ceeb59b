"""What goes out over one connection: everything of a turn in one write.

    write(…), write_many(…) ─▶ one list ─▶ one writelines when the turn is over

A connection whose peer does not read is told to its consumers as not writable, so that they are sent nothing more. A
peer that asks on and on meanwhile is not read either (`Stop.ANSWERS`).
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
"""Unsent bytes at which consumers of the connection are sent nothing more."""

WRITE_LOW_BYTES: Final = 256 * KIB


class Outbound:
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
        """Of `_out`, what was dispatched to consumers in this turn."""
        self._unread_bytes = 0
        """Answers queued since the write buffer is full."""
        self.is_closed = False
        self.is_writable = True

    def write(self, data: Buffer) -> None:
        """Queue bytes; all of a turn leave in one write. Nothing once the connection is closed."""
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
        """Queue what is dispatched to a consumer."""
        if self.is_closed:
            return
        if not self._out:
            self._at_end(self._flush)
        self._out += parts
        self._delivery_bytes += sum(map(len, parts))
        if self._delivery_bytes >= WRITE_HIGH_BYTES:
            # Now, so that `pause_writing` is called before any other consumer of this connection is sent more.
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
        """See `quire.runtime.tls`."""
        return peer_certificate(self._transport)

    @property
    def unsent_bytes(self) -> int:
        """What waits for the peer to read."""
        return self._transport.get_write_buffer_size()

    def resumed(self) -> None:
        """The peer reads again."""
        self.is_writable = True
        self._unread_bytes = 0
        self._inbound.go_on(Stop.ANSWERS)

    def close(self) -> None:
        """Send what is queued and close."""
        if not self.is_closed:
            self._flush()
            self.is_closed = True
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self.is_closed = True
        self._transport.abort()

    def lost(self) -> None:
        """The connection is gone."""
        self.is_closed = True
        self._out.clear()
