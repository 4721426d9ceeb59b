"""TCP server of a bookie: passes requests to the storage, and returns its responses; see `wire.bookie_codec`.

Each connection belongs to one broker. Blocks of an add are passed to the storage as views into the read buffer.
Responses are sent in the order in which they are ready; all responses of one turn of the event loop share one write.

With TLS, a peer must present a process's certificate of the cluster's authority; users' certificates are refused.

A connection is not read while its peer does not read its responses, while it has `REQUESTS_MAX` requests in progress,
or while the process's byte budget is spent (backpressure). So memory is bounded. After an invalid frame, the connection
is closed.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Coroutine, Sequence
from ssl import SSLObject
from typing import Any, Final, cast

from quire.bookie.storage import Storage
from quire.runtime.budget import ByteBudget
from quire.runtime.errors import ConfigurationError, ProtocolError
from quire.runtime.network import keep_alive
from quire.runtime.settings import format_address
from quire.runtime.tasks import Tasks
from quire.security.listener import TlsListener
from quire.wire.block import Buffer
from quire.wire.bookie import (
    AddRequest,
    Request,
    Status,
)
from quire.wire.bookie_codec import AddResponse, BookieFrame, BookieFrameCutter, Response, encode

log = logging.getLogger(__name__)

REQUESTS_MAX: Final = 1_000
"""Maximum number of unanswered requests of one connection; a broker's outbox sends only a few per turn of its loop."""


class BookieServer:
    """Server of `storage` at `host:port`, or on `listener`. Port 0 selects a free port, as shown in `address`."""

    def __init__(
        self,
        storage: Storage,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        listener: socket.socket | TlsListener | None = None,
        budget: ByteBudget | None = None,
    ) -> None:
        self._storage = storage
        self._host, self._port = host, port
        self._listener = listener
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self._budget = budget or ByteBudget()
        self._budget.add_gauge(lambda: storage.bytes_unflushed)
        self.address = ""

    async def start(self) -> None:
        """Listen. Raises `ConfigurationError` if the address is not available."""
        loop = asyncio.get_running_loop()
        self._storage.on_flushed(self._budget.look_again)
        if isinstance(self._listener, TlsListener):
            self._listener.start(self._connected)
            self.address = self._listener.address
            return
        try:
            if self._listener is not None:
                self._server = await loop.create_server(self._connected, sock=self._listener)
            else:
                self._server = await loop.create_server(self._connected, self._host, self._port)
        except OSError as error:
            reason = error.strerror or error
            raise ConfigurationError(f"cannot listen on {self._host}:{self._port}: {reason}") from error
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = format_address(host, port)

    async def stop(self) -> None:
        """Stop listening, and close all connections."""
        if self._server is not None:
            self._server.close()
        if isinstance(self._listener, TlsListener):
            self._listener.close()
        for connection in list(self._connections):
            await connection.stop()
        if self._server is not None:
            await self._server.wait_closed()

    def _connected(self) -> _Connection:
        return _Connection(self._storage, self._budget, self._connections)


class _Connection(asyncio.BufferedProtocol):
    """Connection of one broker."""

    def __init__(self, storage: Storage, budget: ByteBudget, connections: set[_Connection]) -> None:
        self._storage = storage
        self._budget = budget
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks("bookie connection")
        self._cutter = BookieFrameCutter()
        self._out: list[Buffer] = []
        self._pending = 0
        self._stalled: set[str] = set()
        """Reasons why the connection is not read now: `peer`, `requests`, `budget`."""

    # -- asyncio's side ----------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        keep_alive(transport)
        self._connections.add(self)
        shown = transport.get_extra_info("ssl_object")
        if shown is not None and not _is_of_a_process(shown):
            log.warning(
                "closed the connection of %s: its certificate is not one of a process of the cluster",
                self._peer,
            )
            self._transport.abort()

    @property
    def _peer(self) -> object:
        return self._transport.get_extra_info("peername")

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.discard(self)
        self._out.clear()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._cutter.get_buffer(sizehint)

    def buffer_updated(self, count: int) -> None:
        try:
            frames = self._cutter.received(count)
        except ProtocolError as error:
            log.warning("closed the connection of %s: %s", self._peer, error)
            self._transport.abort()
            return
        for frame in frames:
            self._begin(frame)
        if self._pending >= REQUESTS_MAX:
            self._stall("requests")
        if self._budget.is_spent:
            self._stall("budget")
            self._budget.when_free(lambda: self._go_on("budget"))

    def pause_writing(self) -> None:
        self._stall("peer")

    def resume_writing(self) -> None:
        self._go_on("peer")

    async def stop(self) -> None:
        await self._tasks.stop()
        self._transport.close()

    def _stall(self, why: str) -> None:
        if not self._stalled and not self._transport.is_closing():
            self._transport.pause_reading()
        self._stalled.add(why)

    def _go_on(self, why: str) -> None:
        self._stalled.discard(why)
        if not self._stalled and not self._transport.is_closing():
            self._transport.resume_reading()

    # -- requests and answers ----------------------------------------------------------------------------
    def _begin(self, frame: BookieFrame) -> None:
        self._pending += 1
        request_id, storage = frame.request_id, self._storage
        match frame.body:
            case AddRequest() as request:

                def done(statuses: Sequence[Status]) -> None:
                    self._answer(request_id, AddResponse(statuses))

                storage.add(request, done)
            case Request() as request:
                self._later(request_id, storage.ask(request))
            case _:
                log.warning("closed a connection: it sent a response, expected a request")
                self._transport.abort()

    def _later(self, request_id: int, work: Coroutine[Any, Any, Response]) -> None:
        async def run() -> None:
            self._answer(request_id, await work)

        self._tasks.start(run(), "answer a request")

    def _answer(self, request_id: int, body: Response) -> None:
        self._pending -= 1
        if self._transport.is_closing():
            return
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out += encode(request_id, body)
        if "requests" in self._stalled and self._pending < REQUESTS_MAX // 2:
            self._go_on("requests")

    def _flush(self) -> None:
        out, self._out = self._out, []
        if out and not self._transport.is_closing():
            self._transport.writelines(out)


def _is_of_a_process(shown: SSLObject) -> bool:
    """Return whether the peer's certificate was issued for a process, not for a user.

    The module is imported here, because it needs an optional library.
    """
    from quire.security import certificates

    return certificates.is_of_a_process(certificates.read(shown.getpeercert(binary_form=True) or b""))
