"""Two failures, of which the second meets what the first left half done: a bookie denies nothing that it promised."""

from __future__ import annotations

import asyncio
import errno
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace

import pytest

from quire.runtime.errors import DiskError, QuireError
from quire.runtime.limits import KIB
from quire.testing.node import SMALL_SETTINGS, SimulatedNode
from quire.wire.block import HEADER_BYTES
from quire.wire.bookie import BookieId, Status
from tests.bookie.node import OK, Node, crash, one, restart

BODY = HEADER_BYTES + 20
SEEDS = range(16)


def rot(machine: SimulatedNode, ledger_id: int, entry: int) -> None:
    for name in (f"logs/{name}" for name in machine.entries.names("logs")):
        place = machine.entries.content(name).find(one(ledger_id, entry))
        if place >= 0:
            machine.entries.flip(name, place + BODY)


async def is_denied(node: Node, entry: int, asked: BookieId) -> bool:
    """Whether a recovery hears that entry `entry` of ledger 1 was never there."""
    answer = await node.read(1, entry, bookie=asked, fence=True)
    return answer.status in (Status.NO_SUCH_ENTRY, Status.NO_SUCH_LEDGER)


# -- the index -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("what", ["block", "fence", "tombstone", "lac"])
async def test_an_index_that_went_back_by_a_commit_is_a_loss(machine: SimulatedNode, what: str) -> None:
    """One bit of LMDB's newer meta page suffices; the journal's segments know a later mark."""
    node = await Node.on(machine)
    before = node.id
    await node.add(one(1, 0))
    await node.storage.flush()
    older, machine.home.index._closed = machine.home.index.crash(), False
    match what:
        case "block":
            await node.add(one(1, 1))
        case "fence":
            await node.read(1, 1, fence=True)
        case "tombstone":
            await node.delete(1)
        case "lac":
            await node.write_lac(1, 7)
    node = await restart(node, machine)
    await node.storage.stop()
    machine.home.index = older
    node = await Node.on(machine)
    assert node.id == BookieId(before.uuid, before.incarnation + 1)
    assert not await is_denied(node, 1, before)
    assert await node.add(one(1, 1), bookie=before) == [Status.WRONG_BOOKIE]


@pytest.mark.parametrize("again", [False, True])
async def test_a_rebuild_makes_durable_what_it_finds(again: bool) -> None:
    """A process died between a checkpoint's writes and its sync; then the index is lost, then the power."""
    for seed in SEEDS:
        machine = SimulatedNode(seed)
        node = await Node.on(machine)
        before = node.id
        assert await node.add(one(1, 0)) == [OK]
        machine.entries.fail("sync", errno.EIO, ".log")
        with pytest.raises(QuireError):
            await node.storage.flush()
        machine.kill()
        machine.home.discard()
        node = await Node.on(machine)
        await node.storage.stop()
        machine.crash()
        if again:
            machine.home.discard()
        node = await Node.on(machine)
        assert (await node.read(1, 0, bookie=before)).status is OK


async def test_an_older_index_is_not_forgotten_when_the_start_that_found_it_fails(
    machine: SimulatedNode,
) -> None:
    """A long replay flushes on its way. Its mark must not pass what the index lost before that is written down."""
    node = await Node.on(machine)
    before = node.id
    await node.add(one(1, 0))
    await node.storage.flush()
    older, machine.home.index._closed = machine.home.index.crash(), False
    assert await node.add(one(1, 1)) == [OK]
    node = await restart(node, machine)
    for entry in range(2, 8):
        assert await node.add(one(1, entry, 3000)) == [OK]
    machine.crash()
    machine.home.index = older
    machine.journal.fail("durable", errno.EIO, "segment-")
    with pytest.raises(DiskError):
        await Node.on(machine, replace(SMALL_SETTINGS, memtable_bytes=8 * KIB))
    machine.journal.heal()
    node = await crash(machine)
    assert node.id == BookieId(before.uuid, before.incarnation + 1)
    assert (await node.read(1, 1)).status is Status.LIMBO
    assert [await node.holds(1, entry) for entry in (0, 2, 7)] == [
        one(1, 0),
        one(1, 2, 3000),
        one(1, 7, 3000),
    ]


