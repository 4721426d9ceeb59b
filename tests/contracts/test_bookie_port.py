"""One contract for every `BookiePort`: on disks, in process and over TCP; on object storage; and the fake of tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from quire.bookie.server import BookieServer
from quire.bookie.settings import BookieSettings
from quire.bookie.storage import Storage
from quire.ledger.bookie_client import BookieClient
from quire.objects.open import open_for_log
from quire.runtime.limits import MIB
from quire.testing.bookie import MemoryBookie
from quire.testing.metadata import MemoryStore
from quire.testing.objects import MemoryObjectStore
from quire.wal.own_record import OwnRecord
from quire.wal.storage import WalStorage
from quire.wire import block
from quire.wire.bookie import (
    AddDone,
    AddRequest,
    BookieId,
    BookiePort,
    DeleteRequest,
    FindHoleRequest,
    FindTimeRequest,
    LedgerInfoRequest,
    LedgerList,
    ListLedgersRequest,
    ReadRequest,
    ReadResponse,
    Request,
    Status,
    WriteLacRequest,
)
from tests.wal.context import wal_context

OK = Status.OK
R = TypeVar("R")


class Port:
    """A port with the identity it serves, and short names."""

    def __init__(self, port: BookiePort, bookie: BookieId) -> None:
        self.port = port
        self.bookie = bookie

    async def add(self, *blocks: bytes, recovery: bool = False) -> list[Status]:
        answer: asyncio.Future[Sequence[Status]] = asyncio.get_running_loop().create_future()
        self.port.add(AddRequest(self.bookie, list(blocks), recovery), answer.set_result)
        assert not answer.done(), "answered before add returned"
        return list(await answer)

    async def read(
        self, ledger_id: int, first_entry: int, bytes_max: int = 1 << 20, fence: bool = False
    ) -> ReadResponse:
        return await self.port.ask(ReadRequest(self.bookie, ledger_id, first_entry, bytes_max, fence))


class Flushed:
    """A WAL all of whose blocks are in sets when it is asked. A `BookiePort`."""

    def __init__(self, wal: WalStorage) -> None:
        self._wal = wal

    def add(self, request: AddRequest, done: AddDone) -> None:
        self._wal.add(request, done)

    async def ask(self, request: Request[R]) -> R:
        await self._wal.flush()
        return await self._wal.ask(request)


@asynccontextmanager
async def wal_port(folder: Path | None) -> AsyncIterator[WalStorage]:
    store = MemoryObjectStore() if folder is None else open_for_log(f"file://{folder}/wal", 4)
    context = wal_context(store, MemoryStore())
    wal = WalStorage(context, await OwnRecord.begin(context), lambda _wal, why: pytest.fail(str(why)))
    wal.start()
    yield wal
    await wal.stop()
    await store.close()


@pytest.fixture(params=["local", "tcp", "memory", "wal", "wal in a directory", "wal in sets"])
async def port(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Port]:
    if request.param == "memory":
        bookie = BookieId("00000000-0000-4000-8000-000000000001", 1)
        yield Port(MemoryBookie(bookie), bookie)
        return
    if request.param.startswith("wal"):
        async with wal_port(tmp_path if "directory" in request.param else None) as wal:
            yield Port(Flushed(wal), wal.bookie_id) if "sets" in request.param else Port(wal, wal.bookie_id)
        return
    storage = Storage(
        BookieSettings(
            journal=str(tmp_path / "journal"),
            entry_log=str(tmp_path / "entries"),
            journal_segment_bytes=16 * MIB,
            disk_reserve_bytes=MIB,
        )
    )
    await storage.start()
    if request.param == "local":
        yield Port(storage, storage.bookie_id)
    else:
        server = BookieServer(storage)
        await server.start()
        client = BookieClient(server.address)
        yield Port(client, storage.bookie_id)
        await client.close()
        await server.stop()
    await storage.stop()


def made(ledger_id: int, first_entry: int, count: int = 1, letter: bytes = b"e") -> bytes:
    entries = [letter * 10] * count
    return bytes(
        block.cut(ledger_id, first_entry, first_entry - 1, 1_000 + first_entry, first_entry, entries)
    )


async def test_blocks_are_read_as_they_were_added(port: Port) -> None:
    blocks = [made(1, 0, 3), made(1, 3), made(1, 4, 2)]
    assert await port.add(*blocks) == [OK] * 3
    answer = await port.read(1, 1)
    assert (answer.status, answer.lac) == (OK, 3)
    assert list(map(bytes, answer.blocks)) == blocks
    assert list(map(bytes, (await port.read(1, 3, 1)).blocks)) == blocks[1:2]


async def test_only_an_explicit_answer_about_the_entry_is_a_negative(port: Port) -> None:
    assert (await port.read(1, 0)).status is Status.NO_SUCH_LEDGER
    await port.add(made(1, 0), made(1, 2))
    answer = await port.read(1, 1)
    assert answer.status is Status.NO_SUCH_ENTRY and not answer.blocks
    assert len((await port.read(1, 0)).blocks) == 1
    assert (await port.read(1, 3)).status is Status.NO_SUCH_ENTRY


async def test_a_status_for_each_block_in_order(port: Port) -> None:
    await port.read(2, 0, fence=True)
    damaged = bytearray(made(3, 0))
    damaged[-1] ^= 1
    statuses = await port.add(made(1, 0), made(2, 0), bytes(damaged), made(4, 0))
    assert statuses == [OK, Status.FENCED, Status.BAD_BLOCK, OK]


async def test_a_fence_stops_writers_but_not_recovery(port: Port) -> None:
    await port.add(made(1, 0))
    answer = await port.read(1, 1, fence=True)
    assert answer.status is Status.NO_SUCH_ENTRY
    assert await port.add(made(1, 1)) == [Status.FENCED]
    assert await port.add(made(1, 1), recovery=True) == [OK]
    assert (await port.port.ask(LedgerInfoRequest(port.bookie, 1))).fenced


async def test_a_fence_creates_the_ledger(port: Port) -> None:
    assert (await port.read(1, 0, fence=True)).status is Status.NO_SUCH_ENTRY
    assert await port.add(made(1, 0)) == [Status.FENCED]


async def test_same_bytes_again_and_other_bytes(port: Port) -> None:
    await port.add(made(1, 0, 2))
    assert await port.add(made(1, 0, 2)) == [OK]
    assert await port.add(made(1, 0, 2, b"x")) == [Status.CONFLICT]
    assert await port.add(made(1, 1)) == [Status.CONFLICT]


async def test_the_explicit_lac_is_told(port: Port) -> None:
    await port.add(made(1, 0))
    assert (await port.port.ask(WriteLacRequest(port.bookie, 1, 0))).status is OK
    assert (await port.read(1, 0)).lac == 0


async def test_a_deleted_ledger_never_comes_back(port: Port) -> None:
    await port.add(made(1, 0))
    assert (await port.port.ask(DeleteRequest(port.bookie, 1, 3))).status is OK
    assert (await port.port.ask(DeleteRequest(port.bookie, 1, 3))).status is OK
    assert (await port.read(1, 0)).status is Status.DELETED
    assert await port.add(made(1, 0)) == [Status.DELETED]


async def test_seek_by_time(port: Port) -> None:
    await port.add(*[made(1, entry) for entry in range(5)])
    assert (await port.port.ask(FindTimeRequest(port.bookie, 1, 1_003))).entry <= 3
    assert (await port.port.ask(FindTimeRequest(port.bookie, 1, 0))).entry == 0
    assert (await port.port.ask(FindTimeRequest(port.bookie, 1, 9_999))).entry == 5


async def test_the_first_hole(port: Port) -> None:
    await port.add(made(1, 0, 2), made(1, 2), made(1, 5, 3))

    async def hole(first_entry: int, last_entry: int) -> int:
        answer = await port.port.ask(FindHoleRequest(port.bookie, 1, first_entry, last_entry))
        assert answer.status is OK
        return answer.entry

    assert [await hole(0, 9), await hole(1, 2), await hole(3, 9), await hole(4, 4)] == [3, 3, 3, 4]
    assert [await hole(5, 6), await hole(6, 7), await hole(5, 9), await hole(20, 30)] == [7, 8, 8, 20]
    other = await port.port.ask(FindHoleRequest(port.bookie, 9, 0, 1))
    assert other.status is Status.NO_SUCH_LEDGER
    await port.port.ask(DeleteRequest(port.bookie, 1, 3))
    deleted = await port.port.ask(FindHoleRequest(port.bookie, 1, 0, 7))
    assert deleted.status is Status.DELETED


async def test_the_list_of_ledgers(port: Port) -> None:
    await port.add(made(1, 0), made(1 << 62 | 1, 0), made(3, 0))
    await port.port.ask(DeleteRequest(port.bookie, 3, 3))
    listed = await port.port.ask(ListLedgersRequest(port.bookie, 0, 10))
    assert listed == LedgerList(OK, [1, 3, 1 << 62 | 1], [3])
    assert await port.port.ask(ListLedgersRequest(port.bookie, 2, 1)) == LedgerList(OK, [3], [3])
    assert await port.port.ask(ListLedgersRequest(port.bookie, 4, 10)) == LedgerList(OK, [1 << 62 | 1], [])


async def test_ledger_info(port: Port) -> None:
    await port.add(made(1, 0, 4))
    info = await port.port.ask(LedgerInfoRequest(port.bookie, 1))
    assert (info.status, info.last_entry, info.fenced, info.bytes) == (OK, 3, False, len(made(1, 0, 4)))
    assert (await port.port.ask(LedgerInfoRequest(port.bookie, 9))).status is Status.NO_SUCH_LEDGER


async def test_a_request_for_another_identity_is_refused(port: Port) -> None:
    stranger = BookieId("00000000-0000-4000-8000-00000000ffff", 1)
    answer = await port.port.ask(ReadRequest(stranger, 1, 0, 1))
    assert answer.status is Status.WRONG_BOOKIE
    statuses: asyncio.Future[Sequence[Status]] = asyncio.get_running_loop().create_future()
    port.port.add(AddRequest(stranger, [made(1, 0)]), statuses.set_result)
    assert list(await statuses) == [Status.WRONG_BOOKIE]


async def test_a_large_read_and_many_requests_side_by_side(port: Port) -> None:
    blocks = [
        bytes(block.cut(1, entry, entry - 1, 1, entry, [bytes([entry]) * 100_000])) for entry in range(20)
    ]
    answers = await asyncio.gather(*[port.add(each) for each in blocks])
    assert answers == [[OK]] * 20
    assert list(map(bytes, (await port.read(1, 0, 4 * MIB)).blocks)) == blocks
