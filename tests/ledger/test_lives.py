"""A metadata store that is older than the bookies: ids that were used before, and ledgers that went on since."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from msgspec.structs import replace

from quire.ledger import labels
from quire.ledger.ids import LedgerIds
from quire.ledger.ledgers import Ledgers, LedgerWriter
from quire.metadata import paths
from quire.metadata.records import LedgerState
from quire.metadata.tree import Tree
from quire.runtime.errors import IdUsedBefore
from quire.testing.cluster import QUICK, Listener, MemoryCluster, expected, read_all, turns_until, write
from quire.testing.metadata import MemoryStore
from quire.wire import block
from quire.wire.bookie import DeleteRequest
from quire.wire.ledger_ids import label_id

NEW = "topic:persistent://t/n/new"


def empty_store(cluster: MemoryCluster) -> Ledgers:
    """The same bookies, with a metadata store that knows nothing."""
    return Ledgers(MemoryStore(), cluster.directory, cluster.clock, Random(2), QUICK, quarantine_s=0)


async def old_ledger(cluster: MemoryCluster, blocks: int) -> LedgerWriter:
    writer = await cluster.ledgers.create("topic:persistent://t/n/old", listener := Listener())
    await listener.until(write(writer, blocks))
    return writer


def add_new(writer: LedgerWriter, blocks: int = 3) -> None:
    for entry in range(blocks):
        content = bytes(block.cut(writer.ledger_id, entry, -1, 5, entry, [b"new %d" % entry]))
        writer.add(content, entry)


async def create_with_used_id(ledgers: Ledgers, old: LedgerWriter, listener: Listener) -> LedgerWriter:
    """As where no bookie that has the old ledger was up when the range was taken."""
    return await ledgers.create(NEW, listener, ledger_id=old.ledger_id)


async def test_a_range_of_which_a_bookie_has_a_ledger_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    cluster = MemoryCluster(3)
    for _ in range(150):
        old = await cluster.ledgers.create("test", listener := Listener())
        write(old, 1)
        await listener.until(0)
    restored = empty_store(cluster)
    assert await restored.reserve(-1) > old.ledger_id
    assert "were used before" in caplog.text
    other = LedgerIds(restored.store.join(), cluster.directory)
    caplog.clear()
    assert await other.next(-1) > old.ledger_id + 100 and not caplog.text, (
        "the next process need not find out"
    )


async def test_the_next_range_of_another_process_is_no_sign_of_use() -> None:
    cluster = MemoryCluster(3)
    cluster.ledgers, other = cluster.join(), cluster.join()
    assert await cluster.ledgers.reserve(-1) == 101
    assert await other.reserve(-1) == 201
    old = await other.create("test", listener := Listener())
    write(old, 1)
    await listener.until(0)
    assert await cluster.ledgers.reserve(200) == 301
    assert (await cluster.store.get(paths.LEDGER_IDS)).version == 3


@pytest.mark.parametrize("blocks", [1, 5, 100])
async def test_nothing_of_the_former_ledger_counts_as_the_new_ones(blocks: int) -> None:
    cluster = MemoryCluster(3)
    old = await old_ledger(cluster, blocks)
    await asyncio.sleep(0.02)  # idle: the bookies know its LAC
    restored, listener = empty_store(cluster), Listener()
    writer = await create_with_used_id(restored, old, listener)
    add_new(writer)
    assert isinstance(await listener.until_failed(), IdUsedBefore)
    closed = await restored.recover(writer.ledger_id, writer)
    assert (closed.state, closed.last_entry) == (LedgerState.CLOSED, -1)
    await restored.delete(writer.ledger_id)
    assert await read_all(cluster.ledgers, old.ledger_id) == expected(blocks - 1), "left alone"
    next_one = await restored.create(NEW, Listener())
    assert next_one.ledger_id > old.ledger_id + 99


async def test_a_successor_tells_the_two_ledgers_apart_by_their_labels() -> None:
    """The writer dies before it hears of the conflict; nothing was confirmed."""
    cluster = MemoryCluster(3)
    old = await old_ledger(cluster, 5)
    restored = empty_store(cluster)
    writer = await create_with_used_id(restored, old, Listener())
    writer.abandon()
    closed = await restored.recover(writer.ledger_id)
    assert closed.last_entry == -1
    assert await read_all(cluster.ledgers, old.ledger_id) == expected(4)


async def test_blocks_that_a_recovery_gave_a_bookie_are_not_the_new_ledgers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A bookie has the old ledger from its recovery alone, and is the only one of its bookies that is up later."""
    cluster = MemoryCluster(4)
    old = await old_ledger(cluster, 5)
    old.abandon()
    first = cluster.ensemble(old)
    first[0].ledgers.clear()  # an ack quorum without it was enough
    monkeypatch.setattr(
        labels, "send", lambda *given: None
    )  # the label of the end is sent once, and may be lost
    await cluster.join().recover(old.ledger_id)
    assert first[0].holds(old.ledger_id, 4)
    for bookie in first[1:]:
        bookie.unreachable = True
        del cluster.directory._records[bookie.bookie.uuid]
    restored, listener = empty_store(cluster), Listener()
    writer = await create_with_used_id(restored, old, listener)
    add_new(writer)
    assert isinstance(await listener.until_failed(), IdUsedBefore)
    next(each for each in cluster.bookies if each not in first).ledgers.clear()  # nothing was confirmed
    assert (await restored.recover(writer.ledger_id)).last_entry == -1


