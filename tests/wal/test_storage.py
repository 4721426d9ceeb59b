"""A node on object storage: where its blocks are at each moment, what is deleted when, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from quire.metadata.records import WalRecord, WalState
from quire.runtime.errors import NotFound, OutcomeUnknown, QuireError, Unavailable
from quire.runtime.limits import KIB, MIB
from quire.testing.metadata import MemoryStore
from quire.testing.objects import MemoryObjectStore
from quire.wal import tombstones, wal_object
from quire.wal.own_record import OwnRecord
from quire.wal.settings import WalSettings
from quire.wal.storage import WalStorage
from quire.wire.bookie import (
    AddRequest,
    DeleteRequest,
    LedgerInfoRequest,
    ReadRequest,
    SimpleResponse,
    Status,
)
from tests.wal.blocks import made
from tests.wal.context import wal_context


class Node:
    """A WAL that is being written, its store, and short names."""

    def __init__(self, settings: WalSettings | None = None) -> None:
        self.store = MemoryObjectStore()
        self.metadata = MemoryStore()
        self.context = wal_context(self.store, self.metadata, settings=settings)
        self.ended: list[QuireError] = []

    async def start(self) -> Node:
        self.wal = WalStorage(
            self.context, await OwnRecord.begin(self.context), lambda _, why: self.ended.append(why)
        )
        self.wal.start()
        return self

    @property
    def uuid(self) -> str:
        return self.wal.bookie_id.uuid.removeprefix("wal-")

    async def record(self) -> WalRecord:
        return (await OwnRecord.read(self.metadata, self.uuid)).record

    def queue(self, *blocks: bytes) -> asyncio.Future[Sequence[Status]]:
        answer: asyncio.Future[Sequence[Status]] = asyncio.get_running_loop().create_future()
        self.wal.add(AddRequest(self.wal.bookie_id, blocks), answer.set_result)
        return answer

    async def add(self, *blocks: bytes) -> None:
        assert list(await self.queue(*blocks)) == [Status.OK] * len(blocks)

    async def read(self, ledger_id: int, entry: int) -> list[bytes]:
        answer = await self.wal.ask(ReadRequest(self.wal.bookie_id, ledger_id, entry, MIB))
        return list(map(bytes, answer.blocks))

    async def delete(self, ledger_id: int) -> None:
        answer = await self.wal.ask(DeleteRequest(self.wal.bookie_id, ledger_id, 7))
        assert answer == SimpleResponse(Status.OK)

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


async def test_a_flush_puts_a_set_in_place_of_data_objects() -> None:
    node = await Node().start()
    await node.add(made(1, 0), made(2, 0))
    await node.add(made(1, 1))
    assert node.objects() == ["0", "1"]
    await node.wal.flush()
    await node.wal.emptied()
    assert node.objects() == ["set", "sets"]
    assert (await node.record()).trim_seq == 2
    await node.add(made(1, 2))
    assert node.objects() == ["2", "set", "sets"]
    assert [await node.read(1, entry) for entry in range(3)] == [
        [made(1, 0), made(1, 1)],
        [made(1, 1)],
        [made(1, 2)],
    ]
    info = await node.wal.ask(LedgerInfoRequest(node.wal.bookie_id, 1))
    assert (info.last_entry, info.bytes, info.flushed) == (2, 3 * len(made(1, 0)), True)
    await node.wal.stop()


async def test_when_all_ledgers_are_deleted_nothing_is_left() -> None:
    node = await Node().start()
    await node.add(made(1, 0), made(2, 0))
    await node.wal.flush()
    await node.add(made(2, 1), made(3, 0))
    await node.delete(1)
    await node.wal.tidy()
    assert node.objects().count("set") == 1, "ledger 2 is alive"
    for ledger_id in (2, 3):
        await node.delete(ledger_id)
    await node.wal.tidy()
    await node.wal.emptied()
    assert node.objects() == []
    record = await node.record()
    assert (record.catalogue, record.trim_seq) == ("", 5)
    await node.wal.stop()


async def test_a_tombstone_that_another_laid_counts_and_is_taken_away_when_it_is_recorded() -> None:
    node = await Node().start()
    await node.add(made(1, 0), made(2, 0))
    await node.wal.flush()
    await tombstones.lay(node.metadata, node.uuid, 1, 9)
    await tombstones.lay(node.metadata, node.uuid, 1, 9)
    await eventually(lambda: bool(node.wal.laid))
    await node.wal.tidy()
    assert await tombstones.laid(node.metadata, node.uuid) == {}
    assert (await node.wal.ask(ReadRequest(node.wal.bookie_id, 1, 0, MIB))).status is Status.DELETED
    await node.delete(2)
    await node.wal.tidy()
    await node.wal.emptied()
    assert node.objects() == []
    await node.wal.stop()


async def test_a_stop_leaves_all_in_sets_and_closes_without_a_fence() -> None:
    node = await Node().start()
    await node.add(made(1, 0))
    await node.wal.stop()
    assert node.objects() == ["set", "sets"]
    record = await node.record()
    assert (record.state, record.trim_seq, record.end_seq) == (WalState.CLOSED, 1, 1)
    assert not node.ended


async def test_an_idle_node_asks_the_store_nothing() -> None:
    node = await Node().start()
    await node.wal.tidy()
    await node.wal.flush()
    await node.wal.stop()
    assert node.store.faults.calls == []
    assert (await node.record()).end_seq == 0


async def test_who_is_closed_ends_at_its_next_flush_and_answers_unreachable() -> None:
    node = await Node().start()
    await node.add(made(1, 0))
    await (await OwnRecord.read(node.metadata, node.uuid)).change(state=WalState.CLOSING)
    await node.add(made(1, 1))
    with pytest.raises(Unavailable):
        await node.wal.flush()
    assert len(node.ended) == 1
    assert set(await node.queue(made(1, 2))) <= {Status.UNREACHABLE, Status.IO_ERROR}
    assert {"0", "1"} <= set(node.objects()), "whoever closes it reads them"
    await node.wal.stop()
    assert (await node.record()).state is WalState.CLOSING


async def test_a_fence_ends_it_and_what_was_not_acknowledged_stays_unknown() -> None:
    node = await Node().start()
    await node.add(made(1, 0))
    fence = wal_object.encode_fence(node.uuid, 1, 0, "somebody")
    await node.store.put_whole(wal_object.data_name(node.uuid, 1), (fence,))
    assert list(await node.queue(made(1, 1))) == [Status.UNREACHABLE]
    assert len(node.ended) == 1
    await node.wal.stop()
    assert (await node.record()).state is WalState.OPEN


@pytest.mark.parametrize("happened", [False, True])
@pytest.mark.parametrize("call", ["begin", "write", "finish", "get_range", "delete"])
async def test_a_store_that_fails_once_costs_nothing_but_time(call: str, happened: bool) -> None:
    node = await Node().start()
    await node.add(made(1, 0))
    for _ in range(2):
        error = OutcomeUnknown("lost") if call in ("finish", "delete") else Unavailable("away")
        node.store.faults.fail_next(call, error, happened=happened)
    await node.add(made(1, 1))
    node.store.faults.fail_next(call, error, happened=happened)
    await node.wal.flush()
    assert await node.read(1, 0) == [made(1, 0), made(1, 1)]
    await node.delete(1)
    await node.wal.tidy()
    await node.wal.emptied()
    assert node.objects() == [], "what was given up is deleted, too"
    await node.wal.stop()
    assert not node.ended


async def test_a_store_that_refuses_stops_the_line_and_loses_nothing() -> None:
    """What comes waits in line; the memtables' two sizes are what the node holds."""
    settings = WalSettings(wal_batch_ms=10, wal_batch_bytes=MIB, wal_memory_bytes=4 * MIB)
    node = await Node(settings).start()
    refusing = True

    def refuse(call: str) -> None:
        if refusing and call != "delete":
            raise Unavailable("503 SlowDown")

    node.store.faults.before = refuse
    blocks = [made(1, number, 1, 200 * KIB) for number in range(60)]
    answers = [node.queue(block) for block in blocks]
    await asyncio.sleep(0.3)
    assert not any(answer.done() for answer in answers)
    assert node.wal.cache.active.size_bytes + node.wal.cache.frozen.size_bytes < 5 * MIB  # type: ignore[union-attr]
    assert node.wal.bytes_unflushed > 60 * 200 * KIB, "the budget sees those that wait, too"
    refusing = False
    assert [list(await answer) for answer in answers] == [[Status.OK]] * 60
    await node.wal.flush()
    entry = 0
    while entry < 60:
        found = await node.read(1, entry)
        assert found == blocks[entry : entry + len(found)] and found
        entry += len(found)
    assert not node.ended
    await node.wal.stop()


async def test_a_set_that_was_named_is_never_taken_for_absent() -> None:
    node = await Node().start()
    await node.add(made(1, 0))
    await node.wal.flush()
    (name,) = [name for name in node.store.faults.objects if "/set-" in name]
    del node.store.faults.objects[name]
    answer = await node.wal.ask(ReadRequest(node.wal.bookie_id, 1, 0, MIB))
    assert answer.status is Status.IO_ERROR and "set-" in answer.detail
    with pytest.raises(NotFound):
        await node.store.size(name)
    await node.wal.stop()
