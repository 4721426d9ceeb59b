"""A disk that fills up: who may still write, what gives room back, and that room means service again."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from dataclasses import replace

import pytest

from quire.bookie.room import Room
from quire.bookie.settings import BookieSettings
from quire.runtime import limits
from quire.runtime.limits import GIB, KIB, MIB
from quire.testing.node import SMALL_SETTINGS, SimulatedNode
from quire.wire.bookie import AddRequest, Status
from tests.bookie.node import OK, Node, crash, one, restart

SETTINGS = replace(SMALL_SETTINGS, disk_reserve_bytes=512 * KIB)


async def add(node: Node, block: bytes, *, recovery: bool = False, priority: bool = False) -> Status:
    answer: asyncio.Future[list[Status]] = asyncio.get_running_loop().create_future()
    request = AddRequest(node.id, [block], recovery, priority)
    node.storage.add(request, lambda statuses: answer.set_result(list(statuses)))
    (status,) = await answer
    return status


async def fill(node: Node, ledger_id: int) -> int:
    """Publish until it is refused; answers how many blocks were taken."""
    for entry in range(1_000):
        status = await add(node, one(ledger_id, entry, 4 * KIB))
        if status is Status.READ_ONLY:
            return entry
        assert status is OK
    raise AssertionError("never full")


async def until(condition: Callable[[], object]) -> None:
    """Let seconds pass for the loop's timers until it holds."""
    loop = asyncio.get_running_loop()
    time, passed_s = loop.time, 0.0
    loop.time = lambda: time() + passed_s  # type: ignore[method-assign]
    while not condition():
        passed_s += 0.1
        assert passed_s < 600
        await asyncio.sleep(0)


# -- the table --------------------------------------------------------------------------------------------
def test_publishing_stops_at_the_reserve_and_begins_again_a_memtable_later() -> None:
    room = Room(64, 16)
    seen = []
    for left in (160, 159, 80, 79, 95, 96, 79, 16, 15, 16, 200):
        room.look(left, left)
        seen.append((room.is_short, room.is_full, room.is_exhausted))
    ample, short, full, exhausted = [(n > 0, n > 1, n > 2) for n in range(4)]
    assert seen == [ample, short, short, full, full, short, full, full, exhausted, full, ample]


def test_compaction_leaves_room_for_what_comes_meanwhile_unless_nothing_may_come() -> None:
    room = Room(64, 16)
    for left, for_copies in ((160, 112), (70, 22), (16, -32), (15, 15)):
        room.look(left, left)
        assert room.for_copies_bytes == for_copies


@pytest.mark.parametrize("disk_bytes", [256 * MIB, 512 * MIB, GIB, 4 * GIB])
def test_sizes_shrink_on_a_small_disk_so_that_most_of_it_is_for_messages(disk_bytes: int) -> None:
    fit = BookieSettings().fitted(disk_bytes, disk_bytes)
    fit.validate()
    beside = 3 * fit.journal_segment_bytes + fit.disk_reserve_bytes + fit.memtable_bytes
    assert beside <= 0.4 * disk_bytes
    assert fit.disk_reserve_bytes >= fit.memtable_bytes, "a memtable may come between two looks at the room"
    assert fit.disk_reserve_bytes // 4 >= 8 * MIB


def test_sizes_stay_on_a_large_disk_and_where_an_operator_chose_them() -> None:
    assert BookieSettings().fitted(64 * GIB, 64 * GIB) == BookieSettings()
    chosen = BookieSettings(
        memtable_bytes=48 * MIB,
        journal_segment_bytes=32 * MIB,
        entry_log_bytes=96 * MIB,
        disk_reserve_bytes=MIB,
    )
    assert chosen.fitted(256 * MIB, 256 * MIB) == chosen
    small = BookieSettings(entry_log_bytes=65 * MIB).fitted(256 * MIB, 256 * MIB)
    assert small.memtable_bytes < small.entry_log_bytes == 65 * MIB
    assert BookieSettings().memtable_bytes == limits.MEMTABLE_BYTES


