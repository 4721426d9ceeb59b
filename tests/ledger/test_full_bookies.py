"""Bookies whose disks are full: what is placed on them, what they take, and that nobody leaves one that has room."""

from __future__ import annotations

import pytest

from quire.metadata.records import LedgerState, PersistencePolicy
from quire.runtime.errors import Unavailable
from quire.testing.cluster import Listener, MemoryCluster, expected, read_all, write
from quire.wire.bookie import AddRequest


def fill(cluster: MemoryCluster, count: int) -> None:
    for number, bookie in enumerate(cluster.bookies):
        bookie.is_full = number < count


async def test_a_ledger_of_high_priority_is_written_where_all_disks_are_full() -> None:
    cluster = MemoryCluster(3)
    fill(cluster, 3)
    writer = await cluster.ledgers.create("state:a/b/0_f", listener := Listener())
    await listener.until(write(writer, 5))
    await writer.close()
    assert await read_all(cluster.ledgers, writer.ledger_id) == expected(4)


async def test_another_one_is_made_there_and_refuses_its_first_block_with_the_reason() -> None:
    cluster = MemoryCluster(3)
    fill(cluster, 3)
    writer = await cluster.ledgers.create("topic:t", listener := Listener())
    write(writer, 1)
    assert "the disk is full" in str(await listener.until_failed())
    assert (await cluster.ledgers.recover(writer.ledger_id)).last_entry == -1


async def test_one_with_blocks_is_recovered_and_deleted_where_all_disks_are_full() -> None:
    cluster = MemoryCluster(3)
    writer = await cluster.ledgers.create("topic:t", listener := Listener())
    await listener.until(write(writer, 5))
    lacking = cluster.ensemble(writer)[0]
    del lacking.ledgers[writer.ledger_id]
    fill(cluster, 3)
    closed = await cluster.join().recover(writer.ledger_id)
    assert (closed.state, closed.last_entry) == (LedgerState.CLOSED, 4)
    assert await read_all(cluster.ledgers, writer.ledger_id) == expected(4)
    await cluster.ledgers.delete(writer.ledger_id)


async def test_full_bookies_are_taken_only_where_there_are_too_few_others() -> None:
    cluster = MemoryCluster(4)
    fill(cluster, 1)
    for purpose in ("topic:t", "state:a/b/0_f"):
        for _ in range(10):
            writer = await cluster.ledgers.create(purpose, Listener())
            assert cluster.bookies[0] not in cluster.ensemble(writer)
    fill(cluster, 2)
    writer = await cluster.ledgers.create("topic:t", Listener())
    assert set(map(id, cluster.ensemble(writer))) == set(map(id, cluster.bookies[2:])), "narrow, not full"
    fill(cluster, 3)
    writer = await cluster.ledgers.create("topic:t", Listener())
    assert len(cluster.ensemble(writer)) == 2 and cluster.bookies[3] in cluster.ensemble(writer)


async def test_who_asks_hears_why_nothing_can_be_written_and_only_then() -> None:
    cluster = MemoryCluster(3)
    ledgers = cluster.ledgers
    assert ledgers.ack_quorum == 2 and not ledgers.why_full()
    fill(cluster, 1)
    assert not ledgers.why_full() and ledgers.why_full(PersistencePolicy(ack_quorum=3)) == "the disk is full"
    fill(cluster, 2)
    assert ledgers.why_full() == "the disk is full" and not ledgers.why_full(PersistencePolicy(ack_quorum=1))
    for bookie in cluster.bookies[:2]:
        cluster.directory.leave(bookie.bookie.uuid)
    assert not ledgers.why_full(), "too few are up, which is another trouble"


async def test_only_state_logs_and_recoveries_have_priority() -> None:
    cluster = MemoryCluster(3)
    for purpose, has_priority in (("topic:t", False), ("state:a/b/0_f", True)):
        writer = await cluster.ledgers.create(purpose, listener := Listener())
        for bookie in cluster.bookies:
            bookie.requests.clear()
        await listener.until(write(writer, 1))
        adds = [each for each in cluster.bookies[0].requests if isinstance(each, AddRequest)]
        assert [each.priority for each in adds] == [has_priority]


async def test_a_refusal_of_a_creation_says_which_disk_is_full() -> None:
    cluster = MemoryCluster(2)
    fill(cluster, 1)
    cluster.directory.leave(cluster.bookies[1].bookie.uuid)
    with pytest.raises(
        Unavailable, match="1 of 1 bookies accept writes, the ack quorum is 2; the disk is full"
    ):
        await cluster.ledgers.create("topic:t", Listener())
