"""TCP proxy with the faults of networks: it holds back or delays bytes in either direction, and resets connections.

    proxy = Proxy("127.0.0.1:3181")
    address = await proxy.start()
    proxy.answers.cut()         # the target's bytes do not arrive; the connection stays open, as with a cut cable
    proxy.answers.mend()        # now they arrive, in order
    proxy.requests.delay_s = 0.3
    proxy.reset()               # every connection is lost, new ones are accepted

All connections of a pair of processes share a `Link`, which has a `Direction` each way. A proxy has one link, unless
`link_of` finds the link of a new connection by its client's address. Then each client of a target can be cut off by
itself.

Bytes are not lost by a cut, because TCP retransmits them after it. The end of a connection is also held back by a cut.
The proxy reads only a little more than it can forward, so it passes on back-pressure. It differs from a real network in
one respect: a connection can be opened during a cut, but gets no response.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import cast

_AHEAD_BYTES = 1 << 20
_NO_LINGER = struct.pack("ii", 1, 0)


class Direction:
    """One direction of a link, shared by all its connections."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        """Delay between the arrival and the forwarding of each piece. Pieces keep their order."""
        self.is_cut = False
        self.ends: set[_End] = set()
        """Sockets whose received bytes are forwarded in this direction."""
        self._mended = asyncio.Event()
        self._mended.set()

    def cut(self) -> None:
        self.is_cut = True
        self._mended.clear()
        for end in self.ends:
            end.look()

    def mend(self) -> None:
        self.is_cut = False
        self._mended.set()
        for end in list(self.ends):
            end.look()

    async def until_mended(self) -> None:
        await self._mended.wait()


class Link:
    """Both directions between one client and one target.

    If `refuses`, new connections are reset at once. If `answer` is not empty, new connections get it as the response
    to their first request, which does not reach the target.
    """

    def __init__(self) -> None:
        self.requests = Direction()
        self.answers = Direction()
        self.refuses = False
        self.answer = b""

    def cut(self) -> None:
        """Cut both directions."""
        self.requests.cut()
        self.answers.cut()

    def refuse(self) -> None:
        self.refuses = True
        self.reset()

    def turn_away(self, answer: bytes) -> None:
        """Answer every request with `answer`, like a busy server. Reset existing connections."""
        self.answer = answer
        self.reset()

    def slow(self, delay_s: float) -> None:
        """Set the delay of both directions."""
        self.requests.delay_s = self.answers.delay_s = delay_s

    def mend(self) -> None:
        self.refuses = False
        self.answer = b""
        self.slow(0.0)
        self.requests.mend()
        self.answers.mend()

    def reset(self) -> None:
        """Reset every connection."""
        for end in (*self.requests.ends, *self.answers.ends):
            end.abort()


class _End(asyncio.Protocol):
    """One of a connection's two sockets. Its received bytes are sent to the socket `other`, by the direction `way`."""

    def __init__(self, way: Direction) -> None:
        self._way = way
        self._waiting: deque[tuple[float, bytes]] = deque()
        """Received pieces, each with the time at which it is due. An empty piece is the end of the connection."""
        self._waiting_bytes = 0
        self._is_full = False
        """True while the send buffer of the other socket is full."""
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self.other: _End | None = None
        self.transport: asyncio.Transport | None = None

    # -- received from this socket ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._way.ends.add(self)
        self.look()

    def data_received(self, data: bytes) -> None:
        self._waiting.append((self._loop.time() + self._way.delay_s, data))
        self._waiting_bytes += len(data)
        self.look()

    def connection_lost(self, error: Exception | None) -> None:
        self._waiting.append((self._loop.time() + self._way.delay_s, b""))
        self.look()

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.set_full(True)

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.set_full(False)

    # -- forwarded to the other socket -----------------------------------------------------------------

    def join(self, other: _End) -> None:
        self.other = other
        self.look()

    def set_full(self, is_full: bool) -> None:
        self._is_full = is_full
        self.look()

    def look(self) -> None:
        """Forward all pieces that are due, and resume reading if the buffer allows it."""
        assert self.transport is not None
        may_pass = self.other is not None and not self._way.is_cut and not self._is_full
        while may_pass and self._waiting and self._waiting[0][0] <= self._loop.time():
            self._pass_on(self._waiting.popleft()[1])
        if self.transport.is_closing():
            return
        if may_pass and self._waiting_bytes < _AHEAD_BYTES:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()
        self._arm(may_pass)

    def _pass_on(self, data: bytes) -> None:
        assert self.other is not None and self.other.transport is not None
        self._waiting_bytes -= len(data)
        if not data:
            self._way.ends.discard(self)
            self.other.transport.close()
        elif not self.other.transport.is_closing():
            self.other.transport.write(data)

    def _arm(self, may_pass: bool) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if may_pass and self._waiting:
            self._timer = self._loop.call_at(self._waiting[0][0], self.look)

    def abort(self) -> None:
        if self.transport is not None:
            _abort(self.transport)


