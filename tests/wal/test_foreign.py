"""A WAL of another: what is in it is read, what is not is never denied while it is open, and a fence closes it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quire.metadata import paths
from quire.metadata.records import WalState
from quire.runtime.errors import (
    ConfigurationError,
    DiskError,
    OutcomeUnknown,
    QuireError,
    Unavailable,
    Unreadable,
)
from quire.wal import foreign, tombstones, wal_object
from quire.wal.closing import close_wal
from quire.wal.collector import Collector
from quire.wal.foreign import ForeignWal
from quire.wire.bookie import (
    FindHoleRequest,
    FindTimeRequest,
    LedgerInfoRequest,
    Status,
)
from tests.wal.blocks import made
from tests.wal.node import Asked, Node


class Other(Asked):
    """Another broker that reads a WAL, or takes it over."""

    def __init__(self, node: Node) -> None:
        self.wal = ForeignWal(node.context, node.uuid)
        super().__init__(self.wal, node.bookie_id)


async def test_an_open_wal_is_read_as_it_grows_and_nothing_is_denied() -> None:
    node = await Node().start()
    other = Other(node)
    await node.add(made(1, 0))
    assert await other.read(1, 0) == [made(1, 0)]
    assert (await other.ask(1, 1)).status is Status.UNREACHABLE
    await node.add(made(1, 1))
    assert await other.read(1, 1) == [made(1, 1)]
    await node.wal.flush()
    await node.wal.trash.emptied()
    assert await other.read(1, 0) == [made(1, 0), made(1, 1)], "it lies in a set now"
    await node.add(made(1, 2))
    assert await other.read(1, 2) == [made(1, 2)]
    assert (await other.ask(7, 0)).status is Status.UNREACHABLE
    assert not node.ended and (await node.record()).state is WalState.OPEN
    assert list(await other.queue(made(1, 3), recovery=True)) == [Status.UNREACHABLE]
    await node.wal.stop()


@pytest.mark.parametrize("in_sets", [False, True])
async def test_a_fence_closes_it_and_then_all_is_known(in_sets: bool) -> None:
    node = await Node().start()
    await node.add(made(1, 0, 2), made(2, 0))
    if in_sets:
        await node.wal.flush()
    await node.add(made(1, 2))
    other = Other(node)
    answers = await asyncio.gather(*(other.ask(1, 2, fence=True) for _ in range(5)))
    assert {answer.status for answer in answers} == {Status.OK}
    assert answers[0].lac == 2
    assert (await node.record()).state is WalState.CLOSED
    assert (await other.ask(1, 3)).status is Status.NO_SUCH_ENTRY
    assert (await other.ask(9, 0)).status is Status.NO_SUCH_ENTRY
    assert list(await other.queue(made(1, 2), recovery=True)) == [Status.OK]
    assert list(await other.queue(made(1, 3), recovery=True)) == [Status.UNREACHABLE]
    assert list(await other.queue(made(1, 3))) == [Status.UNREACHABLE]
    info = await other.port.ask(LedgerInfoRequest(other.bookie_id, 1))
    assert (info.last_entry, info.lac, info.fenced) == (2, -1, True)
    assert (await other.ask(1, 0)).lac < 2, "the ledger's writer may have gone on from there with another WAL"
    hole = await other.port.ask(FindHoleRequest(other.bookie_id, 1, 0, 9))
    assert (hole.status, hole.entry) == (Status.OK, 3)
    found = await other.port.ask(FindTimeRequest(other.bookie_id, 1, 1_002))
    assert found.entry <= 2
    await asyncio.sleep(0.02)
    assert len(node.ended) == 1, "its writer has heard of it"
    await node.wal.stop()


async def test_a_close_goes_on_for_those_who_ask_later_and_reads_each_header_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its callers' patience ends many times before it does, as it may over many objects in a far store."""
    monkeypatch.setattr(foreign, "CLOSE_S", 0.02)
    node = await Node().start()
    for number in range(40):
        await node.add(made(1, number))
    real, headers = node.store.get_range, 0

    async def far(name: str, offset: int, length: int) -> Any:
        nonlocal headers
        headers += length == wal_object.HEADER_BYTES
        await asyncio.sleep(0.02)
        return await real(name, offset, length)

    monkeypatch.setattr(node.store, "get_range", far)
    other = Other(node)
    answers = 0
    while (answer := await other.ask(1, 0, fence=True)).status is Status.UNREACHABLE:
        answers += 1
        assert answers < 100 and "is still being closed" in answer.detail
    assert answer.status is Status.OK and answers > 2
    assert headers < 40 + 64 + 3 + 40, "the close once, and the view once"
    await node.wal.stop()


