"""Histories of ledgers: bookies, and processes that write, read, recover, repair and delete ledgers.

At the end, in bounded virtual time, faults stop, all processes are started, and these conditions must hold:

- Every ledger was recovered by two processes concurrently, with the same result.
- No record names a lost bookie, and every copy is complete (repair is finished).
- Two readers read every remaining ledger to its end, and find all confirmed entries.
- Every block of a closed ledger is on every bookie that the ledger's record names for it.
- If several bookies lost all data, an operator has given up exactly the lost entries (`oracle`, "given up"). A ledger
  then ends before them, or readers get blank blocks in their place.
- Every ledger that a writer wrote on a bookie has a record, or a tombstone. (A failed recovery or repair may leave
  copies that no record names.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from operator import methodcaller
from random import Random
from typing import Any, Final
from unittest import mock

from quire.ledger import holes, narrow, outbox, recovery, repair_copy, states
from quire.metadata import paths
from quire.metadata.records import (
    BookieIntent,
    BookieRecord,
    LedgerRecord,
    LedgerState,
    UnderreplicatedRecord,
    decode,
)
from quire.wire import ledger_ids
from quire.wire.bookie import ReadRequest

from .client import Client, is_open
from .faults import Cluster
from .plan import Event, Plan
from .world import Violation, World

SETTLE_S: Final = 150.0
STEP_S: Final = 0.5
FILL_S: Final = 100.0
REPORT_S: Final = 10.0
"""Time after which repair has received the reports of damage."""


@contextmanager
def adverse_limits(rng: Random) -> Iterator[None]:
    """Patch constant limits of production with small values, so that short histories reach them."""
    with (
        mock.patch.object(outbox, "ADD_REQUEST_BYTES_MAX", 8_192),
        mock.patch.object(recovery, "_READ_BYTES", rng.choice((1, 3_000, 100_000))),
        mock.patch.object(repair_copy, "_READ_BYTES", 2_000),
        mock.patch.object(narrow, "INTERVAL_S", rng.choice((0.3, 3.0))),
    ):
        yield


class LedgerCluster(Cluster):
    """Cluster with clients that use ledgers."""

    client_kind = Client

    def __init__(self, plan: Plan, world: World) -> None:
        super().__init__(plan, world)
        self.clients = [self.client_kind(self, number) for number in range(plan.clients)]
        self.others = list(self.clients)
        self.is_ruined = False
        """True after several bookies lost all data, so that repair may be impossible."""

    def start(self) -> None:
        super().start()
        for client in self.clients:
            client.start_if_down()

    # -- events of this kind of history ----------------------------------------------------------------
    def _some_ledger(self, number: int) -> int | None:
        """Return one of the newest ledgers; 0 means the newest."""
        known = sorted(self.oracle.records, reverse=True)
        return known[number % min(len(known), 6)] if known else None

    def _in(self, client: Client, work: Any) -> bool:
        """Start `work` in a client's process. Return False if the client is down."""
        if client.process is None or client.base is None:
            work.close()
            return False
        client.process.start(work)
        return True

    def _recover(self, event: Event) -> None:
        """Recover a ledger (target) by several clients concurrently (first: their number)."""
        ledger_id = self._some_ledger(event.target)
        if ledger_id is None:
            return
        record = self.oracle.records[ledger_id]
        racing = int(event.first)
        if is_open(record) and racing > 1:
            self.world.saw("recoveries race")
        for number in range(racing):
            client = self.clients[number % len(self.clients)]
            self._in(client, client.recover(ledger_id, 2))

    def _read(self, event: Event) -> None:
        ledger_id = self._some_ledger(event.target)
        if ledger_id is not None:
            client = self.clients[int(event.first) % len(self.clients)]
            self._in(client, client.read_if_possible(ledger_id))

    def _delete(self, event: Event) -> None:
        ledger_id = self._some_ledger(event.target + 2)
        if ledger_id is not None:
            client = self.clients[int(event.first) % len(self.clients)]
            if self._in(client, client.delete(ledger_id, 2)):
                client.deleting.add(ledger_id)

    def _ruin(self, event: Event) -> None:
        """Wipe `first` bookies from number `target` on. New bookies start at their addresses after `second` s."""
        self.is_ruined = True
        for number in range(int(event.first)):
            self.machines[(event.target + number) % len(self.machines)].wipe(event.second)

    def _accept_loss(self, event: Event) -> None:
        """Give up the lost bookies, and accept the loss of a ledger (target), by a client (first)."""
        ledger_id = self._some_ledger(event.target)
        if ledger_id is not None:
            client = self.clients[int(event.first) % len(self.clients)]
            self._in(client, client.accept_loss(ledger_id, self.gone_bookies()))

    def gone_bookies(self) -> list[str]:
        """Return the UUIDs of registered bookies whose disks are lost."""
        up = set(self.oracle.hosts.values())
        return [uuid for uuid in self.metadata.tree.children(paths.BOOKIES) if uuid not in up]

    def _decommission(self, event: Event) -> None:
        """Drain a bookie, if there are enough other bookies for its copies."""
        machine = self.machine(event)
        spare = len(self.machines) - self.plan.write_quorum
        if machine.storage is not None and sum(each.is_leaving for each in self.machines) < spare:
            machine.is_leaving = True
            client = self.clients[event.target % len(self.clients)]
            self._in(client, client.decommission(machine.storage.bookie_id.uuid))


