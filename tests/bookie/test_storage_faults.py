"""One storage node whose disks are full, fail, rot or lose files: what it admits, and what it never forgets."""

from __future__ import annotations

import asyncio
import errno
from copy import deepcopy
from dataclasses import replace

import pytest

from quire.bookie.recovery import Recovery
from quire.runtime.errors import DiskError, QuireError
from quire.runtime.limits import KIB
from quire.testing.node import SMALL_SETTINGS, SimulatedNode
from quire.wire.bookie import BookieId, Status
from tests.bookie.node import OK, Node, crash, one, restart


def pass_seconds(seconds: float) -> None:
    """Let the loop's timers see a later time."""
    loop = asyncio.get_running_loop()
    time = loop.time
    loop.time = lambda: time() + seconds  # type: ignore[method-assign]


# -- full and failing disks --------------------------------------------------------------------------------
async def test_a_full_entry_disk_makes_the_node_read_only_and_reads_go_on() -> None:
    machine = SimulatedNode(seed=2)
    machine.entries.capacity_bytes = 640 * KIB
    node = await Node.on(machine)
    acknowledged = 0
    while (await node.add(one(1, acknowledged, 4 * KIB))) == [OK]:
        acknowledged += 1
        assert acknowledged < 1000
    assert node.storage.health.is_read_only
    assert (
        node.storage.health.why_not_ready
        == "the disk of entries is full and accepts no new messages; delete topics or free some space"
    )
    assert await node.add(one(1, acknowledged, 4 * KIB)) == [Status.READ_ONLY]
    assert await node.add(one(1, 0, 4 * KIB)) == [OK]  # a duplicate needs no room
    assert (await node.read(1, acknowledged, fence=True)).status is Status.NO_SUCH_ENTRY
    for entry in range(acknowledged):
        assert await node.holds(1, entry) == one(1, entry, 4 * KIB)
    machine.entries.capacity_bytes = 1 << 40
    await node.storage.stop()
    node = await Node.on(machine)
    assert not node.storage.health.is_read_only
    assert await node.add(one(2, 0)) == [OK]
    for entry in range(acknowledged):
        assert await node.holds(1, entry) == one(1, entry, 4 * KIB)


async def test_what_is_deleted_makes_room_for_a_checkpoint_that_has_none() -> None:
    """The disk filled up beside the node, so that not even the memtable finds room."""
    machine = SimulatedNode(seed=2)
    node = await Node.on(machine)
    for entry in range(200):
        assert await node.add(one(1, entry, 4 * KIB)) == [OK]
    node = await restart(node, machine)  # which begins another log
    used_bytes = machine.entries.space().total_bytes - machine.entries.space().free_bytes
    machine.entries.capacity_bytes = used_bytes
    assert await node.add(one(2, 0)) == [OK]
    flush = asyncio.ensure_future(node.storage.flush())
    for _ in range(100):
        await asyncio.sleep(0)
    assert node.storage.health.is_read_only and not flush.done()
    assert (await node.delete(1)).status is OK
    pass_seconds(60)
    await asyncio.wait_for(flush, 5)
    assert await node.add(one(3, 0)) == [OK]
    node = await crash(machine)
    assert await node.holds(1, 0) is Status.DELETED
    assert await node.holds(2, 0) == one(2, 0)
    assert await node.holds(3, 0) == one(3, 0)


async def test_a_full_journal_disk_makes_the_node_read_only() -> None:
    machine = SimulatedNode(seed=2)
    machine.journal.capacity_bytes = 100 * KIB  # room for one segment and not for a spare one
    node = await Node.on(machine)
    for entry in range(10):
        status = (await node.add(one(1, entry)))[0]
        if status is Status.READ_ONLY:
            break
        assert status is OK
    else:
        pytest.fail("never became read-only")
    assert await node.holds(1, 0) == one(1, 0)
    assert not node.storage.health.failure
    assert node.storage.health.why_not_ready.startswith("the disk of journal is full")


