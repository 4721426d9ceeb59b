"""The port over TCP: answers find their askers, and whatever goes wrong with the connection is UNREACHABLE."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from quire.ledger.bookie_client import BookieClient
from quire.ledger.directory import ClusterDirectory
from quire.metadata import paths
from quire.metadata.records import BookieRecord, encode
from quire.runtime.errors import ConfigurationError
from quire.testing.bookie import MemoryBookie
from quire.testing.cluster import cut, turns_until
from quire.testing.metadata import MemoryStore
from quire.wire import bookie_codec
from quire.wire.bookie import (
    AddRequest,
    BookieId,
    DeleteRequest,
    FindHoleRequest,
    FindTimeRequest,
    LedgerInfoRequest,
    ReadRequest,
    Request,
    Status,
    WriteLacRequest,
)
from quire.wire.bookie_codec import AddResponse, BookieFrameCutter

ID = BookieId("b", 1)


class Server:
    """A memory bookie behind a socket. `is_mute`: it reads and keeps its answers, `holds`: those of one kind."""

    def __init__(self) -> None:
        self.bookie = MemoryBookie(ID)
        self.is_mute = False
        self.holds: type | None = None
        self.connections = 0
        self._held: list[list[bytes]] = []
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self, port: int = 0) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    def release(self) -> None:
        """Say what was held back, on the newest connection."""
        for answer in self._held:
            self._writers[-1].writelines(answer)
        self._held.clear()

    def say(self, raw: bytes) -> None:
        self._writers[-1].write(raw)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        cutter = BookieFrameCutter()
        while data := await reader.read(1 << 16):
            for frame in cutter.feed(data):
                answer = bookie_codec.encode(frame.request_id, await self._answer(frame.body))
                if self.is_mute or (self.holds and isinstance(frame.body, self.holds)):
                    self._held.append(answer)
                else:
                    writer.writelines(answer)

    async def _answer(self, body: bookie_codec.AnyRequest | bookie_codec.Response) -> bookie_codec.Response:
        match body:
            case AddRequest():
                statuses = asyncio.get_running_loop().create_future()
                self.bookie.add(body, statuses.set_result)
                return AddResponse(await statuses)
            case Request():
                answer: bookie_codec.Response = await self.bookie.ask(body)
                return answer
        raise AssertionError(body)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    server.address = await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def client(server) -> AsyncIterator[BookieClient]:
    client = BookieClient(server.address, timeout_s=(0.2, 0.2), reconnect_s=(0, 0))
    yield client
    await client.close()


async def add(client: BookieClient, *blocks: bytes) -> list[Status]:
    answered: asyncio.Future[list[Status]] = asyncio.get_running_loop().create_future()
    client.add(AddRequest(ID, blocks), answered.set_result)
    assert not answered.done(), "answered before add returned"
    return list(await answered)


async def test_all_requests(client):
    first, second = cut(7, 0, 3, clock_ms=5), cut(7, 3, 1, lac=2, clock_ms=9)
    assert await add(client, first, second) == [Status.OK, Status.OK]
    read = await client.ask(ReadRequest(ID, 7, 1, 1 << 20))
    assert (read.status, read.lac, [bytes(each) for each in read.blocks]) == (Status.OK, 2, [first, second])
    assert (await client.ask(WriteLacRequest(ID, 7, 3))).status is Status.OK
    assert (await client.ask(FindTimeRequest(ID, 7, 6))).entry == 3
    assert (await client.ask(FindHoleRequest(ID, 7, 0, 9))).entry == 4
    assert (await client.ask(LedgerInfoRequest(ID, 7))).lac == 3
    assert (await client.ask(DeleteRequest(ID, 7, 4))).status is Status.OK
    assert (await client.ask(ReadRequest(ID, 7, 1, 1000))).status is Status.DELETED


async def test_requests_share_one_connection(client, server):
    answers = await asyncio.gather(*(add(client, cut(ledger, 0)) for ledger in range(50)))
    assert answers == [[Status.OK]] * 50 and server.connections == 1


async def test_a_lost_connection_is_an_unknown_outcome_and_is_made_again(client, server):
    server.is_mute = True
    lost = asyncio.gather(add(client, cut(7, 0)), client.ask(ReadRequest(ID, 7, 0, 1000)))
    await turns_until(lambda: server.connections == 1)
    server.cut()
    statuses, read = await lost
    assert statuses == [Status.UNREACHABLE] and read.status is Status.UNREACHABLE
    server.is_mute = False
    assert await add(client, cut(7, 0)) == [Status.OK]
    assert server.connections == 2


async def test_silence_ends_in_a_time_out(client, server):
    server.is_mute = True
    assert (await client.ask(ReadRequest(ID, 7, 0, 1000))).status is Status.UNREACHABLE


async def test_nobody_listens(server):
    await server.stop()
    client = BookieClient(server.address, reconnect_s=(60, 60))
    assert await add(client, cut(7, 0)) == [Status.UNREACHABLE]
    await server.start(int(server.address.rpartition(":")[2]))
    assert await add(client, cut(7, 0)) == [Status.UNREACHABLE], "refused at once after a failure"
    assert server.connections == 0
    await client.close()


@pytest.mark.parametrize("host", ["two..dots", f"{'x' * 64}.example"])
async def test_a_name_that_no_host_can_have_is_a_bookie_that_cannot_be_reached(host):
    client = BookieClient(f"{host}:1", reconnect_s=(60, 60))
    read = client.ask(ReadRequest(ID, 7, 0, 1000))
    statuses, answer = await asyncio.wait_for(asyncio.gather(add(client, cut(7, 0)), read), 10)
    assert statuses == [Status.UNREACHABLE] and answer.status is Status.UNREACHABLE
    assert await add(client, cut(7, 0)) == [Status.UNREACHABLE], "and it is not tried at each request"
    await client.close()


async def test_an_overdue_read_is_given_up_alone_while_the_bookie_talks(server):
    """Only what concerns writing, or complete silence, costs the connection."""
    client = BookieClient(server.address, timeout_s=(0.15, 0.15), reconnect_s=(60, 60))
    server.holds = ReadRequest
    read = asyncio.ensure_future(client.ask(ReadRequest(ID, 7, 0, 1000)))
    entry = 0
    while not read.done():
        assert await add(client, cut(7, entry)) == [Status.OK]
        entry += 1
    assert read.result().status is Status.UNREACHABLE
    server.release()
    assert await add(client, cut(7, entry)) == [Status.OK], "the late answer is nobody's, and harms nobody"
    assert server.connections == 1
    await client.close()


async def test_a_process_that_was_held_up_blames_nobody(client, server):
    server.is_mute = True
    waiting = asyncio.ensure_future(add(client, cut(7, 0)))
    await turns_until(lambda: server.connections == 1)
    await asyncio.sleep(0)
    time.sleep(0.5)  # noqa: ASYNC251 - the loop itself stands still, for longer than the time-out
    await asyncio.sleep(0)
    server.is_mute = False
    server.release()
    assert await waiting == [Status.OK] and server.connections == 1


async def test_attempts_get_rarer_until_a_request_is_answered(server):
    """A bookie that accepts connections and does not answer is no better than one that is gone."""
    client = BookieClient(server.address, timeout_s=(0.01, 0.01), reconnect_s=(0.001, 10))
    server.is_mute = True
    waits = []
    for attempts in range(1, 4):
        while server.connections < attempts:
            assert await add(client, cut(7, 0)) == [Status.UNREACHABLE]
        waits.append(client._reconnect_s)
    assert waits == [0.002, 0.004, 0.008]
    server.is_mute = False
    while await add(client, cut(7, 0)) != [Status.OK]:
        assert server.connections < 10
    server.cut()
    await turns_until(lambda: client._connection is None)
    assert client._reconnect_s == 0.002
    await client.close()


@pytest.mark.parametrize(
    "raw", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"".join(bookie_codec.encode(99, AddResponse([])))]
)
async def test_an_answer_that_is_none_costs_the_connection(client, server, raw):
    await add(client, cut(7, 0))
    server.is_mute = True
    waiting = asyncio.ensure_future(add(client, cut(7, 1)))
    await asyncio.sleep(0)
    server.say(raw)
    assert await waiting == [Status.UNREACHABLE]


async def test_close_answers_everybody(client, server):
    server.is_mute = True
    waiting = asyncio.ensure_future(client.ask(ReadRequest(ID, 7, 0, 1000)))
    await turns_until(lambda: server.connections == 1)
    await client.close()
    assert (await waiting).status is Status.UNREACHABLE
    assert await add(client, cut(7, 0)) == [Status.UNREACHABLE]


def test_an_address_is_host_and_port():
    with pytest.raises(ConfigurationError, match="host:port"):
        BookieClient("nowhere")


# -- the directory of a cluster ------------------------------------------------------------------------
async def test_the_directory_follows_the_metadata_store(server):
    store = MemoryStore()
    node = paths.bookie_available(ID.uuid)
    record = BookieRecord(uuid=ID.uuid, incarnation=1, address=server.address)
    directory = ClusterDirectory(store, BookieClient.of)
    await directory.start()
    assert (await directory.port(ID).ask(ReadRequest(ID, 7, 0, 1))).status is Status.UNREACHABLE
    await store.create(node, encode(record))
    await turns_until(lambda: list(directory.available()) == [record])
    assert (await directory.port(ID).ask(ReadRequest(ID, 7, 0, 1))).status is Status.NO_SUCH_LEDGER
    await store.delete(node)
    await turns_until(lambda: not directory.available())
    assert (await directory.port(ID).ask(ReadRequest(ID, 7, 0, 1))).status is Status.NO_SUCH_LEDGER
    await directory.stop()


async def test_a_bookie_that_moved_is_reached_at_its_new_address(server):
    store = MemoryStore()
    node = paths.bookie_available(ID.uuid)
    await store.create(node, encode(BookieRecord(uuid=ID.uuid, incarnation=1, address="127.0.0.1:1")))
    directory = ClusterDirectory(store, BookieClient.of)
    await directory.start()
    assert (await directory.port(ID).ask(ReadRequest(ID, 7, 0, 1))).status is Status.UNREACHABLE
    await store.put(node, encode(BookieRecord(uuid=ID.uuid, incarnation=1, address=server.address)), 0)
    await turns_until(lambda: directory.available()[0].address == server.address)
    assert (await directory.port(ID).ask(ReadRequest(ID, 7, 0, 1))).status is Status.NO_SUCH_LEDGER
    await directory.stop()