def _abort(transport: asyncio.Transport) -> None:
    """Close a connection with a TCP reset, so that the peer gets an error instead of the end of the stream."""
    open_socket = transport.get_extra_info("socket")
    if open_socket.fileno() >= 0:
        open_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    transport.abort()


class Proxy:
    """Proxy to `target`, a `host:port`, which need not listen yet."""

    def __init__(self, target: str, link_of: Callable[[tuple[str, int]], Link] | None = None) -> None:
        host, _, port = target.rpartition(":")
        self.target = (host, int(port))
        self.link = Link()
        self.address = ""
        self.connections = 0
        self._link_of = link_of or (lambda _: self.link)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def requests(self) -> Direction:
        return self.link.requests

    @property
    def answers(self) -> Direction:
        return self.link.answers

    async def start(self) -> str:
        """Start listening, and return the address that replaces the target's."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self.address

    async def stop(self) -> None:
        self._server.close()
        self.link.mend()
        self.reset()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Cut both directions."""
        self.link.cut()

    def mend(self) -> None:
        self.link.mend()

    def reset(self) -> None:
        """Reset every connection."""
        self.link.reset()

    def _accept(self) -> asyncio.Protocol:
        return _Accepted(self)

    def accepted(self, transport: asyncio.Transport) -> asyncio.Protocol | None:
        """Return the protocol of a new client's socket; None if the connection is refused."""
        self.connections += 1
        link = self._link_of(transport.get_extra_info("peername"))
        if link.refuses:
            _abort(transport)
            return None
        if link.answer:
            return _TurnedAway(transport, link.answer)
        near = _End(link.requests)
        near.connection_made(transport)
        task = asyncio.get_running_loop().create_task(self._connect(near, link))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return near

    async def _connect(self, near: _End, link: Link) -> None:
        await link.requests.until_mended()
        far = _End(link.answers)
        try:
            await asyncio.get_running_loop().create_connection(lambda: far, *self.target)
        except OSError:
            await link.answers.until_mended()
            near.abort()
            return
        far.join(near)
        near.join(far)


class _Accepted(asyncio.Protocol):
    """Protocol of a connection until its link is known; then it is replaced by the protocol of its socket."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        made = cast(asyncio.Transport, transport)
        end = self._proxy.accepted(made)
        if end is not None:
            made.set_protocol(end)


class _TurnedAway(asyncio.Protocol):
    """Connection of an HTTP client whose request gets a fixed response. The client closes the connection."""

    def __init__(self, transport: asyncio.Transport, answer: bytes) -> None:
        self._transport = transport
        self._answer = answer
        self._heard = b""

    def data_received(self, data: bytes) -> None:
        if self._answer:
            self._heard += data
            if b"\r\n\r\n" in self._heard:
                self._transport.write(self._answer)
                self._answer = self._heard = b""
