"""HTTP server of a process: limits of connections and of memory for bodies.

    connection ─▶ stranger ─ request with valid credentials ─▶ known

`HTTP_CONNECTIONS_MAX` bounds both kinds together. A new connection is always accepted: at the bound, the least recently
active stranger of the network with the most strangers is closed for it (`runtime/sources`). Known connections are never
closed for others. There are at most `HTTP_CONNECTIONS_MAX` - `HTTP_PLACES_KEPT` of them; a further connection that logs
in gets one answer, and is then closed. So neither peers without credentials nor a user with many connections can lock
out health probes, brokers and users.

Bodies are not decompressed: aiohttp would do that on the event loop before a handler has checked the request, and a
body may grow a thousandfold. A request with `Content-Encoding` is refused with 415 ([RFC 9110,
15.5.16](https://www.rfc-editor.org/rfc/rfc9110#section-15.5.16)).

Bodies larger than `HTTP_PIECE_BYTES` are counted in one memory budget for all connections (`http_room`). A handler
reserves memory before it builds a large answer (`reserve`); it is released when the peer has read the answer.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from aiohttp import web

from quire.runtime.errors import ProtocolError, Unavailable
from quire.runtime.http_room import Held, HttpRoom
from quire.runtime.limits import HTTP_CONNECTIONS_MAX, HTTP_PIECE_BYTES, HTTP_PLACES_KEPT, HTTP_SILENT_S
from quire.runtime.network import peer_address
from quire.runtime.sources import BySource

BACKLOG: Final = 1024
SHUTDOWN_S: Final = 1.0
CONSOLE: Final = "/console"
"""Path of the web page of brokers and gateways."""
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HttpServer:
    """Server of one application, and protocol factory for its listeners. Use it on the loop's thread only."""

    def __init__(
        self,
        application: web.Application,
        connections_max: int = HTTP_CONNECTIONS_MAX,
        places_kept: int = HTTP_PLACES_KEPT,
    ) -> None:
        application.middlewares.insert(0, _bounded)
        self.room = HttpRoom()
        self._runner = web.AppRunner(
            application,
            access_log=None,
            shutdown_timeout=SHUTDOWN_S,
            keepalive_timeout=HTTP_SILENT_S,
            auto_decompress=False,
        )
        self._connections_max = connections_max
        self._known_max = connections_max - places_kept
        self._strangers: BySource[Any] = BySource()
        self._known: set[Any] = set()
        self._server: Any = None
        self._request: Callable[..., web.Request]
        self._made: Callable[..., None]
        self._lost: Callable[..., None]
        """Methods of aiohttp's server, which the wrappers here call."""

    async def start(self) -> None:
        """Run the application's start-up. Connections are accepted after that."""
        await self._runner.setup()
        server: Any = self._runner.server
        self._server, self._request = server, server.request_factory
        self._made, self._lost = server.connection_made, server.connection_lost
        server.request_factory = self._begin_request
        server.connection_made = self._connection_made
        server.connection_lost = self._connection_lost

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def listen(self, sock: socket.socket) -> asyncio.Server:
        """Accept connections on a bound socket."""
        return await asyncio.get_running_loop().create_server(self, sock=sock, backlog=BACKLOG)

    def __call__(self) -> asyncio.BaseProtocol:
        made: asyncio.BaseProtocol = self._server()
        return made

    # -- wrappers of aiohttp's server ------------------------------------------------------------------

    def _connection_made(self, protocol: Any, transport: asyncio.Transport) -> None:
        self._made(protocol, transport)
        if len(self._strangers) + len(self._known) >= self._connections_max:
            self._make_room()
        self._strangers.add(protocol, peer_address(transport))

    def _make_room(self) -> None:
        victim = self._strangers.crowded()
        assert victim is not None, "known connections leave places"
        self._strangers.remove(victim)
        if victim.transport is not None:
            victim.transport.abort()  # close() would wait for a peer that does not read

    def _connection_lost(self, protocol: Any, error: BaseException | None = None) -> None:
        self._lost(protocol, error)
        self._strangers.remove(protocol)
        self._known.discard(protocol)

    def _begin_request(
        self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any
    ) -> web.BaseRequest:
        self._strangers.note_activity(protocol)
        request = self._request(message, payload, protocol, writer, task)
        request[_SERVER] = self
        return request

    def logged_in(self, protocol: Any) -> None:
        """Make the connection a known one; if there are too many known ones, close it after this answer."""
        if protocol not in self._strangers:
            return  # already known, or being closed
        if len(self._known) >= self._known_max:
            protocol.close()
            return
        self._strangers.remove(protocol)
        self._known.add(protocol)


