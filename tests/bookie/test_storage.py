"""One storage node: what it answers, and what it still knows after a restart."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from pathlib import Path

import pytest

from quire.bookie.settings import BookieSettings
from quire.bookie.storage import Storage
from quire.bookie.storage_sim import SMALL_SETTINGS, SimulatedNode
from quire.runtime.errors import ConfigurationError, QuireError
from quire.runtime.limits import KIB, MIB
from quire.wire.bookie import BookieId, Status

from .node import OK, Node, one


@pytest.fixture
def machine() -> SimulatedNode:
    return SimulatedNode(seed=1)


async def restart(node: Node, machine: SimulatedNode) -> Node:
    await node.storage.stop()
    return await Node.on(machine)


async def crash(machine: SimulatedNode) -> Node:
    machine.crash()
    return await Node.on(machine)


def pass_seconds(seconds: float) -> None:
    """Let the loop's timers see a later time."""
    loop = asyncio.get_running_loop()
    time = loop.time
    loop.time = lambda: time() + seconds  # type: ignore[method-assign]


# -- writing and reading -----------------------------------------------------------------------------------
async def test_what_was_acknowledged_is_read_from_memory_from_the_log_and_after_a_restart(
    machine: SimulatedNode,
) -> None:
    node = await Node.on(machine)
    blocks = [one(1, first, count=2) for first in range(0, 20, 2)]
    assert await node.add(*blocks) == [OK] * 10
    for step in ("memory", "log", "restart", "crash"):
        if step == "log":
            await node.storage.flush()
        elif step == "restart":
            node = await restart(node, machine)
        elif step == "crash":
            node = await crash(machine)
        answer = await node.read(1, 5)
        assert (answer.status, list(map(bytes, answer.blocks))) == (OK, blocks[2:]), step
        assert answer.lac == 17


async def test_a_read_is_bounded_but_answers_one_block_at_least(machine: SimulatedNode) -> None:
    node = await Node.on(machine)
    blocks = [one(1, first) for first in range(5)]
    await node.add(*blocks)
    for _ in ("memory", "log"):
        assert len((await node.read(1, 0, bytes_max=1)).blocks) == 1
        assert len((await node.read(1, 0, bytes_max=2 * len(blocks[0]))).blocks) == 2
        await node.storage.flush()


async def test_a_read_ends_at_a_gap_and_a_later_block_is_no_answer(machine: SimulatedNode) -> None:
    node = await Node.on(machine)
    await node.add(one(1, 0), one(1, 2))
    for _ in ("memory", "log"):
        assert len((await node.read(1, 0)).blocks) == 1
        assert (await node.read(1, 1)).status is Status.NO_SUCH_ENTRY
        assert (await node.read(1, 3)).status is Status.NO_SUCH_ENTRY
        await node.storage.flush()


async def test_an_unknown_ledger_is_not_a_negative(machine: SimulatedNode) -> None:
    node = await Node.on(machine)
    assert (await node.read(9, 0)).status is Status.NO_SUCH_LEDGER
    assert (await node.info(9)).status is Status.NO_SUCH_LEDGER


async def test_blocks_of_many_ledgers_get_a_status_each_and_a_refused_one_is_not_kept(
    machine: SimulatedNode,
) -> None:
    node = await Node.on(machine)
    await node.read(2, 0, fence=True)
    damaged = bytearray(one(3, 0))
    damaged[-1] ^= 1
    longer = one(4, 0) + b"x"
    statuses = await node.add(one(1, 0), one(2, 0), damaged, longer, one(5, 0))
    assert statuses == [OK, Status.FENCED, Status.BAD_BLOCK, Status.BAD_BLOCK, OK]
    node = await crash(machine)  # rule 24: what was refused is not in the journal either
    assert await node.holds(1, 0) == one(1, 0)
    assert await node.holds(2, 0) is Status.NO_SUCH_ENTRY
    assert await node.holds(3, 0) is Status.NO_SUCH_LEDGER
    assert await node.holds(5, 0) == one(5, 0)