class LedgerHistory:
    cluster_kind: type[LedgerCluster] = LedgerCluster

    def __init__(self, plan: Plan, world: World) -> None:
        self.plan, self.world = plan, world
        self.cluster = self.cluster_kind(plan, world)
        self.oracle = self.cluster.oracle

    def limits(self) -> AbstractContextManager[None]:
        """Patch limits while `run` runs; see `cluster_history`."""
        return adverse_limits(self.world.rng("limits"))

    async def run(self) -> None:
        self.cluster.start()
        await asyncio.sleep(self.plan.seconds)
        self.world.note("-- faults are over")
        self.cluster.heal()
        for client in self.cluster.clients:
            client.stops = True
        await self._settle()
        # Wait for lagging followers, whose older records may say that a ledger is open.
        await asyncio.sleep(self.cluster.metadata.lag_s)
        await self._read_all()
        for ledger_id in sorted(self.oracle.records):
            await self._held_by_all(ledger_id)  # finds undetected damage, as a scrub does
        await asyncio.sleep(REPORT_S)
        await self._settle()
        await self._fill_up()
        self._look_at_disks()

    # -- liveness --------------------------------------------------------------------------------------
    async def _settle(self) -> None:
        begin = self.world.loop.time()
        judges: dict[int, tuple[asyncio.Task[Any], ...]] = {}
        while (why := self._unsettled()) and self.world.loop.time() < begin + SETTLE_S:
            self._give_up_what_is_gone()
            for ledger_id, record in list(self.oracle.records.items()):
                busy = any(not task.done() for task in judges.get(ledger_id, ()))
                if busy or any(ledger_id in each.open for each in self.cluster.clients):
                    continue
                if self._is_short(record):
                    judges[ledger_id] = tuple(self._begin(methodcaller("accept_loss", ledger_id, ())))
                elif is_open(record):
                    judges[ledger_id] = tuple(self._begin(methodcaller("recover", ledger_id, 1)))
            await asyncio.sleep(STEP_S)
        if why:
            raise Violation("liveness", f"{SETTLE_S:g} s after the last fault, {why}")
        self.world.note("all is settled")

    def _give_up_what_is_gone(self) -> None:
        """Give up or drain lost bookies, as an operator does, because deleted ledgers wait for them.

        Losses must be accepted first, because a bookie that drains is not known to be lost. A response may come late,
        and the second request replaces the first, so the bookie's record is checked.
        """
        is_short = any(map(self._is_short, self.oracle.records.values()))
        wish = BookieIntent.GIVE_UP if is_short else BookieIntent.DRAIN
        tree = self.cluster.metadata.tree
        for uuid in self.cluster.gone_bookies():
            path = paths.bookie(uuid)
            if decode(BookieRecord, tree.get(path).value, path).intent is not wish:
                self._begin(methodcaller("give_up_bookie" if is_short else "decommission", uuid))

    def _is_short(self, record: LedgerRecord) -> bool:
        """Return whether a ledger's record names lost bookies, so that repair may be impossible."""
        if not self.cluster.is_ruined or record.state is LedgerState.DELETING:
            return False
        gone = self.cluster.gone_bookies()
        return any(bookie.uuid in gone for each in record.fragments for bookie in states.ensemble(each))

    def _begin(self, work: Callable[[Client], Any]) -> list[asyncio.Task[Any]]:
        ready = [
            client
            for client in self.cluster.clients
            if client.process is not None and client.base is not None
        ]
        return [client.process.start(work(client)) for client in ready[:2]]  # type: ignore[union-attr]

    def _unsettled(self) -> str:
        """Return a description of the first task that is not finished yet; "" if there is none."""
        cluster, oracle = self.cluster, self.oracle
        down = [machine.host for machine in cluster.machines if not machine.is_up]
        if down:
            return f"{down} are not up"
        writing = [each.host for each in cluster.clients if each.open or each.base is None]
        if writing:
            return f"{writing} still write or are not up"
        deleting = [each.host for each in cluster.clients if each.deleting]
        if deleting:
            return f"{deleting} still delete"
        unended = [each.ledger_id for each in oracle.records.values() if each.state is not LedgerState.CLOSED]
        if unended:
            return f"ledgers {unended} are not closed or not deleted"
        return unrepaired(self.cluster)

    # -- checks at the end -----------------------------------------------------------------------------
    async def _read_all(self) -> None:
        one, other = self.cluster.clients[0], self.cluster.clients[-1]
        for ledger_id, record in sorted(self.oracle.records.items()):
            if record.state is not LedgerState.CLOSED:
                continue
            for client, bytes_max in ((one, 100_000), (other, 4_000)):
                assert client.process is not None
                seen = await client.process.start(client.read_in_the_end(ledger_id, bytes_max))
                self.world.check(
                    seen == record.last_entry + 1,
                    "readable",
                    f"{seen} entries of ledger {ledger_id} are read, it ends with {record.last_entry}",
                )

    async def _fill_up(self) -> None:
        """Wait until each bookie that a record names has each block. This must happen in bounded time.

        Copies on an ack quorum of bookies suffice only temporarily.
        """
        end = self.world.loop.time() + FILL_S
        for ledger_id in sorted(self.oracle.records):
            while hole := await self._hole(ledger_id):
                self.world.saw("hole found in the end")
                if self.world.loop.time() > end:
                    raise Violation("copies", f"{FILL_S:g} s later, {hole}")
                await asyncio.sleep(STEP_S)

    async def _hole(self, ledger_id: int) -> str:
        """Return a description of a block that one of its bookies lacks; "" if there is none."""
        record = self.oracle.records[ledger_id]
        held = await self._held_by_all(ledger_id)
        for first in sorted(self.oracle.blocks.get(ledger_id, {})):
            bookies = record.fragments[states.fragment_index(record, first)].bookies
            lacking = [name for name in bookies if first not in held.get(name, ())]
            if first <= record.last_entry and lacking and holes.hole_at(record, first) is None:
                return f"block {first} of ledger {ledger_id} should be on {bookies} and is not on {lacking}"
        return ""

    async def _held_by_all(self, ledger_id: int) -> dict[str, set[int]]:
        record = self.oracle.records[ledger_id]
        return {
            str(each.storage.bookie_id): await self._held(each, record)
            for each in self.cluster.machines
            if each.storage is not None
        }

    async def _held(self, machine: Any, record: LedgerRecord) -> set[int]:
        """Return the first entries of a ledger's blocks that a bookie returns."""
        storage, found = machine.storage, set()
        for first in sorted(self.oracle.blocks.get(record.ledger_id, {})):
            if first not in found and first <= record.last_entry:
                request = ReadRequest(storage.bookie_id, record.ledger_id, first, 1 << 20)
                reading = machine.process.start(storage.ask(request))
                await asyncio.wait((reading,), timeout=STEP_S)
                if not reading.done():
                    return set()  # the bookie died meanwhile, by an earlier fault with a delay
                found.update(self.oracle.firsts(record.ledger_id, reading.result().blocks))
        return found

    def _look_at_disks(self) -> None:
        """Check that bookies have no blocks of ledgers without a record.

        Exceptions are a retired bookie, which starts again empty, and blocks in limbo whose tombstone rotted (rule 20).
        """
        members = self.cluster.metadata.tree.children(paths.BOOKIES)
        for machine in self.cluster.machines:
            assert machine.storage is not None
            uuid = machine.storage.bookie_id.uuid
            known = self.oracle.promises[uuid]
            for ledger_id in machine.storage.ledger_ids() if uuid in members else ():
                state = machine.storage.cache.ledgers[ledger_id]
                labelled = ledger_ids.labelled(ledger_id) if ledger_ids.is_label(ledger_id) else ledger_id
                listed = labelled in self.oracle.records or state.tombstone_version is not None
                listed |= labelled in self.oracle.former
                forgot = known.may_have_lost and state.is_limbo
                self.world.check(
                    listed or forgot or ledger_id not in known.written,
                    "orphans",
                    f"{machine.host} holds ledger {ledger_id}, which has no record and no tombstone",
                )


def unrepaired(cluster: Cluster) -> str:
    """Return a description of unfinished repair: ledgers with lost bookies, with too few copies, or with damage."""
    up = {str(machine.storage.bookie_id): machine for machine in cluster.machines if machine.storage}
    for record in cluster.oracle.records.values():
        for index, fragment in enumerate(record.fragments if record.state is LedgerState.CLOSED else ()):
            if record.last_entry < 0 or states.last_entry_of(record, index) < fragment.first_entry:
                continue
            gone = [name for name in fragment.bookies if name not in up]
            if gone:
                return f"ledger {record.ledger_id} still names {gone}, which are gone"
            if record.ledger_id in cluster.oracle.former:
                continue  # another ledger with this id may be on the bookies that could take a copy
            if len(fragment.bookies) < min(record.write_quorum, len(up)) and set(up) - set(fragment.bookies):
                return f"ledger {record.ledger_id} is narrow: {fragment.bookies}"
    tree = cluster.metadata.tree
    for folder in paths.underreplicated_folders():
        for name in tree.children(folder):
            path = f"{folder}/{name}"
            queued = decode(UnderreplicatedRecord, tree.get(path).value, path)
            if queued.damage:
                return f"damage is not mended: {queued}"
    return ""
