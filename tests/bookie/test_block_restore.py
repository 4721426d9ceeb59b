"""What rotted in the entry log is put back by whoever writes the block again from another copy."""

from __future__ import annotations

import pytest

from quire.testing.node import SimulatedNode
from quire.wire.block import HEADER_BYTES
from quire.wire.bookie import Status

from .node import OK, Node, crash, one, restart

COUNT = 5
BODY, HEADER = HEADER_BYTES + 20, 9
"""Where to turn a bit, from the beginning of a block."""


async def flushed(machine: SimulatedNode) -> Node:
    """A node with one run of a ledger, and another ledger beside it, in the entry log."""
    node = await Node.on(machine)
    await node.add(*(one(1, entry) for entry in range(COUNT)), one(2, 0))
    return await restart(node, machine)


def rot(machine: SimulatedNode, entry: int, where: int = BODY) -> None:
    (name,) = [f"logs/{name}" for name in machine.entries.names("logs") if name.endswith(".log")]
    machine.entries.flip(name, machine.entries.content(name).index(one(1, entry)) + where)


async def held(node: Node) -> list[bytes | Status]:
    return [await node.holds(1, entry) for entry in range(COUNT)]


WHOLE = [one(1, entry) for entry in range(COUNT)]


@pytest.mark.parametrize("where", [BODY, HEADER])
@pytest.mark.parametrize("entry", range(COUNT))
async def test_a_rotten_block_is_mended_in_its_place(machine: SimulatedNode, entry: int, where: int) -> None:
    node = await flushed(machine)
    rot(machine, entry, where)
    assert await node.holds(1, entry) is Status.IO_ERROR
    assert await node.add(one(1, entry)) == [Status.IO_ERROR], (
        "only of a recovery it is known that it was confirmed"
    )
    assert await node.add(one(1, entry), recovery=True) == [OK]
    assert await held(node) == WHOLE
    node = await crash(machine)
    assert await held(node) == WHOLE, "it was answered, so it was durable"
    assert await node.holds(2, 0) == one(2, 0)
    assert await node.hole(1, 0, COUNT - 1) == (OK, COUNT)


async def test_each_of_several_rotten_blocks_is_mended_by_itself(machine: SimulatedNode) -> None:
    node = await flushed(machine)
    for entry in (1, 3):
        rot(machine, entry)
    assert await node.add(one(1, 1), recovery=True) == [OK]
    assert await held(node) == [*WHOLE[:3], Status.IO_ERROR, WHOLE[4]], "the other one is no better for it"
    assert await node.add(one(1, 3), one(1, 1), one(1, 9), recovery=True) == [OK, OK, OK]
    assert await held(node) == WHOLE


async def test_a_rotten_header_elsewhere_in_the_run_keeps_no_block_from_being_mended(
    machine: SimulatedNode,
) -> None:
    """Such a block may lie behind its ledger's end, where nobody can send it again."""
    node = await flushed(machine)
    rot(machine, 0, HEADER)
    rot(machine, 2)
    rot(machine, 4, HEADER)
    assert await node.add(one(1, 2), recovery=True) == [OK]
    bad = Status.IO_ERROR
    for _ in range(2):
        assert await held(node) == [bad, *WHOLE[1:4], bad]
        node = await crash(machine)
    assert await node.add(one(1, 4), one(1, 0), recovery=True) == [OK, OK]
    assert await held(node) == WHOLE


@pytest.mark.parametrize("where", [BODY, HEADER])
async def test_a_block_in_the_middle_of_a_gap_waits_for_its_neighbours(
    machine: SimulatedNode, where: int
) -> None:
    node = await flushed(machine)
    for entry in (1, 3):
        rot(machine, entry, HEADER)
    rot(machine, 2, where)
    assert await node.add(one(1, 2), recovery=True) == [OK if where == BODY else Status.IO_ERROR]
    assert await node.add(one(1, 3), recovery=True) == [OK], "the last one of a gap"
    assert await node.add(one(1, 1), one(1, 2), recovery=True) == [OK, OK]
    assert await held(node) == WHOLE
    node = await crash(machine)
    assert await held(node) == WHOLE
    assert await node.hole(1, 0, COUNT - 1) == (OK, COUNT)


@pytest.mark.parametrize("size", [99, 101])
async def test_a_block_that_does_not_fit_where_a_header_rotted_is_refused(
    machine: SimulatedNode, size: int
) -> None:
    node = await flushed(machine)
    rot(machine, 2, HEADER)
    assert await node.add(one(1, 2, size), recovery=True) == [Status.IO_ERROR]
    assert await held(node) == [*WHOLE[:2], *[Status.IO_ERROR] * 3], "a walk ends there"
    assert await node.add(one(1, 2), recovery=True) == [OK]
    assert await held(node) == WHOLE


async def test_other_bytes_are_refused_as_ever(machine: SimulatedNode) -> None:
    node = await flushed(machine)
    rot(machine, 2)
    assert await node.add(one(1, 2, letter="x"), recovery=True) == [Status.CONFLICT]
    assert await node.add(one(1, 2, count=2), recovery=True) == [Status.CONFLICT]
    assert (await held(node))[2] is Status.IO_ERROR


async def test_a_mended_ledger_can_be_deleted_and_its_room_comes_back(machine: SimulatedNode) -> None:
    node = await flushed(machine)
    rot(machine, 2)
    assert await node.add(one(1, 2), recovery=True) == [OK]
    for ledger_id in (1, 2):
        await node.delete(ledger_id)
    await node.storage.flush()
    assert not any(node.storage.ledger_storage.index.usage().values())


async def test_power_may_fail_at_any_moment_of_it(machine: SimulatedNode) -> None:
    """The block is rotten or whole afterwards, and nothing else is touched."""
    outcomes = set()
    for operations in range(30):
        machine = SimulatedNode(operations)
        node = await flushed(machine)
        rot(machine, 2)
        machine.power.fail_after(operations)
        answer = await node.add(one(1, 2), recovery=True)
        node = await crash(machine)
        found = await held(node)
        assert found[2] in (Status.IO_ERROR, WHOLE[2])
        assert found[:2] + found[3:] == WHOLE[:2] + WHOLE[3:]
        if answer == [OK]:
            assert found == WHOLE
        outcomes.add((found == WHOLE, answer == [OK]))
    assert {(False, False), (True, True)} <= outcomes