@pytest.mark.parametrize("where", ["memory", "log"])
async def test_the_same_bytes_again_are_fine_and_others_are_a_conflict(
    machine: SimulatedNode, where: str
) -> None:
    node = await Node.on(machine)
    await node.add(one(1, 0, count=4), one(1, 4))
    if where == "log":
        await node.storage.flush()
    assert await node.add(one(1, 0, count=4)) == [OK]
    assert await node.add(one(1, 0, count=4, letter="x")) == [Status.CONFLICT]
    assert await node.add(one(1, 2)) == [Status.CONFLICT]
    assert await node.add(one(1, 3, count=3), one(1, 5), one(1, 4)) == [Status.CONFLICT, OK, OK]
    assert await node.holds(1, 2) == one(1, 0, count=4)


async def test_a_duplicate_is_answered_after_the_group_with_the_first_copy(machine: SimulatedNode) -> None:
    node = await Node.on(machine)
    first = node.begin_add(one(1, 0))
    again = node.begin_add(one(1, 0))
    answered: list[str] = []
    first.add_done_callback(lambda _: answered.append("first"))
    again.add_done_callback(lambda _: answered.append("again"))
    assert list(await again) == [OK]
    assert answered[0] == "first"

    machine.journal.fail("durable", errno.EIO)
    first, again = node.begin_add(one(1, 1)), node.begin_add(one(1, 1))
    assert list(await first) == list(await again) == [Status.IO_ERROR]


async def test_a_request_that_no_group_holds_is_refused(machine: SimulatedNode) -> None:
    node = await Node.on(machine)
    assert await node.add(one(1, 0, 20 * KIB)) == [Status.BAD_REQUEST]


# -- fences, tombstones, LAC -------------------------------------------------------------------------------
async def test_a_fence_stops_writers_and_lets_recovery_through(machine: SimulatedNode) -> None:
    node = await Node.on(machine)
    await node.add(one(1, 0))
    assert (await node.read(1, 1, fence=True)).status is Status.NO_SUCH_ENTRY
    for step in ("now", "crash", "flush", "crash after flush"):
        if "crash" in step:
            node = await crash(machine)
        elif step == "flush":
            await node.storage.flush()
        assert await node.add(one(1, 1)) == [Status.FENCED], step
        assert (await node.info(1)).fenced
    assert await node.add(one(1, 1), recovery=True) == [OK]
    assert await node.holds(1, 1) == one(1, 1)


async def test_a_ledger_never_seen_is_created_fenced(machine: SimulatedNode) -> None:
    node = await Node.on(machine)
    assert (await node.read(7, 0, fence=True)).status is Status.NO_SUCH_ENTRY
    node = await crash(machine)
    assert await node.add(one(7, 0)) == [Status.FENCED]


async def test_a_fence_is_answered_only_when_it_is_durable(machine: SimulatedNode) -> None:
    node = await Node.on(machine)
    await node.add(one(1, 0))
    machine.journal.fail("durable", errno.EIO)
    answer = await node.read(1, 0, fence=True)
    assert answer.status is Status.IO_ERROR and not answer.blocks


async def test_a_tombstone_stays_and_fences(machine: SimulatedNode) -> None:
    node = await Node.on(machine)
    await node.add(one(1, 0), one(2, 0))
    await node.storage.flush()
    await node.add(one(1, 1))
    assert (await node.delete(1, 5)).status is OK
    assert (await node.delete(8, 1)).status is OK  # never seen: a late writer must not create it
    for step in ("now", "crash", "flush", "restart"):
        if step == "crash":
            node = await crash(machine)
        elif step == "flush":
            await node.storage.flush()
        elif step == "restart":
            node = await restart(node, machine)
        for ledger_id in (1, 8):
            assert (await node.read(ledger_id, 0)).status is Status.DELETED, step
            assert (await node.read(ledger_id, 0, fence=True)).status is Status.DELETED
            assert await node.add(one(ledger_id, 0)) == [Status.DELETED]
            assert await node.add(one(ledger_id, 0), recovery=True) == [Status.DELETED]
            assert (await node.write_lac(ledger_id, 0)).status is Status.DELETED
            assert (await node.info(ledger_id)).status is Status.DELETED
        assert await node.holds(2, 0) == one(2, 0)
    assert not machine.home.index.rows(1, 0, 1)


