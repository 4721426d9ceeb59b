"""Bookies that go for good: drained by an operator or by themselves, given up; and who must not go yet."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from quire.ledger.bookies import Bookies
from quire.ledger.retiring import known_bookies
from quire.metadata import paths
from quire.metadata.records import (
    BookieIntent,
    LedgerRecord,
    LedgerState,
    decode,
    encode,
)
from quire.metadata.store import Node
from quire.runtime.errors import NotFound
from quire.testing.cluster import Listener, cut, turns_until, write
from quire.wire.bookie import AddRequest, ReadRequest, Status
from tests.ledger.repair_cluster import Cluster, one_more

CLOSED = LedgerState.CLOSED


async def test_a_drained_bookie_is_retired_when_nothing_names_it(cluster: Cluster) -> None:
    records = [await cluster.closed() for _ in range(5)]
    await one_more(cluster)
    cluster.bookies[0].refuses = Status.READ_ONLY
    await cluster.want(0, BookieIntent.DRAIN)
    for _ in range(5):
        await cluster.repair.look()
    assert "bookie-0" in await known_bookies(cluster.store), (
        "who chose it before may be about to write its record"
    )
    await cluster.looks(3)
    assert sorted(await known_bookies(cluster.store)) == ["bookie-1", "bookie-2", "bookie-3"]
    for record in records:
        after = await cluster.info(record.ledger_id)
        assert set(after.fragments[0].bookies) == {"bookie-1:1", "bookie-2:1", "bookie-3:1"}
        await cluster.ledgers.delete(record.ledger_id)
        answer = await cluster.bookies[0].ask(ReadRequest(cluster.bookies[0].bookie, record.ledger_id, 0, 1))
        assert answer.status is Status.DELETED, "the copies that were left are deleted with the ledger"


async def test_a_drained_bookie_stays_while_its_copies_cannot_be_made(cluster: Cluster) -> None:
    """It empties its directories when it is retired: what failed must never count as done."""
    record = await cluster.closed()
    await one_more(cluster)
    cluster.bookies[0].refuses = Status.READ_ONLY
    cluster.bookies[3].unreachable = True  # and still registered: its session has not ended yet
    await cluster.want(0, BookieIntent.DRAIN)
    await cluster.looks(5)
    assert "bookie-0" in await known_bookies(cluster.store)
    assert await cluster.info(record.ledger_id) == record
    assert cluster.repair.status().left == {"bookie-0": 1}
    cluster.bookies[3].unreachable = False
    for _ in range(3):
        cluster.clock.advance_ms(60_000)
        await cluster.repair.look()
    assert "bookie-0" not in await known_bookies(cluster.store)
    assert "bookie-3:1" in cluster.holders(record)


async def test_nobody_is_retired_while_a_ledgers_record_cannot_be_read(cluster: Cluster) -> None:
    record = await cluster.closed()
    await one_more(cluster)
    cluster.bookies[0].refuses = Status.READ_ONLY
    node = await cluster.store.get(paths.ledger(record.ledger_id))
    await cluster.store.put(paths.ledger(record.ledger_id), b"not a record", node.version)
    await cluster.want(0, BookieIntent.DRAIN)
    await cluster.looks(5)
    assert "bookie-0" in await known_bookies(cluster.store)


async def drains_by_itself(cluster: Cluster, number: int, *, there: bool = True) -> None:
    """The bookie was told to stop: it says so in its ephemeral record, which the coordinator has seen."""
    each = cluster.bookies[number]
    each.refuses = Status.READ_ONLY
    record = replace(each.record(), intent=BookieIntent.DRAIN, read_only=True)
    cluster.directory.join(record, each)
    if there:
        path = paths.bookie_available(record.uuid)
        await cluster.store.create(path, encode(record), ephemeral=True)


async def test_a_bookie_that_drains_by_itself_is_retired_when_nothing_names_it(cluster: Cluster) -> None:
    record = await cluster.closed()
    await one_more(cluster)
    await drains_by_itself(cluster, 0)
    await cluster.looks(3)
    assert sorted(await known_bookies(cluster.store)) == ["bookie-1", "bookie-2", "bookie-3"]
    after = await cluster.info(record.ledger_id)
    assert set(after.fragments[0].bookies) == {"bookie-1:1", "bookie-2:1", "bookie-3:1"}


@pytest.mark.parametrize("back", [False, True], ids=["gone", "back"])
async def test_a_bookie_that_drained_and_is_gone_or_back_by_now_is_not_retired(
    cluster: Cluster, back: bool
) -> None:
    """What the coordinator has seen may be old: a bookie that is back may hold new ledgers."""
    await cluster.closed()
    await one_more(cluster)
    await drains_by_itself(cluster, 0, there=False)
    if back:
        path = paths.bookie_available("bookie-0")
        await cluster.store.create(path, encode(cluster.bookies[0].record()), ephemeral=True)
    await cluster.looks(4)
    assert "bookie-0" in await known_bookies(cluster.store)


async def test_a_bookie_that_drained_and_was_killed_is_a_member_that_is_absent(cluster: Cluster) -> None:
    record = await cluster.closed()
    await one_more(cluster)
    await drains_by_itself(cluster, 0)
    cluster.lose(0)
    await cluster.looks(3)
    assert await cluster.info(record.ledger_id) == record, "absent for a short time: nothing is copied"
    assert "bookie-0" in await known_bookies(cluster.store)


async def test_a_drained_bookie_waits_for_open_ledgers(cluster: Cluster) -> None:
    writer = await cluster.ledgers.create("test", listener := Listener())
    await listener.until(write(writer, 5))
    await cluster.want(0, BookieIntent.DRAIN)
    for _ in range(5):
        await cluster.repair.look()
        cluster.clock.advance_ms(60_000)
    assert "bookie-0" in await known_bookies(cluster.store)
    assert cluster.repair.status().left == {"bookie-0": 1}
    cluster.bookies[0].refuses = Status.READ_ONLY
    write(writer, 5)
    await turns_until(lambda: "bookie-0:1" not in writer.core.fragments[-1].bookies)
    await writer.close()
    for _ in range(5):
        await cluster.repair.look()
        cluster.clock.advance_ms(60_000)
    assert "bookie-0" not in await known_bookies(cluster.store)


async def test_a_bookie_that_a_recovery_took_is_not_retired_before_the_ledger_is_closed(
    cluster: Cluster, monkeypatch
) -> None:
    """Until then no record names it, and it has one of two copies of what was written again."""
    writer = await cluster.ledgers.create("test", listener := Listener())
    await listener.until(write(writer, 3))
    writer.abandon()
    cluster.bookies[0].add(
        AddRequest(cluster.bookies[0].bookie, [cut(writer.ledger_id, 3, 1, 2, 3)]), lambda _: None
    )
    await one_more(cluster)
    cluster.bookies[1].refuses = Status.IO_ERROR
    cluster.lose(2)
    successor, gate = cluster.join(), asyncio.Event()
    put = successor.store.put

    async def halted(path: str, value: bytes, version: int) -> int:
        if path == paths.ledger(writer.ledger_id) and decode(LedgerRecord, value, path).state is CLOSED:
            await gate.wait()
        return await put(path, value, version)

    monkeypatch.setattr(successor.store, "put", halted)
    recovery = asyncio.create_task(successor.recover(writer.ledger_id))
    await turns_until(lambda: cluster.bookies[3].holds(writer.ledger_id, 3))
    cluster.bookies[3].refuses = Status.READ_ONLY
    await cluster.want(3, BookieIntent.DRAIN)
    await cluster.looks(6)
    assert "bookie-3" in await known_bookies(cluster.store)
    gate.set()
    record = await recovery
    assert "bookie-3:1" in record.fragments[-1].bookies, "what this is about"


async def test_a_bookie_that_was_given_up_is_replaced_without_delay_and_keeps_its_record(
    cluster: Cluster,
) -> None:
    record = await cluster.closed()
    await one_more(cluster)
    cluster.lose(0)
    await cluster.want(0, BookieIntent.GIVE_UP)
    await cluster.repair.look()
    assert "bookie-0:1" not in (await cluster.info(record.ledger_id)).fragments[0].bookies
    assert "bookie-0" in await known_bookies(cluster.store)


async def test_a_bookie_that_is_retired_while_somebody_asks_about_it_is_not_found(cluster: Cluster) -> None:
    operator, store = Bookies(cluster.ledgers), cluster.ledgers.store
    uuid = cluster.bookies[0].bookie.uuid
    cluster.lose(0)
    get = store.get

    async def retired_when_it_was_read(path: str) -> Node:
        node = await get(path)
        if path == paths.bookie(uuid):
            await store.delete(path)
        return node

    store.get = retired_when_it_was_read  # type: ignore[method-assign]
    with pytest.raises(NotFound, match="retired"):
        await operator.show(uuid)
