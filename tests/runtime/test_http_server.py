"""Connections to an HTTP server, and bodies that are not decompressed."""

from __future__ import annotations

import asyncio
import gzip
import socket
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from quire.runtime.http_server import HttpServer, note_login
from quire.runtime.sources import BySource

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
LOGGED_IN = "Authorization: yes\r\n"
PLACES, KEPT = 6, 2


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """Of a server with six places, two of them kept, where a request with `Authorization` has logged in."""

    async def hello(request: web.Request) -> web.Response:
        if "Authorization" in request.headers:
            note_login(request)
        return web.Response(text=f"hello {len(await request.read())}")

    application = web.Application()
    application.router.add_route("*", "/", hello)
    server = HttpServer(application, PLACES, KEPT)
    await server.start()
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    listener = await server.listen(sock)
    yield sock.getsockname()[1]
    listener.close()
    await server.stop()


async def opened(port: int, source: str = "127.0.0.1") -> Connection:
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))


async def ask(connection: Connection, more: str = "") -> bool:
    """Return whether the request was answered; otherwise the connection was closed."""
    reader, writer = connection
    writer.write(f"GET / HTTP/1.1\r\nHost: here\r\n{more}\r\n".encode())
    try:
        async with asyncio.timeout(30):
            head = await reader.readuntil(b"hello 0")
    except (asyncio.IncompleteReadError, ConnectionError):
        return False
    return head.startswith(b"HTTP/1.1 200")


async def is_closed(connection: Connection) -> bool:
    async with asyncio.timeout(30):
        try:
            return await connection[0].read() == b""
        except ConnectionError:
            return True


async def test_silent_connections_close_one_another(port: int) -> None:
    first = await opened(port)
    assert await ask(first, LOGGED_IN)
    silent = [await opened(port) for _ in range(30)]
    last = await opened(port)
    assert await ask(last) and await ask(first)
    assert all([await is_closed(one) for one in silent[:20]])
    for _, writer in (first, last, *silent):
        writer.close()


async def test_connections_that_ask_and_do_not_log_in_keep_no_newcomer_out(port: int) -> None:
    busy = [await opened(port) for _ in range(PLACES)]
    assert all([await ask(one) for one in busy])
    assert await ask(busy[0])
    newcomer = await opened(port)
    assert await ask(newcomer)
    assert await is_closed(busy[1]), "the least recently active one"
    assert await ask(busy[0]) and await ask(newcomer)
    for _, writer in (*busy, newcomer):
        writer.close()


async def test_the_network_with_the_most_strangers_makes_room(port: int) -> None:
    honest = await opened(port, "127.0.0.2")
    flood = [await opened(port) for _ in range(3 * PLACES)]
    assert await ask(honest), "the oldest of all"
    assert all([await is_closed(one) for one in flood[: 2 * PLACES]])
    for _, writer in (honest, *flood):
        writer.close()


async def test_those_who_have_logged_in_stay_and_leave_places(port: int) -> None:
    known = [await opened(port) for _ in range(PLACES - KEPT)]
    assert all([await ask(one, LOGGED_IN) for one in known])
    late = await opened(port)
    assert await ask(late, LOGGED_IN) and await is_closed(late), "answered once"
    flood = [await opened(port, "127.0.0.2") for _ in range(3 * PLACES)]
    probe = await opened(port, "127.0.0.3")
    assert await ask(probe) and await ask(probe)
    assert all([await ask(one) for one in known])
    known.pop()[1].close()
    for _ in range(1_000):
        late = await opened(port, "127.0.0.3")
        if await ask(late, LOGGED_IN) and await ask(late, LOGGED_IN):
            break  # the server has noticed
    else:
        pytest.fail("a place that became free stays empty")
    for _, writer in (*known, *flood, probe, late):
        writer.close()


async def test_a_compressed_body_is_refused_and_not_decompressed(port: int) -> None:
    body = gzip.compress(bytes(1 << 20))
    for encoding in ("gzip", "deflate", "br", "x"):
        reader, writer = await opened(port)
        head = f"PUT / HTTP/1.1\r\nHost: x\r\nContent-Encoding: {encoding}\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        async with asyncio.timeout(30):
            answer = await reader.readuntil(b"}")
        assert answer.startswith(b"HTTP/1.1 415") and encoding.encode() in answer
        writer.close()
    reader, writer = await opened(port)
    writer.write(b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Encoding: identity\r\nContent-Length: 3\r\n\r\nabc")
    async with asyncio.timeout(30):
        assert await reader.readuntil(b"hello 3")
    writer.close()


def test_the_least_recently_active_one_of_the_largest_network() -> None:
    table: BySource[int] = BySource()
    assert table.crowded() is None
    for one, address in enumerate(("/10.0.0.1:1", "/2001:db8:0:1::1:1", "/2001:db8:0:2::1:1", "/10.0.0.2:1")):
        table.add(one, address)
    assert table.crowded() == 1, "one site has both"
    table.note_activity(1)
    assert table.crowded() == 2
    assert table.remove(2) and not table.remove(2)
    table.note_activity(2)
    assert table.crowded() == 0 and 0 in table and len(table) == 3
    table.note_activity(0)
    assert table.crowded() == 3