# -- who may write ----------------------------------------------------------------------------------------
async def test_a_full_disk_takes_what_has_priority_and_all_that_is_no_block() -> None:
    machine = SimulatedNode(seed=2, capacity_bytes=2 * MIB)
    node = await Node.on(machine, SETTINGS)
    count = await fill(node, 1)
    health = node.storage.health
    assert health.is_read_only and health.takes_priority and health.is_short_of_space
    assert await add(node, one(2, 0), recovery=True) is Status.READ_ONLY, "a copy that repair makes"
    assert await add(node, one(2, 0), priority=True) is OK
    assert await add(node, one(2, 1), recovery=True, priority=True) is OK
    assert (await node.write_lac(1, count - 1)).status is OK
    assert (await node.read(1, count, fence=True)).status is Status.NO_SUCH_ENTRY
    assert (await node.delete(9)).status is OK
    machine.crash()
    node = await Node.on(machine, SETTINGS)
    assert node.storage.health.is_read_only and await node.holds(2, 0) == one(2, 0)
    assert await add(node, one(2, 2), priority=True) is OK, "nor does a restart change it"


async def test_the_last_of_the_reserve_is_for_deleting_which_makes_room_without_a_restart() -> None:
    machine = SimulatedNode(seed=2, capacity_bytes=2 * MIB)
    node = await Node.on(machine, SETTINGS)
    await fill(node, 1)
    entry = 0
    while await add(node, one(2, entry, 4 * KIB), priority=True) is OK:
        entry += 1
        if entry % 8 == 0:
            await node.storage.flush()
    assert entry * 4 * KIB >= 2 * SETTINGS.memtable_bytes, "also beside a compaction"
    assert node.storage.health.is_read_only and not node.storage.health.takes_priority
    assert (await node.delete(1)).status is OK
    await until(lambda: not node.storage.health.is_read_only)
    assert await add(node, one(3, 0)) is OK
    assert await node.holds(2, entry - 1) == one(2, entry - 1, 4 * KIB)


async def test_room_that_others_take_and_give_is_noticed_while_nobody_writes() -> None:
    machine = SimulatedNode(seed=2, capacity_bytes=2 * MIB)
    node = await Node.on(machine, SETTINGS)
    assert await add(node, one(1, 0)) is OK
    machine.entries.capacity_bytes = 100 * KIB
    await until(lambda: node.storage.health.is_read_only)
    assert "entries is full" in node.storage.health.why_read_only
    machine.entries.capacity_bytes = 2 * MIB
    await until(lambda: not node.storage.health.is_read_only)
    assert node.storage.health.why_read_only == "" and await add(node, one(1, 1)) is OK


async def test_spare_files_are_given_back_where_space_is_short() -> None:
    machine = SimulatedNode(seed=2, capacity_bytes=4 * MIB)
    node = await Node.on(machine)
    for entry in range(200):
        assert await add(node, one(1, entry, 4 * KIB)) is OK
    node = await restart(node, machine)
    assert (await node.delete(1)).status is OK
    await node.storage.flush()
    for _ in range(50):
        await asyncio.sleep(0)
    spares = [name for name in machine.entries.names("logs") if name.endswith(".free")]
    assert spares, "where there is room they are kept"
    used = machine.entries.space().total_bytes - machine.entries.space().free_bytes
    machine.entries.capacity_bytes = used + 10 * KIB  # others filled the disk
    await until(lambda: not [name for name in machine.entries.names("logs") if name.endswith(".free")])
    assert machine.entries.space().free_bytes >= len(spares) * 200 * KIB


# -- the journal ------------------------------------------------------------------------------------------
async def test_a_journal_without_room_waits_for_it_and_does_not_die() -> None:
    machine = SimulatedNode(seed=2)
    machine.journal.capacity_bytes = 70 * KIB  # one segment
    node = await Node.on(machine)
    await asyncio.sleep(0)
    taken = 0
    machine.entries.fail("allocate", errno.ENOSPC, "logs", times=1_000)  # nor can a checkpoint free that one
    waiting: list[asyncio.Task[Status]] = []
    while not waiting:
        adding = asyncio.ensure_future(add(node, one(1, taken, 4 * KIB), priority=True))
        for _ in range(20):
            await asyncio.sleep(0)
        if adding.done():
            assert adding.result() is OK
            taken += 1
        else:
            waiting.append(adding)
    assert taken > 5 and not node.storage.health.failure
    assert await node.holds(1, 0) == one(1, 0, 4 * KIB)
    machine.journal.capacity_bytes = 1 << 40
    await until(waiting[0].done)
    assert await waiting[0] is OK
    machine.entries.heal()
    node = await crash(machine)
    for entry in range(taken + 1):
        assert await node.holds(1, entry) == one(1, entry, 4 * KIB)


