"""One page that cannot be read costs the blocks that lie on it and no others, until somebody sends those again."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from quire.bookie.index import Index
from quire.bookie.ledger_storage import INDEX_IS_DAMAGED
from quire.runtime.disk import PAGE_BYTES
from quire.runtime.errors import DiskError
from quire.runtime.limits import KIB
from quire.testing.node import SMALL_SETTINGS, SimulatedNode
from quire.wire.block import HEADER_BYTES
from quire.wire.bookie import BookieId, Status

from .node import OK, Node, crash, one, restart

COUNT, SIZE = 5, 2 * PAGE_BYTES + 700
WHOLE = [one(1, entry, SIZE) for entry in range(COUNT)]
BODY = HEADER_BYTES + PAGE_BYTES
"""A place in a block whose page holds nothing but the block's entry."""
SEGMENT = "segment-000001"
BAD = Status.IO_ERROR


async def flushed(machine: SimulatedNode) -> Node:
    """A node with one run of a ledger, and another ledger beside it, in the entry log."""
    node = await Node.on(machine, replace(SMALL_SETTINGS, memtable_bytes=64 * KIB))
    for block in (*WHOLE, one(2, 0)):
        await node.add(block)
    return await restart(node, machine)


def place_of(machine: SimulatedNode, entry: int) -> tuple[str, int]:
    """The first log in which the block lies, and where."""
    for name in machine.entries.names("logs"):
        place = machine.entries.content(f"logs/{name}").find(WHOLE[entry])
        if place >= 0:
            return f"logs/{name}", place
    raise LookupError(entry)


def spoil(machine: SimulatedNode, entry: int, where: int = BODY) -> None:
    name, place = place_of(machine, entry)
    machine.entries.spoil(name, place + where)


async def held(node: Node) -> list[bytes | Status]:
    return [await node.holds(1, entry) for entry in range(COUNT)]


# -- reading -----------------------------------------------------------------------------------------------
async def test_the_neighbours_of_a_block_that_cannot_be_read_can(machine: SimulatedNode) -> None:
    node = await flushed(machine)
    spoil(machine, 2)
    assert await held(node) == [*WHOLE[:2], BAD, *WHOLE[3:]]
    assert await node.holds(2, 0) == one(2, 0)
    answer = await node.read(1, 0)
    assert [bytes(block) for block in answer.blocks] == WHOLE[:2], "a read ends before it"
    answer = await node.read(1, 2)
    name, place = place_of(machine, 2)
    page = (place + BODY) // PAGE_BYTES * PAGE_BYTES
    assert name in answer.detail and f"offset {page}" in answer.detail


async def test_an_error_that_passes_is_not_met_at_all(machine: SimulatedNode) -> None:
    node = await flushed(machine)
    machine.entries.fail("read", errno.EIO)
    assert await held(node) == WHOLE


async def test_a_scrub_names_the_block_that_cannot_be_read(machine: SimulatedNode) -> None:
    node = await flushed(machine)
    spoil(machine, 3)
    checked = await node.storage.check_run(1, 0)
    assert (checked.damaged_entry, checked.next_entry) == (3, COUNT)
    assert isinstance(checked.damage, DiskError)


# -- restoring -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "where", [BODY, 0], ids=["its entry", "its header and the end of the block before it"]
)
@pytest.mark.parametrize("entry", range(COUNT))
async def test_it_is_mended_by_whoever_sends_it_again(machine: SimulatedNode, entry: int, where: int) -> None:
    node = await flushed(machine)
    spoil(machine, entry, where)
    assert await node.holds(1, entry) is BAD
    assert await node.add(WHOLE[entry]) == [BAD], "only of a recovery it is known that it was confirmed"
    for block in WHOLE:  # a repair sends them all, in order
        assert await node.add(block, recovery=True) == [OK]
    for _ in range(2):
        assert await held(node) == WHOLE
        assert await node.hole(1, 0, COUNT - 1) == (OK, COUNT)
        node = await crash(machine)
    assert await node.holds(2, 0) == one(2, 0)


async def test_another_one_of_its_run_stays_where_it_is_for_it_may_be_read_one_day(
    machine: SimulatedNode,
) -> None:
    node = await flushed(machine)
    spoil(machine, 1)
    spoil(machine, 3)
    other = place_of(machine, 3)
    assert await node.add(WHOLE[1], recovery=True) == [OK]
    node = await crash(machine)
    assert await held(node) == [*WHOLE[:3], BAD, WHOLE[4]]
    machine.entries.restore(other[0], other[1] + BODY)
    assert await held(node) == WHOLE


async def test_other_bytes_are_refused_though_the_block_cannot_be_read(machine: SimulatedNode) -> None:
    node = await flushed(machine)
    spoil(machine, 2)
    assert await node.add(one(1, 2, SIZE, letter="x"), recovery=True) == [Status.CONFLICT]
    assert await held(node) == [*WHOLE[:2], BAD, *WHOLE[3:]]


async def test_a_disk_that_cannot_be_read_at_all_mends_nothing_and_loses_nothing(
    machine: SimulatedNode,
) -> None:
    node = await flushed(machine)
    machine.entries.fail("read", errno.EIO, times=1 << 30)
    assert await node.add(WHOLE[2], recovery=True) == [BAD]
    assert await held(node) == [BAD] * COUNT
    machine.entries.heal()
    assert await held(node) == WHOLE


