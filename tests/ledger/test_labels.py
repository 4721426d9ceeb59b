"""Labels: a bookie that has a ledger's blocks knows whose they are, where the others lie, and where the ledger ends."""

from __future__ import annotations

import asyncio

import pytest

from quire.ledger import labels
from quire.ledger.repair_copy import Copier
from quire.ledger.repair_core import FragmentPlan
from quire.metadata.records import LedgerRecord, LedgerState
from quire.runtime.errors import CorruptionError
from quire.testing.cluster import Listener, MemoryCluster, turns_until, write
from quire.wire import block, ledger_ids
from quire.wire.bookie import Status


def label_at(cluster: MemoryCluster, bookie: int, ledger_id: int) -> tuple[LedgerRecord, int] | None:
    """The newest label of the ledger that a bookie has."""
    kept = cluster.bookies[bookie].ledgers.get(ledger_ids.label_id(ledger_id))
    if kept is None or not kept.firsts:
        return None
    return labels.read(kept.blocks[kept.firsts[-1]][1])


async def test_it_comes_with_the_first_block_and_follows_the_record() -> None:
    cluster = MemoryCluster(3)
    writer = await cluster.ledgers.create("topic:persistent://t/n/x", listener := Listener(), generation=7)
    ledger_id = writer.ledger_id
    assert [label_at(cluster, at, ledger_id) for at in range(3)] == [None] * 3, "an empty ledger has none"
    write(writer, blocks=2)
    await listener.until(1)
    opened = await cluster.ledgers.info(ledger_id)
    assert opened.generation == 7 and opened.state is LedgerState.OPEN
    assert [label_at(cluster, at, ledger_id) for at in range(3)] == [(opened, 0)] * 3
    closed = await writer.close()
    assert [label_at(cluster, at, ledger_id) for at in range(3)] == [(closed, 1)] * 3
    await cluster.ledgers.delete(ledger_id)
    assert all(bookie.ledgers[ledger_ids.label_id(ledger_id)].is_deleted for bookie in cluster.bookies)


async def test_whoever_comes_into_the_ensemble_knows_of_all_fragments() -> None:
    cluster = MemoryCluster(4)
    writer = await cluster.ledgers.create("topic:persistent://t/n/x", listener := Listener())
    write(writer, blocks=1)
    await listener.until(0)
    gone = next(bookie for bookie in cluster.bookies if writer.ledger_id in bookie.ledgers)
    gone.unreachable = True
    write(writer, blocks=1)
    await turns_until(lambda: len(writer.core.fragments) == 2)
    record = await cluster.ledgers.info(writer.ledger_id)
    assert len(record.fragments) == 2
    there = [at for at in range(4) if cluster.bookies[at] is not gone]
    await turns_until(lambda: all(label_at(cluster, at, writer.ledger_id) == (record, 1) for at in there))
    writer.abandon()


async def test_a_recovery_tells_where_the_ledger_ends() -> None:
    cluster = MemoryCluster(3)
    writer = await cluster.ledgers.create("topic:persistent://t/n/x", listener := Listener())
    write(writer, blocks=3)
    await listener.until(2)
    writer.abandon()
    closed = await cluster.ledgers.recover(writer.ledger_id)
    label = label_at(cluster, 0, writer.ledger_id)
    assert label is not None and label[0] == closed and closed.last_entry == 2


async def test_a_recovery_gives_the_label_to_a_bookie_that_takes_its_first_block_from_it() -> None:
    """It tells the ledger from a later one that gets its id of an older metadata store; the end need not come."""
    cluster = MemoryCluster(3)
    writer = await cluster.ledgers.create("topic:persistent://t/n/x", listener := Listener())
    write(writer, blocks=3)
    await listener.until(2)
    record = await cluster.ledgers.info(writer.ledger_id)
    writer.abandon()
    cluster.bookies[2].ledgers.clear()  # an ack quorum without it was enough
    recovering = asyncio.ensure_future(cluster.join().recover(writer.ledger_id))
    await turns_until(lambda: cluster.bookies[2].holds(writer.ledger_id, 2))
    assert label_at(cluster, 2, writer.ledger_id) == (record, 0), "as it was before the recovery"
    await recovering


@pytest.mark.parametrize("is_new", [False, True])
async def test_repair_gives_the_label_before_the_first_block(is_new: bool) -> None:
    cluster = MemoryCluster(4)
    writer = await cluster.ledgers.create("topic:persistent://t/n/x", listener := Listener())
    write(writer, blocks=3)
    await listener.until(2)
    record = await writer.close()
    copies = [cluster.named(each) for each in record.fragments[0].bookies]
    other = next(each for each in cluster.bookies if each not in copies) if is_new else copies[0]
    other.ledgers.clear()
    copier = Copier(cluster.store, cluster.directory, cluster.clock, 1 << 30)
    if is_new:
        bookies = (copies[1].bookie, copies[2].bookie, other.bookie)
        sources = (copies[1].bookie, copies[2].bookie)
        plan = FragmentPlan(0, 0, 2, sources, (other.bookie,), bookies)
        assert not await copier._copy(record, 1, plan)
    else:
        await copier.complete(record, 1, {0: [other.bookie]})
    assert other.holds(record.ledger_id, 2)
    assert label_at(cluster, cluster.bookies.index(other), record.ledger_id) == (record, 1)


async def test_a_bookie_that_was_busy_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labels, "AGAIN_S", (0.0, 0.0))
    cluster = MemoryCluster(3)
    writer = await cluster.ledgers.create("topic:persistent://t/n/x", listener := Listener())
    cluster.bookies[0].refuses = Status.BUSY
    write(writer, blocks=1)
    await listener.until(0)
    assert label_at(cluster, 0, writer.ledger_id) is None
    cluster.bookies[0].refuses = None
    await turns_until(lambda: label_at(cluster, 0, writer.ledger_id) is not None)
    writer.abandon()


def test_what_is_no_label_is_damage() -> None:
    record = LedgerRecord(ledger_id=5, purpose="topic:persistent://t/n/x")
    made = bytes(labels.make(record, 3))
    assert labels.read(made) == (record, 3)
    newer = block.cut(ledger_ids.label_id(5), 0, -1, 0, 0, [b"\x02{}"])
    with pytest.raises(CorruptionError, match="has format version 02"):
        labels.read(newer)
    other = block.cut(ledger_ids.label_id(6), 0, -1, 0, 0, [b'\x01{"ledger_id":5}'])
    with pytest.raises(CorruptionError, match="label of ledger 6 contains the record of ledger 5"):
        labels.read(other)