async def test_a_node_whose_journal_waits_for_room_can_be_stopped() -> None:
    machine = SimulatedNode(seed=2)
    machine.journal.capacity_bytes = 70 * KIB
    node = await Node.on(machine)
    machine.entries.fail("allocate", errno.ENOSPC, "logs", times=1_000)
    adding = [asyncio.ensure_future(add(node, one(1, entry, 4 * KIB), priority=True)) for entry in range(30)]
    for _ in range(200):
        await asyncio.sleep(0)
    await asyncio.wait_for(node.storage.stop(), 10)
    statuses = [await each for each in adding]
    assert statuses[0] is OK and Status.IO_ERROR in statuses
    machine.entries.heal()
    machine.journal.capacity_bytes = 1 << 40
    node = await Node.on(machine)
    for entry, status in enumerate(statuses):
        if status is OK:
            assert await node.holds(1, entry) == one(1, entry, 4 * KIB)


async def test_a_full_journal_asks_for_the_checkpoint_that_frees_a_segment() -> None:
    machine = SimulatedNode(seed=2)
    machine.journal.capacity_bytes = 180 * KIB  # two segments and not a third
    node = await Node.on(machine)
    entry = 0
    while await add(node, one(1, entry, 4 * KIB)) is OK:
        entry += 1
        await asyncio.sleep(0)
    await until(lambda: not node.storage.health.is_read_only)
    assert await add(node, one(1, entry, 4 * KIB)) is OK


WIDE = replace(SMALL_SETTINGS, memtable_bytes=96 * KIB)
"""A memtable is more than a journal segment."""


async def test_a_journal_that_waits_for_a_checkpoint_is_not_waited_for_by_it() -> None:
    """All that was accepted is one memtable, and the journal has no room for all of it."""
    machine = SimulatedNode(seed=2)
    machine.journal.capacity_bytes = 150 * KIB
    node = await Node.on(machine, WIDE)
    adding = [asyncio.ensure_future(add(node, one(1, entry, 4 * KIB), priority=True)) for entry in range(90)]
    await until(lambda: all(each.done() for each in adding))
    assert {each.result() for each in adding} == {OK}
    node = await crash(machine)
    for entry in range(90):
        assert await node.holds(1, entry) == one(1, entry, 4 * KIB)


async def test_what_was_answered_is_kept_wherever_the_power_fails_while_a_journal_waits() -> None:
    cuts = 0
    for operations in range(1, 400):
        machine = SimulatedNode(seed=operations)
        machine.journal.capacity_bytes = 150 * KIB
        node = await Node.on(machine, WIDE)
        machine.power.fail_after(operations)
        adding = [
            asyncio.ensure_future(add(node, one(1, entry, 4 * KIB), priority=True)) for entry in range(60)
        ]
        await until(
            lambda adding=adding, power=machine.power: power.is_down or all(each.done() for each in adding)
        )  # type: ignore[misc]
        answered = [entry for entry, each in enumerate(adding) if each.done() and each.result() is OK]
        was_cut = machine.power.is_down
        machine.crash()
        machine.journal.capacity_bytes = 1 << 40
        node = await Node.on(machine, WIDE)
        for entry in answered:
            assert await node.holds(1, entry) == one(1, entry, 4 * KIB), (operations, entry)
        await node.storage.stop()
        cuts += was_cut
        if not was_cut:
            break
    assert 30 < cuts < 399


async def test_a_node_can_be_stopped_at_any_moment_while_its_journal_waits_for_room() -> None:
    """Also when it tries once more at that moment."""
    for turns in range(1, 60):
        machine = SimulatedNode(seed=2)
        machine.journal.capacity_bytes = 70 * KIB
        node = await Node.on(machine)
        machine.entries.fail("allocate", errno.ENOSPC, "logs", times=1_000)
        adding = [
            asyncio.ensure_future(add(node, one(1, entry, 4 * KIB), priority=True)) for entry in range(30)
        ]
        for _ in range(turns):
            await asyncio.sleep(0)
        stopping = asyncio.ensure_future(node.storage.stop())
        await until(stopping.done)
        assert all(each.done() for each in adding)