_SERVER: Final = web.RequestKey("server", HttpServer)
_HELD: Final = web.RequestKey("held", Held)


async def browser_to_console(request: web.Request) -> web.StreamResponse:
    """Redirect a browser from `/`, the address that a start prints, to the console. Programs get 404."""
    if "text/html" in request.headers.get("Accept", ""):
        raise web.HTTPFound(CONSOLE)
    raise web.HTTPNotFound


def note_login(request: web.Request) -> None:
    """Make the request's connection a known one: its credentials were accepted."""
    server = request.get(_SERVER)
    if server is not None:
        server.logged_in(request.protocol)


async def reserve(request: web.Request, size_bytes: int) -> None:
    """Reserve memory for an answer or a body of at most `size_bytes`. Raises `Unavailable`.

    A reservation replaces the request's previous one. Without a server, as in tests, nothing is reserved.
    """
    server = request.get(_SERVER)
    if server is None:
        return
    release(request)
    address = peer_address(request.transport)
    request[_HELD] = await server.room.reserve(size_bytes, address, partial(_abort, request))


def release(request: web.Request) -> None:
    """Release the request's reservation."""
    held = request.get(_HELD)
    if held is not None:
        request[_SERVER].room.release(held)


async def body_of(request: web.Request) -> bytes:
    """Read the request's body. Its memory is reserved during the read, and until the answer is built.

    Raises `Unavailable`, and `ProtocolError` for an incomplete body.
    """
    length, most = request.content_length, request.client_max_size
    if not request.body_exists or (length is not None and length <= HTTP_PIECE_BYTES):
        return await _read(request)
    await reserve(request, min(most, length or most))
    held = request.get(_HELD)
    if held is not None:
        held.begin(asyncio.get_running_loop().time())
    body = await _read(request)
    if held is not None:
        held.is_read = False
    return body


async def _read(request: web.Request) -> bytes:
    try:
        return await request.read()
    except (ConnectionError, web.RequestPayloadError) as error:
        raise ProtocolError(f"the request's body is incomplete: {error}") from None


def _abort(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


@web.middleware
async def _bounded(request: web.Request, handler: _Handler) -> web.StreamResponse:
    encoding = request.headers.get("Content-Encoding", "identity")
    if encoding.strip().lower() != "identity":
        reason = f"unsupported Content-Encoding {encoding[:40]}: send the request's body unencoded"
        return web.json_response({"reason": reason}, status=415, headers={"Accept-Encoding": "identity"})
    try:
        answer = await handler(request)
        body = answer.body if isinstance(answer, web.Response) else None
        if isinstance(body, bytes) and len(body) > HTTP_PIECE_BYTES and request.method != "HEAD":
            try:
                await _write(request, answer, body)
            except Unavailable as error:
                return web.json_response({"reason": str(error)}, status=503)
        return answer
    finally:
        release(request)


async def _write(request: web.Request, answer: web.StreamResponse, body: bytes) -> None:
    """Write a large answer in pieces, as the peer reads it. Raises `Unavailable`, before the first byte is written."""
    room, held, loop = request[_SERVER].room, request.get(_HELD), asyncio.get_running_loop()
    if held is None or held.size_bytes < len(body):
        release(request)
        held = request[_HELD] = room.hold_at_once(len(body), partial(_abort, request))
    room.shrink(held, len(body))
    held.begin(loop.time())
    view = memoryview(body)
    try:
        await answer.prepare(request)
        for start in range(0, len(body), HTTP_PIECE_BYTES):
            await answer.write(view[start : start + HTTP_PIECE_BYTES])
            held.progress(loop.time())
        await web.StreamResponse.write_eof(answer)
    except ConnectionError:
        pass  # the peer closed the connection; aiohttp handles that
