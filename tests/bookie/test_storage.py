"""One storage node: what it answers, and what it still knows after a restart."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from quire.bookie.settings import BookieSettings
from quire.bookie.storage import Storage
from quire.runtime.errors import ConfigurationError
from quire.runtime.limits import KIB, MIB
from quire.testing.node import SimulatedNode
from quire.wire.bookie import BookieId, FindHoleRequest, Status
from tests.bookie.node import OK, Node, crash, one, restart


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
    assert answer.status is Status.READ_ONLY and not answer.blocks, "what it holds is not damaged"
    assert "cannot store the fence" in answer.detail
    node = await crash(machine)
    assert (await node.read(1, 0, fence=True)).status is OK


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


# -- holes ------------------------------------------------------------------------------------------------
async def test_a_hole_is_found_wherever_the_blocks_around_it_lie(machine: SimulatedNode) -> None:
    node = await Node.on(machine)
    await node.add(*[one(1, entry) for entry in range(10) if entry not in (4, 7)])
    assert await node.hole(1, 0, 9) == (OK, 4)
    await node.storage.flush()
    await node.add(one(1, 4), one(1, 11))
    assert await node.hole(1, 0, 11) == (OK, 7)
    node = await restart(node, machine)
    assert await node.hole(1, 8, 11) == (OK, 10)
    assert await node.hole(1, 8, 9) == (OK, 10)
    assert await node.hole(1, 11, 20) == (OK, 12)
    stranger = FindHoleRequest(BookieId("0" * 36, 1), 1, 0, 9)
    assert (await node.storage.ask(stranger)).status is Status.WRONG_BOOKIE


async def test_a_bookie_in_limbo_says_where_it_has_a_hole_and_that_this_proves_nothing(
    machine: SimulatedNode,
) -> None:
    node = await Node.on(machine)
    await node.add(one(1, 0), one(1, 1), one(1, 3))
    node.storage.cache.state(1).is_limbo = True
    assert await node.hole(1, 0, 1) == (OK, 2)
    assert await node.hole(1, 0, 3) == (Status.LIMBO, 2)


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
