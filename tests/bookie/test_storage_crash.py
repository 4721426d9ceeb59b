"""Random histories with a power cut anywhere: what was answered is there afterwards, and nothing else is invented.

Everything is drawn from one seed: what is done, where the power fails, which unsynced bytes and names survive, and
whether a commit of the index that was interrupted happened. After each restart the node is asked about all that
was ever tried.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.runtime.errors import DiskError, QuireError
from quire.testing.node import SimulatedNode
from quire.wire.bookie import Status

from .node import OK, Node, one

LEDGERS = 4


@dataclass
class Promised:
    """What a node has answered of one ledger, and what it was asked for without an answer yet."""

    tried: dict[int, bytes] = field(default_factory=dict)
    acknowledged: set[int] = field(default_factory=set)
    next_entry: int = 0
    fence_tried: bool = False
    fenced: bool = False
    burial_tried: bool = False
    deleted: bool = False
    lac: int = -1


class History:
    """One machine, one life after the other."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.machine = SimulatedNode(seed)
        self.ledgers = {ledger_id: Promised() for ledger_id in range(1, LEDGERS + 1)}
        self.incarnation = 1

    async def run(self, lives: int, steps: int) -> None:
        for _ in range(lives):
            node = await self._start()
            await self._check(node)
            if self.rng.random() < 0.2:
                self.machine.home.index.fail(DiskError("the machine went down"), self.rng.random() < 0.5)
            if self.rng.random() < 0.9:
                self.machine.power.fail_after(self.rng.randrange(60))
            await self._live(node, steps)
            if not self.machine.power.is_down and self.rng.random() < 0.3:
                await node.storage.stop()
                if self.machine.power.is_down or self.rng.random() < 0.5:
                    self.machine.crash()
                self.machine.power.restore()
            else:
                self.machine.crash()
        await self._check(await self._start())

    async def _start(self) -> Node:
        """Starts may be cut short by the power, too."""
        for _ in range(3):
            if self.rng.random() < 0.3:
                self.machine.power.fail_after(self.rng.randrange(25))
                try:
                    await Node.on(self.machine)
                except QuireError:
                    pass
                self.machine.crash()
        return await Node.on(self.machine)

    async def _live(self, node: Node, steps: int) -> None:
        actions = [self._add] * 8 + [self._fence, self._lac, self._bury, self._flush, self._pause]
        tasks = []
        for _ in range(steps):
            ledger_id = self.rng.randint(1, LEDGERS)
            tasks.append(
                asyncio.ensure_future(self.rng.choice(actions)(node, ledger_id, self.ledgers[ledger_id]))
            )
            for _ in range(self.rng.choice((0, 0, 1, 3, 20))):
                await asyncio.sleep(0)
        await asyncio.wait(tasks, timeout=20)
        assert all(task.done() for task in tasks), f"seed {self.seed}: something is never answered"
        for task in tasks:
            task.result()

    # -- what is done --------------------------------------------------------------------------------------
    async def _add(self, node: Node, ledger_id: int, promised: Promised) -> None:
        recovery = promised.fence_tried
        first_entry = promised.next_entry
        if recovery and self.rng.random() < 0.3 and promised.tried:
            first_entry = self.rng.choice(sorted(promised.tried))  # written again, the same bytes
        made = promised.tried.get(first_entry)
        if made is None:
            count = self.rng.choice((1, 1, 3))
            made = one(ledger_id, first_entry, self.rng.choice((50, 3000, 9000)) // count, count=count)
            promised.tried[first_entry] = made
            promised.next_entry = first_entry + count
        (status,) = await node.add(made, recovery=recovery)
        if status is OK:
            assert not promised.deleted, "a deleted ledger took a block"
            promised.acknowledged.add(first_entry)
        else:
            assert (
                status in (Status.IO_ERROR, Status.READ_ONLY) or promised.fence_tried or promised.burial_tried
            )

    async def _fence(self, node: Node, ledger_id: int, promised: Promised) -> None:
        if self.rng.random() < 0.7:
            return
        promised.fence_tried = True
        answer = await node.read(ledger_id, 0, fence=True)
        promised.fenced |= answer.status in (OK, Status.NO_SUCH_ENTRY)

    async def _lac(self, node: Node, ledger_id: int, promised: Promised) -> None:
        lac = promised.next_entry - 1
        if (await node.write_lac(ledger_id, lac)).status is OK:
            promised.lac = max(promised.lac, lac)

    async def _bury(self, node: Node, ledger_id: int, promised: Promised) -> None:
        if self.rng.random() < 0.8:
            return
        promised.burial_tried = promised.fence_tried = True
        promised.deleted |= (await node.delete(ledger_id)).status is OK

    async def _flush(self, node: Node, ledger_id: int, promised: Promised) -> None:
        try:
            await node.storage.flush()
        except QuireError:
            pass

    async def _pause(self, node: Node, ledger_id: int, promised: Promised) -> None:
        for _ in range(30):
            await asyncio.sleep(0)

    # -- what must hold --------------------------------------------------------------------------------------
    async def _check(self, node: Node) -> None:
        assert node.id.incarnation == 1, f"seed {self.seed}: a crash was taken for damage"
        assert not node.storage.health.failure
        for ledger_id, promised in self.ledgers.items():
            await self._check_ledger(node, ledger_id, promised)

    async def _check_ledger(self, node: Node, ledger_id: int, promised: Promised) -> None:
        where = f"seed {self.seed}, ledger {ledger_id}"
        if promised.deleted:
            assert (await node.read(ledger_id, 0)).status is Status.DELETED, where
            return
        if promised.burial_tried and (await node.read(ledger_id, 0)).status is Status.DELETED:
            promised.deleted = True
            return
        for first_entry, made in promised.tried.items():
            found = await node.holds(ledger_id, first_entry)
            if first_entry in promised.acknowledged:
                assert found == made, f"{where}: acknowledged block {first_entry} is {found!r:.60}"
            else:
                absent = (Status.NO_SUCH_ENTRY, Status.NO_SUCH_LEDGER)
                assert found == made or found in absent, f"{where}: block {first_entry} is {found!r:.60}"
        answer = await node.read(ledger_id, 0)
        assert answer.lac >= promised.lac, where
        if promised.fenced:
            probe = one(ledger_id, promised.next_entry + 1000)
            assert await node.add(probe) == [Status.FENCED], where


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_what_was_answered_survives_a_power_cut_anywhere(seed: int) -> None:
    asyncio.run(History(seed).run(lives=6, steps=25))


@pytest.mark.parametrize("cut_after", range(40))
def test_a_power_cut_at_every_point_of_one_short_history(cut_after: int) -> None:
    async def history() -> None:
        machine = SimulatedNode(seed=cut_after)
        node = await Node.on(machine)
        machine.power.fail_after(cut_after)
        acknowledged = []
        for entry in range(12):
            if await node.add(one(1, entry, 3000)) == [OK]:
                acknowledged.append(entry)
            if entry == 6:
                try:
                    await node.storage.flush()
                except QuireError:
                    pass
        machine.crash()
        node = await Node.on(machine)
        assert node.id.incarnation == 1
        for entry in acknowledged:
            assert await node.holds(1, entry) == one(1, entry, 3000)

    asyncio.run(history())