async def test_an_explicit_lac_is_kept_and_never_falls(machine: SimulatedNode) -> None:
    node = await Node.on(machine)
    await node.add(one(1, 0), one(1, 1))
    assert (await node.write_lac(1, 1)).status is OK
    assert (await node.write_lac(1, 0)).status is OK
    for step in ("now", "crash", "flush", "crash again"):
        if "crash" in step:
            node = await crash(machine)
        elif step == "flush":
            await node.storage.flush()
        assert (await node.read(1, 0)).lac == 1, step
    await node.read(1, 0, fence=True)
    assert (await node.write_lac(1, 2)).status is Status.FENCED


# -- who is meant ------------------------------------------------------------------------------------------
async def test_a_request_for_another_bookie_is_refused(machine: SimulatedNode) -> None:
    node = await Node.on(machine)
    await node.add(one(1, 0))
    newer = BookieId(node.id.uuid, node.id.incarnation + 1)
    for stranger in (BookieId("0" * 36, 1), newer):
        assert await node.add(one(1, 1), bookie=stranger) == [Status.WRONG_BOOKIE]
        assert await node.add(one(1, 1), bookie=stranger, recovery=True) == [Status.WRONG_BOOKIE]
        assert (await node.read(1, 0, bookie=stranger)).status is Status.WRONG_BOOKIE


# -- time and information ----------------------------------------------------------------------------------
async def test_seek_by_time_misses_nothing(machine: SimulatedNode) -> None:
    node = await Node.on(machine)
    await node.add(*[one(1, entry) for entry in range(10)])  # entry e has clock 1000 + e
    await node.storage.flush()
    await node.add(*[one(1, entry) for entry in range(10, 20)])
    assert await node.find_time(1, 1015) == 15
    assert await node.find_time(1, 1010) == 10
    assert await node.find_time(1, 1005) <= 5
    assert await node.find_time(1, 0) == 0
    assert await node.find_time(1, 9999) == 20


async def test_a_ledger_is_flushed_when_the_mark_has_passed_it(machine: SimulatedNode) -> None:
    node = await Node.on(machine)
    await node.add(one(1, 0, 1000))
    info = await node.info(1)
    assert (info.flushed, info.last_entry, info.bytes) == (False, 0, len(one(1, 0, 1000)))
    await node.storage.flush()
    info = await node.info(1)
    assert (info.flushed, info.last_entry, info.bytes) == (True, 0, len(one(1, 0, 1000)))
    assert node.storage.bytes_unflushed == 0


# -- memory ------------------------------------------------------------------------------------------------
async def test_when_both_memtables_are_full_requests_wait_and_lose_nothing(machine: SimulatedNode) -> None:
    node = await Node.on(machine)
    freed = 0

    def flushed() -> None:
        nonlocal freed
        freed += 1

    node.storage.on_flushed(flushed)
    blocks = [one(1, entry, 4 * KIB) for entry in range(64)]
    answers = [node.begin_add(block) for block in blocks]
    assert node.storage.bytes_unflushed >= 64 * 4 * KIB
    for answer in answers:
        assert list(await answer) == [OK]
    await node.storage.flush()
    assert freed >= 3 and node.storage.bytes_unflushed == 0
    for block, entry in zip(blocks, range(64), strict=True):
        assert await node.holds(1, entry) == block


async def test_the_journal_needs_only_what_is_not_flushed(machine: SimulatedNode) -> None:
    node = await Node.on(machine)
    for entry in range(200):
        assert await node.add(one(1, entry, 4 * KIB)) == [OK]
    await node.storage.flush()
    assert len(machine.journal.names()) < 10  # 800 KiB went through segments of 64 KiB
    node = await crash(machine)
    assert await node.holds(1, 199) == one(1, 199, 4 * KIB)


