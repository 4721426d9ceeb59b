"""A TCP proxy that does what networks do: holds bytes back in one direction or both, delays them, drops connections.

    proxy = Proxy("127.0.0.1:3181")
    address = await proxy.start()
    proxy.answers.cut()         # what the target says does not arrive; the connection stays open, as with a cut cable
    proxy.answers.mend()        # ... and now it does, in order
    proxy.requests.delay_s = 0.3
    proxy.reset()               # every connection is lost, new ones are taken

A `Link` is what all connections of one pair of processes go through, one `Direction` each way. A proxy has one link,
unless it is told how to find that of a new connection (`link_of`, by the connecting end's address): then two clients of
one target are cut off from it one by one.

What is cut is not lost: TCP sends it again when the cable is mended. That a connection ended is news like any other, so
it waits for the cable, too. The proxy reads no more than a little ahead of what it may pass on, so back-pressure goes
through it. One thing is unlike a network: to connect succeeds while the way is cut, only nothing is ever answered.
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
    """One way through a link, for all its connections."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        """Between arrival and departure of each piece; pieces do not overtake each other."""
        self.is_cut = False
        self.ends: set[_End] = set()
        """Those that what comes in through them leaves this way."""
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
    """Both ways between one client and one target. `refuses`: its connections are lost at once, also new ones.

    `answer`: what comes back on each new connection instead of the target's words; the target hears nothing.
    """

    def __init__(self) -> None:
        self.requests = Direction()
        self.answers = Direction()
        self.refuses = False
        self.answer = b""

    def cut(self) -> None:
        """Both ways."""
        self.requests.cut()
        self.answers.cut()

    def refuse(self) -> None:
        self.refuses = True
        self.reset()

    def turn_away(self, answer: bytes) -> None:
        """Answer every request so, as a server that is busy; those under way hear nothing."""
        self.answer = answer
        self.reset()

    def slow(self, delay_s: float) -> None:
        """Both ways."""
        self.requests.delay_s = self.answers.delay_s = delay_s

    def mend(self) -> None:
        self.refuses = False
        self.answer = b""
        self.slow(0.0)
        self.requests.mend()
        self.answers.mend()

    def reset(self) -> None:
        """Lose every connection."""
        for end in (*self.requests.ends, *self.answers.ends):
            end.abort()


class _End(asyncio.Protocol):
    """One socket of a connection; what it receives leaves through `other`, by way of `way`."""

    def __init__(self, way: Direction) -> None:
        self._way = way
        self._waiting: deque[tuple[float, bytes]] = deque()
        """With the time at which each piece is due; an empty one is the end of the connection."""
        self._waiting_bytes = 0
        self._is_full = False
        """The other end takes nothing now."""
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self.other: _End | None = None
        self.transport: asyncio.Transport | None = None

    # -- from this socket ------------------------------------------------------------------------------

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

    # -- to the other one ------------------------------------------------------------------------------

    def join(self, other: _End) -> None:
        self.other = other
        self.look()

    def set_full(self, is_full: bool) -> None:
        self._is_full = is_full
        self.look()

    def look(self) -> None:
        """Pass on what may go, and read on if there is room."""
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
    """So that the peer's socket hears of an error, not of an end."""
    open_socket = transport.get_extra_info("socket")
    if open_socket.fileno() >= 0:
        open_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    transport.abort()


class Proxy:
    """`target` is `host:port`; it need not listen yet."""

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
        """Listen; the address to connect to instead of the target's."""
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
        """Both ways."""
        self.link.cut()

    def mend(self) -> None:
        self.link.mend()

    def reset(self) -> None:
        """Lose every connection."""
        self.link.reset()

    def _accept(self) -> asyncio.Protocol:
        return _Accepted(self)

    def accepted(self, transport: asyncio.Transport) -> asyncio.Protocol | None:
        """The connecting end of a new connection; None when it is refused."""
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
    """A connection whose link is found when it is there; then its end takes over."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        made = cast(asyncio.Transport, transport)
        end = self._proxy.accepted(made)
        if end is not None:
            made.set_protocol(end)


class _TurnedAway(asyncio.Protocol):
    """An HTTP client whose request gets an answer that nobody thought about. It is the client who hangs up."""

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