async def test_a_journal_disk_that_has_room_again_makes_the_node_writable() -> None:
    machine = SimulatedNode(seed=2)
    machine.journal.capacity_bytes = 100 * KIB
    node = await Node.on(machine)
    for _ in range(20):
        await asyncio.sleep(0)
    assert await node.add(one(1, 0)) == [Status.READ_ONLY]
    machine.journal.capacity_bytes = 1 << 40
    pass_seconds(4_000)  # the next look around
    for _ in range(20):
        await asyncio.sleep(0)
    assert await node.add(one(1, 0)) == [OK]


async def test_a_recycled_segment_is_room_in_a_full_journal() -> None:
    machine = SimulatedNode(seed=2)
    machine.journal.capacity_bytes = 180 * KIB  # two segments and not a third
    node = await Node.on(machine)
    entry = 0
    while await node.add(one(1, entry, 4 * KIB)) == [OK]:
        entry += 1
    assert node.storage.health.is_read_only and not node.storage.health.failure
    await node.storage.flush()
    assert await node.add(one(1, entry, 4 * KIB)) == [OK]


@pytest.mark.parametrize("operation", ["write", "durable"])
async def test_after_a_failed_journal_write_nothing_is_acknowledged(
    machine: SimulatedNode, operation: str
) -> None:
    node = await Node.on(machine)
    await node.add(one(1, 0))
    machine.journal.fail(
        operation, errno.EIO, times=1
    )  # the next write would succeed: it must not be believed
    assert list(await asyncio.wait_for(node.begin_add(one(1, 1)), 5)) == [Status.IO_ERROR]
    assert await node.add(one(1, 2)) == [Status.IO_ERROR]
    assert (await node.write_lac(1, 0)).status is Status.IO_ERROR
    assert node.storage.health.is_read_only
    assert "Input/output error" in node.storage.health.failure and "segment-" in node.storage.health.failure
    assert await node.holds(1, 0) == one(1, 0)
    await node.storage.stop()
    node = await Node.on(machine)
    assert await node.holds(1, 0) == one(1, 0)


async def test_a_failed_checkpoint_keeps_the_journal(machine: SimulatedNode) -> None:
    node = await Node.on(machine)
    await node.add(one(1, 0))
    machine.entries.fail("sync", errno.EIO, "log")
    with pytest.raises(QuireError):
        await node.storage.flush()
    assert node.storage.health.is_read_only and node.storage.health.failure
    assert await node.add(one(1, 1)) == [Status.READ_ONLY]
    assert await node.holds(1, 0) == one(1, 0)
    node = await crash(machine)
    assert await node.holds(1, 0) == one(1, 0)


# -- damage ------------------------------------------------------------------------------------------------
async def test_a_rotten_block_in_the_entry_log_is_an_error_with_file_and_offset(
    machine: SimulatedNode,
) -> None:
    node = await Node.on(machine)
    await node.add(one(1, 0), one(2, 0))
    node = await restart(node, machine)
    (name,) = [f"logs/{name}" for name in machine.entries.names("logs")]
    place = machine.entries.content(name).index(one(1, 0))
    machine.entries.flip(name, place + 90)
    answer = await node.read(1, 0)
    assert answer.status is Status.IO_ERROR and not answer.blocks
    assert name in answer.detail and "offset" in answer.detail
    assert await node.add(one(1, 0)) == [Status.IO_ERROR]
    assert await node.holds(2, 0) == one(2, 0)


async def test_damage_of_the_journal_is_not_forgotten_when_the_start_that_found_it_fails(
    machine: SimulatedNode,
) -> None:
    """A long replay flushes on its way. Its mark must not pass what is missing before that is written down."""
    node = await Node.on(machine)
    for entry in range(8):
        await node.add(one(1, entry, 3000))
    before = node.id
    segment = "segment-000001"
    place = machine.journal.content(segment).index(one(1, 2, 3000))
    machine.journal.flip(segment, place + 80)
    machine.crash()
    machine.journal.fail("durable", errno.EIO, segment)
    with pytest.raises(DiskError):
        await Node.on(machine, replace(SMALL_SETTINGS, memtable_bytes=8 * KIB))
    machine.journal.heal()
    node = await crash(machine)
    assert node.id == BookieId(before.uuid, before.incarnation + 1)
    assert (await node.read(1, 2)).status is Status.LIMBO
    assert [await node.holds(1, entry) for entry in (0, 1, 3, 7)] == [one(1, e, 3000) for e in (0, 1, 3, 7)]


