"""What surrounds the storage: connections that misbehave, a busy port, and the registration."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from quire.bookie.registration import Registration
from quire.bookie.server import BookieServer
from quire.metadata import paths
from quire.metadata.records import BookieRecord, decode
from quire.runtime.errors import ConfigurationError
from quire.testing.metadata import MemoryStore
from quire.testing.node import SimulatedNode
from quire.wire.bookie import AddRequest, ReadRequest, Status
from quire.wire.bookie_codec import AddResponse, BookieFrame, BookieFrameCutter, SimpleResponse, encode

from .node import Node, one


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    started = await Node.on(SimulatedNode(seed=5))
    yield started
    await started.storage.stop()


@pytest.fixture
async def server(node: Node) -> AsyncIterator[BookieServer]:
    started = BookieServer(node.storage)
    await started.start()
    yield started
    await started.stop()


async def connect(server: BookieServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = server.address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def answer(reader: asyncio.StreamReader) -> BookieFrame:
    cutter = BookieFrameCutter()
    while not (frames := cutter.feed(await reader.read(1))):
        pass
    return frames[0]


async def test_a_frame_that_is_none_costs_its_connection_and_no_other(
    node: Node, server: BookieServer
) -> None:
    bad_reader, bad = await connect(server)
    reader, good = await connect(server)
    bad.write(b"GET / HTTP/1.1\r\n\r\n")
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await bad_reader.readexactly(1)
    good.writelines(encode(7, AddRequest(node.id, [one(1, 0)])))
    assert await answer(reader) == BookieFrame(7, AddResponse([Status.OK]))
    good.close()
    bad.close()


async def test_an_answer_where_a_request_belongs_closes_the_connection(server: BookieServer) -> None:
    reader, writer = await connect(server)
    writer.writelines(encode(1, SimpleResponse(Status.OK)))
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(1)
    writer.close()


async def test_a_connection_that_goes_away_leaves_its_requests_behind(
    node: Node, server: BookieServer
) -> None:
    _, writer = await connect(server)
    writer.writelines(encode(1, AddRequest(node.id, [one(1, 0)])))
    writer.writelines(encode(2, ReadRequest(node.id, 1, 0, 100, fence=True)))
    await writer.drain()
    writer.close()
    reader, writer = await connect(server)
    writer.writelines(encode(3, ReadRequest(node.id, 2, 0, 100)))
    assert (await answer(reader)).request_id == 3
    writer.close()


async def test_a_busy_port_is_a_configuration_error(node: Node, server: BookieServer) -> None:
    port = int(server.address.rpartition(":")[2])
    with pytest.raises(ConfigurationError, match=f"cannot listen on 127.0.0.1:{port}"):
        await BookieServer(node.storage, port=port).start()


async def test_a_bookie_is_seen_while_it_is_up(node: Node) -> None:
    store = MemoryStore()
    path = paths.bookie_available(node.id.uuid)
    registration = Registration(store, node.storage, "127.0.0.1:3181", "rack-1")
    await registration.start()
    found = await store.get(path)
    record = decode(BookieRecord, found.value, path)
    assert (record.uuid, record.incarnation) == node.id
    assert (record.address, record.rack, record.read_only) == ("127.0.0.1:3181", "rack-1", False)
    assert found.ephemeral
    await registration.stop()
    assert await store.children(paths.BOOKIES_AVAILABLE) == []
    assert await store.children(paths.BOOKIES) == [node.id.uuid]


async def test_what_the_process_before_left_is_replaced(node: Node) -> None:
    store = MemoryStore()
    path = paths.bookie_available(node.id.uuid)
    await store.create(path, b"left behind", ephemeral=True)
    registration = Registration(store, node.storage, "127.0.0.1:3181")
    await registration.start()
    assert decode(BookieRecord, (await store.get(path)).value, path).address == "127.0.0.1:3181"
    await registration.stop()