async def test_small_objects_are_read_once_for_all_the_ledgers_in_them() -> None:
    node = await Node().start()
    for number in range(10):
        await node.add(*(made(ledger, number) for ledger in range(1, 8)))
    await close_wal(node.context, node.uuid)
    other = Other(node)
    node.store.faults.calls.clear()
    for ledger in range(1, 8):
        assert await other.read(ledger, 0) == [made(ledger, number) for number in range(10)]
    assert node.store.faults.calls.count("get_range") == 2 * 10, "a header, and the object"
    await node.wal.stop()


async def test_what_came_rotten_is_read_again() -> None:
    node = await Node().start()
    await node.add(made(1, 0), made(2, 0))
    name = wal_object.data_name(node.uuid, 0)
    node.store.faults.flip(name, wal_object.HEADER_BYTES + 20)
    other = Other(node)
    assert (await other.ask(1, 0)).status is Status.IO_ERROR
    assert await other.read(2, 0) == [made(2, 0)], "the damage is another ledger's"
    node.store.faults.flip(name, wal_object.HEADER_BYTES + 20)
    assert await other.read(1, 0) == [made(1, 0)], (
        "the store has it whole again, and the cache the rotten one"
    )
    await node.wal.stop()


async def test_what_a_writer_had_under_way_is_in_or_out_for_all() -> None:
    """Two take it over at once while it writes; what was acknowledged is there for both, and they agree on the rest."""
    node = await Node().start()
    answers = []
    for number in range(30):
        answers.append(node.queue(made(1, number)))
        await asyncio.sleep(0.002)
    both = [Other(node), Other(node)]
    fenced = [asyncio.ensure_future(other.ask(1, 0, fence=True)) for other in both]
    for number in range(30, 60):
        answers.append(node.queue(made(1, number)))
        await asyncio.sleep(0.002)
    first, second = await asyncio.gather(*fenced)
    assert first.lac == second.lac
    acknowledged = [n for n, answer in enumerate(answers) if list(await answer) == [Status.OK]]
    assert acknowledged and acknowledged[-1] <= first.lac
    await node.wal.stop()


async def test_a_deletion_waits_for_the_keeper_and_holds_at_once_for_nobody_else() -> None:
    node = await Node().start()
    await node.add(made(1, 0), made(2, 0))
    other = Other(node)
    await other.delete(1)
    assert await tombstones.laid(node.metadata, node.uuid) == {1: 7}
    await node.wal.stop()


async def test_a_wal_that_is_gone_held_nothing() -> None:
    node = await Node().start()
    await node.wal.stop()
    await node.metadata.delete(paths.wal(node.uuid))
    other = Other(node)
    assert (await other.ask(1, 0, fence=True)).status is Status.NO_SUCH_ENTRY
    info = await other.port.ask(LedgerInfoRequest(other.bookie_id, 1))
    assert info.last_entry == -1


async def test_a_record_that_was_lost_is_not_taken_for_proof() -> None:
    node = await Node().start()
    await node.add(made(1, 0))
    await node.wal.stop()
    await node.metadata.delete(paths.wal(node.uuid))
    answer = await Other(node).ask(1, 0, fence=True)
    assert answer.status is Status.UNREACHABLE


async def test_a_fence_of_one_who_was_late_is_no_damage_and_no_end() -> None:
    """He puts it where an object was that is in a set by now: who has looked before that looks again."""
    node = await Node().start()
    for number in range(3):
        await node.add(made(1, number))
    reader = Other(node)
    assert (await reader.ask(1, 9, fence=True)).lac == 2
    await Collector(node.context, lambda: None, lambda: True).look()
    late = wal_object.encode_fence(node.uuid, 1, 1, "late")
    await node.store.put_whole(wal_object.data_name(node.uuid, 1), [late])
    await node.context.cache.close()  # which has the object that was there
    assert (await reader.read(1, 1))[0] == made(1, 1)
    await node.wal.stop()


async def test_damage_is_told_and_never_taken_for_an_end() -> None:
    node = await Node().start()
    for number in range(3):
        await node.add(made(1, number))
    node.store.faults.flip(wal_object.data_name(node.uuid, 1), 20)
    answer = await Other(node).ask(1, 0, fence=True)
    assert answer.status is Status.IO_ERROR
    assert (await node.record()).state is not WalState.CLOSED
    await node.wal.stop()


@pytest.mark.parametrize(
    "error",
    [
        Unavailable("503"),
        OutcomeUnknown("lost"),
        ConfigurationError("AccessDenied"),
        DiskError("Too many open files"),
        Unreadable("Input/output error"),
    ],
)
async def test_a_store_that_does_not_answer_proves_nothing(error: QuireError) -> None:
    node = await Node().start()
    await node.add(made(1, 0))
    other = Other(node)
    node.store.faults.fail_next("get_range", error)
    assert (await other.ask(1, 0)).status is Status.UNREACHABLE
    assert await other.read(1, 0) == [made(1, 0)]
    await node.wal.stop()