async def test_a_rotten_journal_group_is_damage_and_puts_the_ledgers_in_limbo(machine: SimulatedNode) -> None:
    node = await Node.on(machine)
    for entry in range(5):
        await node.add(one(1, entry))
    before = node.id
    segment = "segment-000001"
    place = machine.journal.content(segment).index(one(1, 2))
    machine.journal.flip(segment, place + 80)
    node = await crash(machine)
    assert node.id == BookieId(before.uuid, before.incarnation + 1)
    assert await node.holds(1, 1) == one(1, 1)
    assert await node.holds(1, 3) == one(1, 3)  # behind the damage, and not cut off
    for asked in (before, node.id):
        assert (await node.read(1, 2, bookie=asked)).status is Status.LIMBO
        assert (await node.read(1, 5, bookie=asked, fence=True)).status is Status.LIMBO
    assert (await node.read(99, 0, bookie=before, fence=True)).status is Status.LIMBO
    assert await node.add(one(1, 5)) == [Status.FENCED]
    assert await node.add(one(2, 0), bookie=before) == [Status.WRONG_BOOKIE]
    assert await node.add(one(3, 0)) == [OK]
    assert (await node.read(3, 1)).status is Status.NO_SUCH_ENTRY  # a new ledger is not touched by it
    node = await crash(machine)
    assert node.id.incarnation == before.incarnation + 1
    assert (await node.read(1, 2)).status is Status.LIMBO
    assert await node.holds(3, 0) == one(3, 0)


async def test_a_rotten_last_group_of_an_earlier_epoch_is_damage(machine: SimulatedNode) -> None:
    node = await Node.on(machine)
    await node.add(one(1, 0))
    await node.add(one(1, 1))
    await crash(machine)  # a second epoch follows, which says where the first one ended
    segment = "segment-000001"
    place = machine.journal.content(segment).index(one(1, 1))
    machine.journal.flip(segment, place + 80)
    node = await crash(machine)
    assert (await node.read(1, 1)).status is Status.LIMBO


async def test_a_torn_tail_is_not_damage(machine: SimulatedNode) -> None:
    node = await Node.on(machine)
    await node.add(one(1, 0))
    await node.add(one(1, 1))
    segment = "segment-000001"
    place = machine.journal.content(segment).index(one(1, 1))
    machine.journal.flip(segment, place + 80)
    before = node.id
    node = await crash(machine)
    assert node.id == before
    assert (await node.read(1, 1)).status is Status.NO_SUCH_ENTRY
    assert await node.add(one(1, 1)) == [OK]
    node = await crash(machine)
    assert await node.holds(1, 1) == one(1, 1)


async def test_a_group_found_in_a_cache_only_is_synced_before_anybody_hears_of_it(
    machine: SimulatedNode,
) -> None:
    """Its process died between write and sync, or heard of an error: a power cut would still take it."""
    node = await Node.on(machine)
    machine.journal.fail("durable", errno.EIO)
    assert await node.add(one(1, 0)) == [Status.IO_ERROR]
    machine.kill()
    node = await Node.on(machine)
    assert await node.holds(1, 0) == one(1, 0)
    assert await node.add(one(1, 0)) == [OK]
    node = await crash(machine)
    assert node.id.incarnation == 1
    assert await node.holds(1, 0) == one(1, 0)


async def test_a_lost_journal_file_is_damage(machine: SimulatedNode) -> None:
    node = await Node.on(machine)
    await node.add(one(1, 0))
    await node.storage.flush()
    for name in machine.journal.names():
        if name.startswith("segment"):
            machine.journal.remove(name)
    machine.journal.sync_directory()
    node = await crash(machine)
    assert node.id.incarnation == 2
    assert await node.holds(1, 0) == one(1, 0)
    assert (await node.read(1, 1)).status is Status.LIMBO