async def test_what_was_mended_is_found_again_when_the_index_is_lost(machine: SimulatedNode) -> None:
    """Headers in the old log still say where the blocks were: of several places the latest counts."""
    node = await Node.on(machine, replace(SMALL_SETTINGS, memtable_bytes=64 * KIB))
    for block in (*WHOLE, one(2, 0)):
        await node.add(block)
        if block is WHOLE[-1]:
            await node.storage.flush()  # a second record proves the first one
    node = await restart(node, machine)
    for entry in (1, 3):
        spoil(machine, entry)
    other = place_of(machine, 3)
    assert await node.add(WHOLE[1], recovery=True) == [OK]
    for _ in range(2):
        await node.storage.stop()
        machine.entries.write_bytes(INDEX_IS_DAMAGED, b"a test says so")
        node = await Node.on(machine)
        assert await held(node) == [*WHOLE[:3], BAD, WHOLE[4]]
    machine.entries.restore(other[0], other[1] + BODY)
    assert await held(node) == WHOLE
    assert await node.holds(2, 0) == one(2, 0)


# -- a start -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("where", [BODY, 0, -HEADER_BYTES])
async def test_an_index_rebuilt_around_it_takes_it_for_no_absence(machine: SimulatedNode, where: int) -> None:
    """No later record proves that the last one was durable; of a torn one that would be the end."""
    node = await flushed(machine)
    before = node.id
    await node.storage.stop()
    spoil(machine, 0, where)
    machine.entries.write_bytes(INDEX_IS_DAMAGED, b"a test says so")
    node = await Node.on(machine)
    assert node.id == BookieId(before.uuid, before.incarnation + 1)
    for entry in range(COUNT):
        assert (await node.read(1, entry, bookie=before)).status in (OK, BAD, Status.LIMBO)
    for block in WHOLE:
        assert await node.add(block, recovery=True) == [OK]
    assert await held(node) == WHOLE


@pytest.mark.parametrize("entry", [None, 1, COUNT - 1], ids=["header", "in the middle", "last group"])
async def test_in_the_journal_it_is_damage_and_never_a_torn_tail(
    machine: SimulatedNode, entry: int | None
) -> None:
    node = await Node.on(machine)
    for number in range(COUNT):
        await node.add(one(1, number))
    before = node.id
    place = 0 if entry is None else machine.journal.content(SEGMENT).index(one(1, entry))
    machine.journal.spoil(SEGMENT, place)
    node = await crash(machine)
    assert node.id == BookieId(before.uuid, before.incarnation + 1)
    gone = set(range(COUNT)) if entry is None else {entry}
    for number in range(COUNT):
        found = await node.holds(1, number) if entry is not None else Status.LIMBO
        assert found == (Status.LIMBO if number in gone else one(1, number))
    assert (await node.read(1, 1, bookie=before)).status in (OK, Status.LIMBO)
    assert await node.add(one(3, 0)) == [OK]
    node = await crash(machine)
    assert node.id.incarnation == before.incarnation + 1, "it was written down once"
    assert await node.holds(3, 0) == one(3, 0)


async def test_an_index_that_cannot_be_read_is_rebuilt(
    machine: SimulatedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await flushed(machine)
    before = node.id
    await node.storage.stop()
    open_index, failures = machine.home.open, [DiskError("EIO")]

    def open_later() -> Index:
        if failures:
            raise failures.pop()
        return open_index()

    monkeypatch.setattr(machine.home, "open", open_later)
    node = await Node.on(machine)
    assert node.id == BookieId(before.uuid, before.incarnation + 1)
    assert await held(node) == WHOLE


async def test_what_the_journal_still_has_is_better_than_a_record_that_nothing_proves(
    machine: SimulatedNode,
) -> None:
    node = await Node.on(machine)
    for entry in range(COUNT):
        await node.add(one(1, entry, 3000))
    await node.storage.flush()
    name, place = "logs/00000001.log", machine.entries.content("logs/00000001.log").index(one(1, 2, 3000))
    machine.crash()
    machine.entries.spoil(name, place + HEADER_BYTES + 1500)
    machine.entries.write_bytes(INDEX_IS_DAMAGED, b"a test says so")
    node = await Node.on(machine)
    assert [await node.holds(1, entry) for entry in range(COUNT)] == [one(1, e, 3000) for e in range(COUNT)]


async def test_a_page_of_the_journal_that_is_flushed_is_no_damage(machine: SimulatedNode) -> None:
    node = await Node.on(machine)
    for entry in range(COUNT):
        await node.add(one(1, entry))
    before = node.id
    machine.journal.spoil(SEGMENT, machine.journal.content(SEGMENT).index(one(1, 2)))
    for _ in range(3):
        node = await restart(node, machine)
        assert node.id == before
    assert await node.holds(1, 2) == one(1, 2)


async def test_an_unreadable_segment_is_set_aside_whole(machine: SimulatedNode) -> None:
    """What cannot be read today is not written over: a person may find it readable."""
    node = await Node.on(machine)
    await node.add(one(1, 0))
    content = machine.journal.content(SEGMENT)
    machine.journal.spoil(SEGMENT, 0)
    node = await crash(machine)
    assert machine.journal.content(f"unreadable-{SEGMENT}") == content
    assert not machine.journal.exists(SEGMENT)
    assert await node.add(one(2, 0)) == [OK]
    assert await (await crash(machine)).holds(2, 0) == one(2, 0)


async def test_a_journal_of_which_much_cannot_be_read_ends_the_start(machine: SimulatedNode) -> None:
    node = await Node.on(machine)
    await node.add(one(1, 0))
    machine.crash()
    machine.journal.fail("read", errno.EIO, times=1 << 30)
    with pytest.raises(DiskError):
        await Node.on(machine)
    machine.journal.heal()
    machine.kill()
    node = await Node.on(machine)
    assert await node.holds(1, 0) == one(1, 0)
