"""Memory for answers over HTTP: turns, peers that do not read, and what is given back."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from quire.runtime import http_room
from quire.runtime.errors import QuireError, Unavailable
from quire.runtime.http_room import Held, HttpRoom
from quire.runtime.http_server import HttpServer, body_of, reserve

NEAR, FAR = "/10.0.0.1:1", "/10.1.0.1:1"
SIZE = 8 << 20
"""More than the kernel keeps for a peer that does not read."""


def keep() -> None:
    raise AssertionError("nobody is slow")


async def test_reservations_wait_their_turn() -> None:
    room = HttpRoom(100)
    first = await room.reserve(60, NEAR, keep)
    order: list[str] = []

    async def take(name: str, size: int, address: str) -> None:
        held = await room.reserve(size, address, keep)
        order.append(name)
        room.release(held)

    waiting = [
        asyncio.ensure_future(take(name, size, address))
        for name, size, address in (("a", 90, NEAR), ("b", 60, NEAR), ("c", 60, NEAR), ("d", 60, FAR))
    ]
    await asyncio.sleep(0)
    assert order == [], "b would fit soon, and waits for a"
    room.shrink(first, 20)
    await asyncio.sleep(0)
    assert order == []
    room.release(first)
    room.release(first)
    await asyncio.gather(*waiting)
    assert order == ["a", "d", "b", "c"] and room.held_bytes == 0


async def test_a_peer_that_does_not_read_makes_room_for_those_that_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_room, "GRACE_S", 0.05)
    monkeypatch.setattr(http_room, "LOOK_S", 0.01)
    monkeypatch.setattr(http_room, "BYTES_A_S_MIN", 1)
    room = HttpRoom(100)
    closed: list[str] = []
    now_s = asyncio.get_running_loop().time()
    stuck = await room.reserve(40, NEAR, lambda: closed.append("stuck"))
    reads = await room.reserve(40, NEAR, lambda: closed.append("reads"))
    built = await room.reserve(20, NEAR, lambda: closed.append("built"))
    stuck.begin(now_s)
    reads.begin(now_s)
    reads.progress(now_s + 1_000)
    async with asyncio.timeout(30):
        await room.reserve(40, FAR, keep)
    assert closed == ["stuck"] and room.held_bytes == 100 and not built.is_read


async def test_who_gives_up_or_waits_too_long_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    room = HttpRoom(100)
    held = await room.reserve(100, NEAR, keep)
    given_up = asyncio.ensure_future(room.reserve(50, NEAR, keep))
    same_moment = asyncio.ensure_future(room.reserve(60, NEAR, keep))
    after = asyncio.ensure_future(room.reserve(70, NEAR, keep))
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.sleep(0)
    room.release(held)
    same_moment.cancel()
    got: Held = await after
    assert same_moment.cancelled() and room.held_bytes == 70
    monkeypatch.setattr(http_room, "WAIT_S", 0.01)
    with pytest.raises(Unavailable, match="try again"):
        await room.reserve(50, NEAR, keep)
    room.release(got)
    room.release(await room.reserve(100, NEAR, keep))
    assert room.held_bytes == 0


async def test_a_flood_is_refused_and_not_the_address_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_room, "WAITING_MAX", 3)
    room = HttpRoom(100)
    held = await room.reserve(100, NEAR, keep)
    flood = [asyncio.ensure_future(room.reserve(10, NEAR, keep)) for _ in range(10)]
    await asyncio.sleep(0)
    honest = asyncio.ensure_future(room.reserve(10, FAR, keep))
    await asyncio.sleep(0)
    room.release(held)
    await honest
    ended = await asyncio.gather(*flood, return_exceptions=True)
    assert 0 < sum(isinstance(one, Held) for one in ended) <= 4


# -- over sockets ----------------------------------------------------------------------------------------


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[HttpServer, int]]:
    """Large answers, reserved before or not, and large requests; room for two and a half."""
    monkeypatch.setattr(http_room, "GRACE_S", 0.2)
    monkeypatch.setattr(http_room, "LOOK_S", 0.05)

    async def reserved(request: web.Request) -> web.Response:
        await reserve(request, SIZE)
        return web.Response(body=bytes(SIZE))

    async def unreserved(request: web.Request) -> web.Response:
        return web.Response(body=bytes(SIZE))

    async def taken(request: web.Request) -> web.Response:
        return web.Response(text=str(len(await body_of(request))))

    async def as_text(request: web.Request) -> web.StreamResponse:
        try:
            return await {"/reserved": reserved, "/unreserved": unreserved, "/taken": taken}[request.path](
                request
            )
        except QuireError as error:
            return web.Response(text=str(error), status=503)

    application = web.Application(client_max_size=SIZE)
    application.router.add_route("*", "/{rest:.*}", as_text)
    made = HttpServer(application)
    made.room = HttpRoom(5 * SIZE // 2)
    await made.start()
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    listener = await made.listen(sock)
    yield made, sock.getsockname()[1]
    listener.close()
    await made.stop()


async def begin(
    port: int, path: str, more: str = "", *, receives: int = 4096
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=4096)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n{more}\r\n".encode())
    return reader, writer


async def status_and_size(reader: asyncio.StreamReader) -> tuple[int, int]:
    async with asyncio.timeout(30):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split()[0])
        return int(head.split()[1]), len(await reader.readexactly(length))


async def test_answers_that_are_not_read_hold_memory_of_a_known_size(
    server: tuple[HttpServer, int],
) -> None:
    made, port = server
    unread = [await begin(port, "/reserved") for _ in range(30)]
    most = 0
    reader, writer = await begin(port, "/reserved", receives=1 << 20)
    answer = asyncio.ensure_future(status_and_size(reader))
    while not answer.done():
        most = max(most, made.room.held_bytes)
        await asyncio.sleep(0.01)
    assert await answer == (200, SIZE) and 0 < most <= 5 * SIZE // 2
    for _, one in (*unread, (reader, writer)):
        one.transport.abort()
    async with asyncio.timeout(30):
        while made.room.held_bytes:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_an_answer_that_was_not_foreseen_is_counted(server: tuple[HttpServer, int]) -> None:
    made, port = server
    unread = [await begin(port, "/unreserved") for _ in range(2)]
    async with asyncio.timeout(30):
        while made.room.held_bytes < 2 * SIZE:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    reader, writer = await begin(port, "/unreserved")
    assert (await status_and_size(reader))[0] == 503
    for _, one in (*unread, (reader, writer)):
        one.transport.abort()


async def test_a_body_that_breaks_off_is_no_error_of_the_server(
    server: tuple[HttpServer, int], caplog: pytest.LogCaptureFixture
) -> None:
    made, port = server
    for length in (SIZE, 1_000):
        _, writer = await begin(port, "/taken", f"Content-Length: {length}\r\n")
        writer.write(bytes(500))
        await writer.drain()
        writer.transport.abort()
    reader, writer = await begin(port, "/taken", "Content-Length: 1\r\n")
    writer.write(b"x")
    assert (await status_and_size(reader))[0] == 200
    async with asyncio.timeout(30):
        while made.room.held_bytes:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    writer.close()
    assert not [one for one in caplog.records if one.exc_info]


async def test_bodies_that_do_not_come_make_room(server: tuple[HttpServer, int]) -> None:
    made, port = server
    halves = [await begin(port, "/taken", f"Content-Length: {SIZE}\r\n") for _ in range(10)]
    reader, writer = await begin(port, "/taken", f"Content-Length: {SIZE}\r\n")
    writer.write(bytes(SIZE))
    assert (await status_and_size(reader))[0] == 200 and made.room.held_bytes <= 5 * SIZE // 2
    for _, one in (*halves, (reader, writer)):
        one.transport.abort()
