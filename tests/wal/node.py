"""A WAL that is being written, for tests, and short names for what is asked of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from quire.metadata.records import WalRecord
from quire.runtime.errors import QuireError
from quire.runtime.limits import MIB
from quire.testing.metadata import MemoryStore
from quire.testing.objects import MemoryObjectStore
from quire.wal.own_record import OwnRecord
from quire.wal.settings import WalSettings
from quire.wal.storage import WalStorage
from quire.wire.bookie import (
    AddRequest,
    BookieId,
    BookiePort,
    DeleteRequest,
    ReadRequest,
    ReadResponse,
    SimpleResponse,
    Status,
)
from tests.wal.context import wal_context


class Asked:
    """A port, and short names for requests to the WAL `bookie_id` through it."""

    def __init__(self, port: BookiePort, bookie_id: BookieId) -> None:
        self.port = port
        self.bookie_id = bookie_id

    def queue(self, *blocks: bytes, recovery: bool = False) -> asyncio.Future[Sequence[Status]]:
        answer: asyncio.Future[Sequence[Status]] = asyncio.get_running_loop().create_future()
        self.port.add(AddRequest(self.bookie_id, blocks, recovery), answer.set_result)
        return answer

    async def add(self, *blocks: bytes) -> None:
        assert list(await self.queue(*blocks)) == [Status.OK] * len(blocks)

    async def ask(self, ledger_id: int, entry: int, *, fence: bool = False) -> ReadResponse:
        return await self.port.ask(ReadRequest(self.bookie_id, ledger_id, entry, MIB, fence))

    async def read(self, ledger_id: int, entry: int) -> list[bytes]:
        return list(map(bytes, (await self.ask(ledger_id, entry)).blocks))

    async def delete(self, ledger_id: int) -> None:
        answer = await self.port.ask(DeleteRequest(self.bookie_id, ledger_id, 7))
        assert answer == SimpleResponse(Status.OK)


class Node(Asked):
    def __init__(
        self,
        settings: WalSettings | None = None,
        store: MemoryObjectStore | None = None,
        metadata: MemoryStore | None = None,
    ) -> None:
        self.store = store or MemoryObjectStore()
        self.metadata = metadata or MemoryStore()
        self.context = wal_context(self.store, self.metadata, settings=settings)
        self.ended: list[QuireError] = []

    async def start(self) -> Node:
        record = await OwnRecord.begin(self.context)
        self.wal = WalStorage(self.context, record, lambda _, why: self.ended.append(why))
        self.wal.start()
        super().__init__(self.wal, self.wal.bookie_id)
        return self

    @property
    def uuid(self) -> str:
        return self.bookie_id.uuid.removeprefix("wal-")

    async def record(self) -> WalRecord:
        return (await OwnRecord.read(self.metadata, self.uuid)).record

    def objects(self) -> list[str]:
        """Last parts of the names of all objects there are: data objects as numbers, else `set` or `sets`."""
        last = [name.rpartition("/")[2] for name in sorted(self.store.faults.objects)]
        return [name.partition("-")[0] if "-" in name else str(int(name, 16)) for name in last]


async def eventually(is_so: Callable[[], bool]) -> None:
    for _ in range(1_000):
        if is_so():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came")