@pytest.mark.parametrize("is_own", [False, True])
async def test_labels_of_older_versions_are_told_apart_by_their_content(is_own: bool) -> None:
    """They have no nonce; nor has a bookie that lost count of it, and it is no stranger for that."""
    cluster = MemoryCluster(3)
    writer = await cluster.ledgers.create(NEW, listener := Listener())
    await listener.until(write(writer, 3))
    writer.abandon()
    record = await cluster.ledgers.info(writer.ledger_id)
    for bookie in cluster.bookies:
        kept = bookie.ledgers[label_id(writer.ledger_id)]
        kept.lac = -1
        if not is_own:
            made = bytes(labels.make(replace(record, nonce=-1, purpose="topic:persistent://t/n/old"), 0))
            kept.blocks[0] = (block.peek(made), made)
    assert (await cluster.join().recover(writer.ledger_id)).last_entry == (2 if is_own else -1)


async def test_what_two_bookies_confirmed_stays_and_the_third_ones_ledger_is_another() -> None:
    cluster = MemoryCluster(3)
    for bookie in cluster.bookies[:2]:
        bookie.unreachable = True
    old = await cluster.ledgers.create("topic:persistent://t/n/old", Listener())
    write(old, 9)
    await turns_until(lambda: cluster.bookies[2].holds(old.ledger_id, 8))
    old.abandon()
    for bookie in cluster.bookies[:2]:
        bookie.unreachable = False
    restored, listener = empty_store(cluster), Listener()
    late: list[object] = []
    cluster.bookies[2].deliver = late.append  # type: ignore[assignment]
    writer = await create_with_used_id(restored, old, listener)
    add_new(writer)
    await listener.until(2)
    writer.abandon()
    cluster.bookies[2].deliver = cluster.bookies[0].deliver
    closed = await restored.recover(writer.ledger_id)
    assert closed.last_entry == 2
    stranger = str(cluster.bookies[2].bookie)
    assert all(stranger not in each.bookies for each in closed.fragments) and not closed.former
    assert await read_all(restored, writer.ledger_id) == [b"new 0", b"new 1", b"new 2"]
    await restored.delete(writer.ledger_id)
    assert cluster.bookies[2].holds(old.ledger_id, 8) and not cluster.bookies[0].holds(old.ledger_id, 0)


async def test_a_writer_that_confirmed_some_before_the_conflict_keeps_them() -> None:
    cluster = MemoryCluster(3)
    old = await old_ledger(cluster, 2)
    for bookie in cluster.bookies[:2]:
        bookie.ledgers.clear()
    restored, listener = empty_store(cluster), Listener()
    late: list[object] = []
    cluster.bookies[2].deliver = late.append  # type: ignore[assignment]
    writer = await create_with_used_id(restored, old, listener)
    add_new(writer)
    await listener.until(2)
    cluster.bookies[2].deliver = cluster.bookies[0].deliver
    for answer in late:
        answer()  # type: ignore[operator]
    assert isinstance(await listener.until_failed(), IdUsedBefore)
    assert (await restored.recover(writer.ledger_id, writer)).last_entry == 2
    assert await read_all(restored, writer.ledger_id) == [b"new 0", b"new 1", b"new 2"]


@pytest.mark.parametrize("with_label", [False, True])
async def test_a_tombstone_of_a_former_ledger_is_no_deletion_of_the_new_one(with_label: bool) -> None:
    cluster = MemoryCluster(3)
    restored, listener = empty_store(cluster), Listener()
    writer = await restored.create(NEW, listener)
    for bookie in cluster.bookies:
        await bookie.ask(DeleteRequest(bookie.bookie, writer.ledger_id, 3))
        if with_label:
            await bookie.ask(DeleteRequest(bookie.bookie, label_id(writer.ledger_id), 3))
    add_new(writer)
    assert isinstance(await listener.until_failed(), IdUsedBefore)
    assert (await restored.recover(writer.ledger_id, writer)).last_entry == -1


async def test_an_open_ledger_that_went_on_after_the_copy_ends_where_its_labels_lead() -> None:
    """Each of its bookies was replaced in turn since."""
    cluster = MemoryCluster(6)
    writer = await cluster.ledgers.create("topic:persistent://t/n/x", listener := Listener())
    await listener.until(write(writer, 50))
    copy = cluster.store._shared.tree._rows.copy()
    for bookie in cluster.ensemble(writer):
        bookie.unreachable = True
        await listener.until(write(writer, 10))
        bookie.unreachable = False
    last = writer.last_confirmed
    cluster.store._shared.tree = Tree(copy)
    closed = await cluster.join().recover(writer.ledger_id)
    assert last == 79 and closed.last_entry == 79
    assert await read_all(cluster.ledgers, writer.ledger_id) == expected(79)


async def test_a_ledger_that_was_closed_after_the_copy_has_that_end() -> None:
    cluster = MemoryCluster(3)
    writer = await cluster.ledgers.create("topic:persistent://t/n/x", listener := Listener())
    await listener.until(write(writer, 5))
    copy = cluster.store._shared.tree._rows.copy()
    closed = await writer.close()
    cluster.store._shared.tree = Tree(copy)
    other = cluster.join()
    assert await other.recover(writer.ledger_id) == closed
    node = await other.store.get(paths.ledger(writer.ledger_id))
    assert node.version > 1, "beyond the label's: labels to come are newer"