# -- full and failing disks --------------------------------------------------------------------------------
async def test_a_full_entry_disk_makes_the_node_read_only_and_reads_go_on() -> None:
    machine = SimulatedNode(seed=2)
    machine.entries.capacity_bytes = 640 * KIB
    node = await Node.on(machine)
    acknowledged = 0
    while (await node.add(one(1, acknowledged, 4 * KIB))) == [OK]:
        acknowledged += 1
        assert acknowledged < 1000
    assert node.storage.is_read_only
    assert (
        node.storage.why_not_ready
        == "the disk of entries is full and no new blocks are taken; free some space"
    )
    assert await node.add(one(1, acknowledged, 4 * KIB)) == [Status.READ_ONLY]
    assert await node.add(one(1, 0, 4 * KIB)) == [OK]  # a duplicate needs no room
    assert (await node.read(1, acknowledged, fence=True)).status is Status.NO_SUCH_ENTRY
    for entry in range(acknowledged):
        assert await node.holds(1, entry) == one(1, entry, 4 * KIB)
    machine.entries.capacity_bytes = 1 << 40
    await node.storage.stop()
    node = await Node.on(machine)
    assert not node.storage.is_read_only
    assert await node.add(one(2, 0)) == [OK]
    for entry in range(acknowledged):
        assert await node.holds(1, entry) == one(1, entry, 4 * KIB)


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
    assert not node.storage.failure
    assert node.storage.why_not_ready.startswith("the disk of journal is full")


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
    assert node.storage.is_read_only and not node.storage.failure
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
    assert node.storage.is_read_only
    assert "Input/output error" in node.storage.failure and "segment-" in node.storage.failure
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
    assert node.storage.is_read_only and node.storage.failure
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
    assert await node.add(one(1, 0), recovery=True) == [Status.IO_ERROR]
    assert await node.holds(2, 0) == one(2, 0)


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

        def die(_: Storage) -> None:
            raise OSError("killed")

        with monkeypatch.context() as patch:
            patch.setattr(Storage, "_admit_loss", die)
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
    assert node.storage.is_read_only and not flushed.done()
    assert await node.add(one(1, 1)) == [Status.READ_ONLY]
    pass_seconds(10)
    await flushed
    assert not node.storage.is_read_only
    assert await node.add(one(1, 1)) == [OK]
    await node.storage.stop()


# -- the real disk -----------------------------------------------------------------------------------------
def real_settings(directory: Path) -> BookieSettings:
    return BookieSettings(
        journal=str(directory / "journal"),
        entry_log=str(directory / "entries"),
        memtable_bytes=16 * MIB,
        journal_segment_bytes=16 * MIB,
        entry_log_bytes=64 * MIB,
        disk_reserve_bytes=MIB,
    )


async def test_the_real_thing_survives_a_restart_and_an_abandoned_process(tmp_path: Path) -> None:
    settings = real_settings(tmp_path)
    settings.validate()
    node = await Node.start(settings)
    blocks = [one(1, entry, 100 * KIB) for entry in range(300)]
    for start in range(0, 300, 20):
        assert await node.add(*blocks[start : start + 20]) == [OK] * 20
    await node.read(1, 300, fence=True)
    await node.storage.stop()
    node = await Node.start(settings)
    for entry in (0, 150, 299):
        assert await node.holds(1, entry) == blocks[entry]
    assert await node.add(one(1, 300)) == [Status.FENCED]
    await node.storage.stop()


async def test_a_directory_in_use_is_refused_with_its_name(tmp_path: Path) -> None:
    node = await Node.start(real_settings(tmp_path))
    with pytest.raises(ConfigurationError, match="in use"):
        await Storage(real_settings(tmp_path)).start()
    await node.storage.stop()


async def test_a_damaged_lmdb_file_is_rebuilt_at_the_next_start(tmp_path: Path) -> None:
    settings = real_settings(tmp_path)
    node = await Node.start(settings)
    await node.add(*[one(ledger_id, 0, 50) for ledger_id in range(200)])
    await node.storage.stop()
    data = tmp_path / "entries" / "index" / "data.mdb"
    content = bytearray(data.read_bytes())
    for offset in range(len(content) // 2, len(content), 64):
        content[offset] ^= 1
    data.write_bytes(content)
    node = await Node.start(settings)
    if not (await node.read(7, 0)).blocks:  # found only when it was read: then the next start heals it
        assert (await node.read(7, 0)).status is Status.IO_ERROR
        await node.storage.stop()
        node = await Node.start(settings)
    for ledger_id in range(200):
        assert await node.holds(ledger_id, 0) == one(ledger_id, 0, 50)
    await node.storage.stop()