async def test_an_older_copy_of_the_journals_directory_alone_is_a_loss(machine: SimulatedNode) -> None:
    node = await Node.on(machine)
    await node.add(one(1, 0))
    machine.crash()
    older = deepcopy(machine.journal, {id(machine.power): machine.power})
    node = await Node.on(machine)
    assert await node.add(one(1, 1)) == [Status.OK]
    machine.crash()
    machine.journal = older
    node = await Node.on(machine)
    assert node.id.incarnation == 2
    assert (await node.read(1, 1)).status is Status.LIMBO
    assert await node.holds(1, 0) == one(1, 0)


async def test_a_lost_index_is_rebuilt_and_everything_is_fenced(machine: SimulatedNode) -> None:
    node = await Node.on(machine)
    await node.add(*[one(1, entry) for entry in range(5)], one(2, 0))
    await node.storage.flush()
    await node.add(one(1, 5), one(3, 0))
    before = node.id
    machine.home.discard()
    node = await crash(machine)
    assert node.id.incarnation == before.incarnation + 1
    for ledger_id, entry in ((1, 0), (1, 4), (1, 5), (2, 0), (3, 0)):
        assert await node.holds(ledger_id, entry) == one(ledger_id, entry)
        assert (await node.info(ledger_id)).fenced
    assert (await node.read(1, 6, bookie=before)).status is Status.NO_SUCH_ENTRY  # no block was lost
    assert (await node.read(1, 0)).lac == 4
    node = await crash(machine)
    assert node.id.incarnation == before.incarnation + 1
    assert await node.holds(1, 5) == one(1, 5)


@pytest.mark.parametrize("interrupted", [False, True])
async def test_an_index_lost_after_the_journal_was_recycled_loses_no_block(
    machine: SimulatedNode, interrupted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The groups that are written over are in the entry logs: their absence is no damage, and recovery goes on."""
    node = await Node.on(machine)
    for entry in range(200):  # 800 KiB through segments of 64 KiB
        assert await node.add(one(1, entry, 4 * KIB)) == [OK]
    await node.storage.flush()
    await node.add(one(1, 200))
    await node.read(9, 0, fence=True)
    before = node.id
    machine.home.discard()
    machine.crash()
    if interrupted:  # between the rebuild and the admission that fences were lost

        def die(*_: object) -> None:
            raise OSError("killed")

        with monkeypatch.context() as patch:
            patch.setattr(Recovery, "_admit_loss", die)
            with pytest.raises(OSError, match="killed"):
                await Node.on(machine)
        machine.crash()
    node = await Node.on(machine)
    assert node.id.incarnation == before.incarnation + 1
    for entry in (0, 100, 199):
        assert await node.holds(1, entry) == one(1, entry, 4 * KIB)
    assert await node.holds(1, 200) == one(1, 200)
    assert (await node.info(1)).fenced
    assert (await node.read(1, 201)).status is Status.NO_SUCH_ENTRY
    assert (await crash(machine)).id.incarnation == before.incarnation + 1


async def test_without_sync_an_unclean_stop_is_a_loss_and_a_clean_one_is_not(machine: SimulatedNode) -> None:
    unsafe = replace(SMALL_SETTINGS, unsafe_no_sync=True)
    node = await Node.on(machine, unsafe)
    await node.add(one(1, 0))
    await node.storage.stop()
    node = await Node.on(machine, unsafe)
    assert node.id.incarnation == 1
    await node.add(one(1, 1))
    machine.crash()
    node = await Node.on(machine)  # with sync again: this loss is told once, and later crashes are none
    assert node.id.incarnation == 2
    assert (await node.read(1, 2)).status is Status.LIMBO
    assert await node.add(one(1, 2)) == [Status.FENCED]
    assert (await crash(machine)).id.incarnation == 2


async def test_when_the_disk_has_room_again_the_waiting_memtable_is_written() -> None:
    machine = SimulatedNode(seed=2)
    node = await Node.on(machine)
    await node.add(one(1, 0))
    machine.entries.fail("allocate", errno.ENOSPC)
    flushed = asyncio.ensure_future(node.storage.flush())
    for _ in range(20):
        await asyncio.sleep(0)
    assert node.storage.health.is_read_only and not flushed.done()
    assert await node.add(one(1, 1)) == [Status.READ_ONLY]
    pass_seconds(10)
    await flushed
    assert not node.storage.health.is_read_only
    assert await node.add(one(1, 1)) == [OK]
    await node.storage.stop()
