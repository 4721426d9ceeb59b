"""The network of the other tests: what it holds back comes later and in order, what it drops is dropped for both."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from typing import cast

import pytest

from .network import Network
from .proxy import Proxy


class Echo(asyncio.Protocol):
    """Answers each byte with itself."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


@pytest.fixture
async def target() -> AsyncIterator[str]:
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0)
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


async def connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = address.split(":")
    return await asyncio.open_connection(host, int(port))


async def nothing_arrives(reader: asyncio.StreamReader) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await reader.read(1)


@pytest.mark.parametrize("way", ["requests", "answers"])
async def test_what_is_cut_arrives_when_it_is_mended(target: str, way: str) -> None:
    proxy = Proxy(target)
    reader, writer = await connect(await proxy.start())
    writer.write(b"a")
    assert await reader.readexactly(1) == b"a"
    getattr(proxy, way).cut()
    writer.write(b"b")
    await nothing_arrives(reader)
    writer.write(b"c")
    getattr(proxy, way).mend()
    assert await reader.readexactly(2) == b"bc"
    writer.close()
    await proxy.stop()


async def test_that_a_connection_ended_is_not_heard_through_a_cut(target: str) -> None:
    proxy = Proxy(target)
    reader, writer = await connect(await proxy.start())
    writer.write(b"a")
    await reader.readexactly(1)
    proxy.cut()
    (far,) = proxy.answers.ends
    far.abort()
    await nothing_arrives(reader)
    proxy.mend()
    assert await reader.read() == b""
    await proxy.stop()


async def test_more_than_it_reads_ahead_comes_through_whole(target: str) -> None:
    proxy = Proxy(target)
    reader, writer = await connect(await proxy.start())
    proxy.answers.cut()
    sent = os.urandom(8 << 20)
    writer.write(sent)
    proxy.answers.mend()
    assert await reader.readexactly(len(sent)) == sent
    writer.close()
    await proxy.stop()


async def test_delayed_pieces_keep_their_order(target: str) -> None:
    proxy = Proxy(target)
    reader, writer = await connect(await proxy.start())
    proxy.requests.delay_s = 0.03
    for piece in (b"1", b"2", b"3"):
        writer.write(piece)
        await asyncio.sleep(0)
    assert await reader.readexactly(3) == b"123"
    writer.close()
    await proxy.stop()


async def test_one_of_two_clients_is_cut_off_by_name(target: str) -> None:
    """Both clients are this process; who connects is told by whose name it has at the moment."""
    me = {os.getpid(): "one"}
    network = Network(lambda: me)
    address = await network.front("server", target)
    first, writer = await connect(address)
    writer.write(b"a")
    await first.readexactly(1)
    me[os.getpid()] = "two"
    second, other = await connect(address)
    other.write(b"b")
    await second.readexactly(1)

    network.cut("one", "server")
    writer.write(b"c")
    other.write(b"d")
    assert await second.readexactly(1) == b"d"
    await nothing_arrives(first)
    network.mend("server", "one")
    assert await first.readexactly(1) == b"c"

    network.refuse("one", "server")
    with pytest.raises(ConnectionResetError):
        await first.readexactly(1)
    other.write(b"e")
    assert await second.readexactly(1) == b"e"

    network.mend("one", "server")
    network.cut_one_way("server", "two")
    other.write(b"f")
    await nothing_arrives(second)
    network.mend("one", "server")
    await nothing_arrives(second)
    network.mend_all()
    assert await second.readexactly(1) == b"f"
    await network.stop()


async def test_a_busy_test_does_not_hold_up_the_network() -> None:
    """Two sockets talk through it while the test's own loop does not turn."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        network = Network(lambda: {os.getpid(): "one"})
        host, port = (await network.front("server", f"127.0.0.1:{server.getsockname()[1]}")).split(":")
        with socket.create_connection((host, int(port)), timeout=10) as client:
            client.sendall(b"a")
            server.settimeout(10)
            with server.accept()[0] as accepted:
                accepted.settimeout(10)
                assert accepted.recv(1) == b"a"
        await network.stop()