# -- the journal ---------------------------------------------------------------------------------------
async def test_a_spare_segment_keeps_its_name(machine: SimulatedNode) -> None:
    """Its maker died before the name was durable; the next process uses what it sees, and the power fails."""
    for seed in SEEDS:
        machine = SimulatedNode(seed)
        node = await Node.on(machine)
        before = node.id
        await asyncio.sleep(0.01)
        for entry in range(60):  # more than a segment: the next start has a spare of its own, too
            assert await node.add(one(1, entry, 3000)) == [OK]
        entry += 1
        await node.storage.flush()
        await asyncio.sleep(0.01)
        sync_directory = machine.journal.sync_directory

        def die(directory: str = "", machine: SimulatedNode = machine) -> None:
            machine.kill()
            raise OSError(errno.EIO, "the process is gone")

        machine.journal.sync_directory = die  # type: ignore[method-assign]
        node.storage._journal._pool.spares.clear()
        node.storage._journal._pool.ensure_spare()
        await asyncio.sleep(0.01)
        machine.kill()
        machine.journal.sync_directory = sync_directory  # type: ignore[method-assign]
        node = await Node.on(machine)
        assert await node.add(one(1, entry)) == [OK]
        node = await crash(machine)
        assert not await is_denied(node, entry, before)


async def test_what_is_not_durable_is_a_hole(machine: SimulatedNode) -> None:
    """Repair lets another copy go on that word."""
    node = await Node.on(machine)
    await node.add(one(1, 0))
    machine.journal.fail("durable", errno.EIO, "segment")
    adding = node.begin_add(one(1, 1))
    assert await node.hole(1, 0, 1) != (OK, 2)
    assert await adding == [Status.IO_ERROR]
    assert await node.hole(1, 0, 1) != (OK, 2)


async def test_without_sync_a_stop_that_could_not_flush_is_an_unclean_one() -> None:
    unsafe = replace(SMALL_SETTINGS, unsafe_no_sync=True)
    for seed in SEEDS:
        machine = SimulatedNode(seed)
        node = await Node.on(machine, unsafe)
        before = node.id
        assert await node.add(one(1, 0)) == [OK]
        machine.entries.fail("allocate", errno.ENOSPC, "logs", times=1000)
        await node.storage.stop()
        machine.entries.heal()
        machine.crash()
        node = await Node.on(machine, unsafe)
        assert not await is_denied(node, 0, before)
        await node.storage.stop()


@pytest.mark.parametrize("cut_after", range(24))
async def test_an_older_copy_of_the_journal_is_not_forgotten_when_the_start_that_found_it_fails(
    machine: SimulatedNode, cut_after: int
) -> None:
    """Wherever it fails: the cookies may agree again before the ledgers are in limbo."""
    node = await Node.on(machine)
    await node.add(one(1, 0))
    before = node.id
    machine.crash()
    older = deepcopy(machine.journal, {id(machine.power): machine.power})
    node = await Node.on(machine)
    assert await node.add(one(1, 1)) == [OK]
    machine.crash()
    machine.journal = older
    machine.power.fail_after(cut_after)
    with suppress(DiskError):
        await Node.on(machine)
    node = await crash(machine)
    assert node.id.incarnation > before.incarnation
    assert (await node.read(1, 1)).status is Status.LIMBO
    assert (await node.info(1)).fenced
    assert await node.holds(1, 0) == one(1, 0)


# -- restoring -------------------------------------------------------------------------------------------
async def test_restoring_asks_the_disk_and_not_the_cache(machine: SimulatedNode) -> None:
    node = await Node.on(machine)
    await node.add(*(one(1, entry) for entry in range(5)))
    node = await restart(node, machine)
    assert (await node.read(1, 0)).status is OK
    rot(machine, 1, 2)
    assert (await node.storage.check_run(1, 0)).damaged_entry == 2
    assert await node.add(one(1, 2), recovery=True) == [OK]
    assert (await node.storage.check_run(1, 0)).damage is None
    node = await crash(machine)
    assert await node.holds(1, 2) == one(1, 2)


async def test_a_full_disk_under_restoring_leaves_the_next_checkpoint_alone(machine: SimulatedNode) -> None:
    node = await Node.on(machine)
    await node.add(*(one(1, entry) for entry in range(5)))
    node = await restart(node, machine)
    rot(machine, 1, 2)
    machine.entries.fail("write", errno.ENOSPC, "logs/")
    assert await node.add(one(1, 2), recovery=True) == [Status.IO_ERROR]
    await node.write_lac(9, 3)
    await node.storage.flush()
    assert await node.add(one(1, 2), recovery=True) == [OK]
    await node.add(one(3, 0))
    await node.storage.flush()
    assert not node.storage.health.failure
