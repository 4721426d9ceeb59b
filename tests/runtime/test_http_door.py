"""Connections to an HTTP server: those that ask nothing make room for those that do."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from quire.runtime.http_door import HttpDoor

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """Of a server that has five connections."""

    async def hello(_: web.Request) -> web.Response:
        return web.Response(text="hello")

    application = web.Application()
    application.router.add_get("/", hello)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    assert runner.server is not None
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    listener = await HttpDoor(runner.server, 5).listen(sock)
    yield sock.getsockname()[1]
    listener.close()
    await runner.cleanup()


async def opened(port: int) -> Connection:
    return await asyncio.open_connection("127.0.0.1", port)


async def ask(connection: Connection) -> bool:
    """Whether it is answered; else the connection was closed."""
    reader, writer = connection
    writer.write(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
    try:
        async with asyncio.timeout(30):
            head = await reader.readuntil(b"hello")
    except (asyncio.IncompleteReadError, ConnectionError):
        return False
    return head.startswith(b"HTTP/1.1 200")


async def test_silent_connections_drop_one_another(port: int) -> None:
    first = await opened(port)
    assert await ask(first)
    silent = [await opened(port) for _ in range(30)]
    last = await opened(port)
    assert await ask(last) and await ask(first)
    async with asyncio.timeout(30):
        assert all([await reader.read() == b"" for reader, _ in silent[:20]])
    for _, writer in (first, last, *silent):
        writer.close()


async def test_when_all_have_asked_a_new_one_is_closed(port: int) -> None:
    busy = [await opened(port) for _ in range(5)]
    assert all([await ask(one) for one in busy])
    assert not await ask(await opened(port))
    assert all([await ask(one) for one in busy])
    busy.pop()[1].close()
    async with asyncio.timeout(30):
        while not await ask(await opened(port)):  # noqa: ASYNC110  until the server has noticed
            await asyncio.sleep(0.01)
    for _, writer in busy:
        writer.close()
