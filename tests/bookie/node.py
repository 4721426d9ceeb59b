"""A storage node for tests, with short names for what one does to it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from quire.bookie.disks import BookieDisks
from quire.bookie.settings import BookieSettings
from quire.bookie.storage import Storage
from quire.metadata import paths
from quire.metadata.retirement import retirement
from quire.metadata.store import Delete, MetadataStore
from quire.testing.node import SMALL_SETTINGS, SimulatedNode
from quire.wire import block
from quire.wire.block import Buffer
from quire.wire.bookie import (
    AddRequest,
    BookieId,
    DeleteRequest,
    FindHoleRequest,
    FindTimeRequest,
    LedgerInfo,
    LedgerInfoRequest,
    ReadRequest,
    ReadResponse,
    SimpleResponse,
    Status,
    WriteLacRequest,
)

OK = Status.OK


async def retire(store: MetadataStore, uuid: str) -> None:
    """As a coordinator does."""
    await store.transact([Delete(paths.bookie(uuid)), retirement(uuid)])


def one(ledger_id: int, first_entry: int, size: int = 100, *, count: int = 1, letter: str = "") -> bytes:
    """A block whose entries say where they belong, or consist of `letter`."""
    entries: list[Buffer] = []
    for entry_id in range(first_entry, first_entry + count):
        text = letter.encode() if letter else b"%d/%d " % (ledger_id, entry_id)
        entries.append((text * size)[:size])
    made = block.cut(ledger_id, first_entry, first_entry - 1, 1_000 + first_entry, first_entry, entries)
    return bytes(made)


class Node:
    """A started `Storage`. `Node.on(simulated)` starts one on a simulated machine."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    @classmethod
    async def start(cls, settings: BookieSettings, disks: BookieDisks | None = None, **rest: object) -> Node:
        storage = Storage(settings, disks, **rest)  # type: ignore[arg-type]
        await storage.start()
        return cls(storage)

    @classmethod
    async def on(cls, machine: SimulatedNode, settings: BookieSettings = SMALL_SETTINGS) -> Node:
        return await cls.start(settings, machine.disks(), rng=machine.rng)

    @property
    def id(self) -> BookieId:
        return self.storage.bookie_id

    def begin_add(
        self, *blocks: Buffer, recovery: bool = False, bookie: BookieId | None = None
    ) -> asyncio.Future[Sequence[Status]]:
        answer: asyncio.Future[Sequence[Status]] = asyncio.get_running_loop().create_future()
        self.storage.add(AddRequest(bookie or self.id, list(blocks), recovery), answer.set_result)
        assert not answer.done(), "answered before add returned"
        return answer

    async def add(
        self, *blocks: Buffer, recovery: bool = False, bookie: BookieId | None = None
    ) -> list[Status]:
        return list(await self.begin_add(*blocks, recovery=recovery, bookie=bookie))

    async def read(
        self,
        ledger_id: int,
        first_entry: int,
        *,
        bytes_max: int = 1 << 20,
        fence: bool = False,
        bookie: BookieId | None = None,
    ) -> ReadResponse:
        request = ReadRequest(bookie or self.id, ledger_id, first_entry, bytes_max, fence)
        return await self.storage.ask(request)

    async def holds(self, ledger_id: int, first_entry: int) -> bytes | Status:
        """The block that begins there, or why there is none."""
        answer = await self.read(ledger_id, first_entry, bytes_max=1)
        return bytes(answer.blocks[0]) if answer.status is OK else answer.status

    async def write_lac(self, ledger_id: int, lac: int) -> SimpleResponse:
        return await self.storage.ask(WriteLacRequest(self.id, ledger_id, lac))

    async def delete(self, ledger_id: int, version: int = 1) -> SimpleResponse:
        return await self.storage.ask(DeleteRequest(self.id, ledger_id, version))

    async def find_time(self, ledger_id: int, time_ms: int) -> int:
        return (await self.storage.ask(FindTimeRequest(self.id, ledger_id, time_ms))).entry

    async def hole(self, ledger_id: int, first_entry: int, last_entry: int) -> tuple[Status, int]:
        answer = await self.storage.ask(FindHoleRequest(self.id, ledger_id, first_entry, last_entry))
        return answer.status, answer.entry

    async def info(self, ledger_id: int) -> LedgerInfo:
        return await self.storage.ask(LedgerInfoRequest(self.id, ledger_id))


async def restart(node: Node, machine: SimulatedNode) -> Node:
    await node.storage.stop()
    return await Node.on(machine)


async def crash(machine: SimulatedNode) -> Node:
    machine.crash()
    return await Node.on(machine)
