"""Histories of ledgers whose metadata store is emptied for a while, restored from an older copy, or lost.

    copy_metadata    the tree is copied
    put_back         all processes are stopped, and the copy replaces the tree; then bookies are started, one of them
                     late, and then clients
    emptied          clients are stopped, and the tree is empty for some seconds while bookies run; then it is restored
    lost             all processes are stopped, and the tree is lost; an operator rebuilds it with `quire rescue
                     metadata`. First: 1 if the command gets the copy, as a backup that is served by another store

A copy lacks bookies that were registered later. If they have ledgers, they refuse to start, with an error that names
the command. The operator, who has not started clients yet, then continues as after `lost`, with the copy. Nothing was
written meanwhile, so after a rescue these conditions hold:

- Each ledger that had a confirmed entry, and was not being deleted, exists and does not end earlier (`rescued`).
- No id under which a bookie has blocks is assigned again (`ids`).

After `put_back`, ids of ledgers that the copy does not know may be assigned again, if no bookie reports that they were
used. So the oracle keeps the blocks of these former ledgers separately: bookies may have them, but readers of a new
ledger must not get them. These conditions hold:

- A ledger in the copy ends after all its confirmed entries, even those confirmed after the copy was taken (`end`).
- A reader of a new ledger gets only the ledger's own blocks (`same bytes`).
- No bookie considers itself retired, and all bookies work again when the right tree is restored (`liveness`).

The only fault of bookies after `put_back` is that one is down for a while. An ack quorum of the bookies with the newest
label is up, as operations.md requires.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from quire.ledger import ids
from quire.ledger.directory import ClusterDirectory
from quire.metadata import paths
from quire.metadata.cluster import find_cluster
from quire.metadata.records import ClusterRecord, LedgerRecord, LedgerState, decode, encode
from quire.metadata.tree import Tree
from quire.rescue.begin import begin, look_at_restored
from quire.rescue.facts import CopyFacts
from quire.rescue.rescue import Report, Rescue
from quire.runtime.errors import QuireError, Unavailable
from quire.testing.metadata import MemoryRows
from quire.wire.block import Buffer

from .client import Base, Client, is_open, make_base
from .host import SimulatedHost
from .ledger_history import LedgerCluster, LedgerHistory, adverse_limits
from .loop import Process
from .metadata import MetadataServer, SimulatedStore, beside, persistent_rows
from .oracle import MAY_FOLLOW, Oracle
from .plan import Event
from .world import SimulatedClock, World

STARTED_S = 3.0
"""Time between the start of the bookies and the start of the clients."""

LATE_S = 6.0
"""Time between the start of the other bookies and the start of the late one."""


CLUSTER = "5f0e0b3c-8d0a-4a6e-9a55-0f5f7f1f7a11"
URL = "the store"
RETRY_S = 0.5


class RestoredOracle(Oracle):
    may_follow = MAY_FOLLOW | {
        LedgerState.IN_RECOVERY: {*MAY_FOLLOW[LedgerState.IN_RECOVERY], LedgerState.IN_RECOVERY}
    }

    def __init__(self, world: World, metadata: MetadataServer) -> None:
        super().__init__(world, metadata)
        self.used: set[int] = set()
        """Ids that a rescue must recognize as used."""
        self._doomed: set[int] = set()
        self._ends_before: dict[int, int] = {}

    def lost(self) -> None:
        """Record that the metadata store is empty, and that a rescue begins."""
        deleting = {each for each, record in self.records.items() if record.state is LedgerState.DELETING}
        self._doomed = deleting | self.deleted
        self.records, self.ends, self._ends_before = {}, {}, self.ends

    def rescued(self) -> None:
        for ledger_id, confirmed in sorted(self.confirmed.items()):
            last = max(confirmed, self._ends_before.get(ledger_id, -1))
            if ledger_id in self._doomed or last < 0:
                continue
            record = self.records.get(ledger_id)
            self.world.check(
                record is not None and record.state is LedgerState.CLOSED and record.last_entry >= last,
                "rescued",
                f"ledger {ledger_id} had entry {last} before the rescue, and now: {record}",
            )
            self.world.saw("ledger rescued")
        self.used = {each for known in self.promises.values() for each in (*known.blocks, *known.tombstones)}
        self._forget_all_but(self.records)

    def _metadata_changed(self, path: str) -> None:
        before = self.records.keys() | set()
        super()._metadata_changed(path)
        again = (self.records.keys() - before) & self.used
        self.world.check(not again, "ids", f"ids {again} are given again after the rescue")

    def _forget_all_but(self, records: Collection[int]) -> None:
        for ledger_id in sorted((self.blocks.keys() | self.ends.keys()) - set(records)):
            self.former.setdefault(ledger_id, []).append(self.blocks.pop(ledger_id, {}))
            self.confirmed.pop(ledger_id, None)
            self.ends.pop(ledger_id, None)
            self.world.saw("ledger forgotten by the metadata")

    def put_back(self, records: dict[int, LedgerRecord]) -> None:
        """Record that the metadata store contains `records` and no other ledgers."""
        self._forget_all_but(records)
        for ledger_id, record in records.items():
            if record.state is not LedgerState.CLOSED and self.ends.pop(ledger_id, None) is not None:
                self.world.saw("ledger open again")
            self.deleted.discard(ledger_id)
        self.records = records

    def _check_bytes(self, ledger_id: int, first: int, block: Buffer, where: str) -> None:
        if not any(life.get(first) == block for life in self.former.get(ledger_id, ())):
            super()._check_bytes(ledger_id, first, block, where)

    def saw_entry(self, ledger_id: int, first: int, block: Buffer, reader: str) -> None:
        Oracle._check_bytes(self, ledger_id, first, block, reader)
        super().saw_entry(ledger_id, first, block, reader)


class RestoredClient(Client):
    purpose = "state:public/default/00000000_ffffffff"
    cluster: RestoredCluster

    async def make_base(self, process: Process, store: SimulatedStore) -> Base:
        """Create the client's parts. Raise if the operator has not started clients, or no cluster is initialized."""
        if self.cluster.operator.is_busy:
            raise Unavailable("the operator starts it later")
        await find_cluster(store, URL)
        return await super().make_base(process, store)


class Operator(SimulatedHost):
    """Operator who checks bookies that do not start, and runs `quire rescue metadata` until it succeeds."""

    cluster: RestoredCluster

    def __init__(self, cluster: RestoredCluster) -> None:
        super().__init__(cluster, "operator")
        self.clock = SimulatedClock(self.world.loop)
        self.is_busy = False
        self.why = ""
        self._copy: MemoryRows | None = None
        self._looks = False
        self._is_lost = False
        """True after a rescue has begun, so that an interrupted command is run again."""
        self._is_interrupted = False

    def look_at_bookies(self, copy: MemoryRows) -> None:
        """Start clients if all bookies accept the restored copy; else run a rescue with it."""
        self._begin(copy, looks=True)

    def rescue(self, copy: MemoryRows | None) -> None:
        self._begin(copy, looks=False)

    def _begin(self, copy: MemoryRows | None, *, looks: bool) -> None:
        self._copy, self._looks, self.is_busy = copy, looks, True
        self.kill(0.0)
        self.start_if_down()

    async def work(self, process: Process) -> None:
        if not self.is_busy:
            return
        if self._looks and not self._is_lost and await self._accept():
            self.cluster.accept_copy()
        else:
            await self._rescue(process)
        self.is_busy = False

    async def _accept(self) -> bool:
        """Return whether all bookies start with the copy. A bookie that the copy lacks refuses to start."""
        machines = self.cluster.machines
        while not all(machine.is_up for machine in machines):
            if any("an older copy was restored" in machine.why_down for machine in machines):
                self.world.saw("older copy refused by a bookie")
                return False
            await asyncio.sleep(RETRY_S)
        return True

    async def _rescue(self, process: Process) -> None:
        if not self._is_lost:
            self._is_lost = True
            self.cluster.lose_metadata()
        self.store = SimulatedStore(self.cluster.metadata, process)
        while self.why != "done":
            try:
                self.why = await self._command(process, self.store)
            except QuireError as error:
                self.why = "done" if "a rescue must not overwrite" in str(error) else str(error)
            self.world.note(f"operator: {self.why}")
            await asyncio.sleep(RETRY_S)
        self.cluster.oracle.rescued()
        self.world.saw("metadata rescued")

    async def _command(self, process: Process, store: SimulatedStore) -> str:
        """Run the command once. Return "done", or the reason to run it again."""
        report, copy = Report(), CopyFacts()
        if self._copy is not None:
            copy = await look_at_restored(beside(self._copy), URL, self.clock.now_ms(), report)
        await begin(store, URL, CLUSTER, self.clock.now_ms())
        if not all(machine.is_up for machine in self.cluster.machines):
            return "not all bookies are up"
        if not self._is_interrupted and self.rng.random() < 0.5:
            self.world.later(self.rng.uniform(0.0, 0.3), self._interrupt)
        base = await make_base(self.cluster, store, self.clock, self.rng, process.name)
        assert isinstance(base.directory, ClusterDirectory)
        try:
            await Rescue(store, base.directory, base.ledgers, self.clock, lambda *_: None).run(
                copy, None, report
            )
        finally:
            await base.ledgers.stop()
            await base.directory.stop()
        return "done" if report.is_done else f"lost: {report.lost}"

    def _interrupt(self) -> None:
        self._is_interrupted = True
        if self.is_busy and self.why != "done":
            self.world.saw("rescue interrupted")
            self.kill(RETRY_S)


class RestoredCluster(LedgerCluster):
    oracle_kind = RestoredOracle
    client_kind = RestoredClient
    oracle: RestoredOracle

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        record = encode(ClusterRecord(uuid=CLUSTER))
        self.metadata.make(lambda tree: tree.create(paths.CLUSTER, record), "a cluster is begun")
        for machine in self.machines:
            machine.cluster = CLUSTER
        self.operator = Operator(self)
        self._copy: MemoryRows | None = None
        self._aside: MemoryRows | None = None
        """Copy of the right tree while the server's tree is empty."""

    def _copy_metadata(self, event: Event) -> None:
        if self._aside is None:
            self._copy = persistent_rows(self.metadata)

    def _put_back(self, event: Event) -> None:
        """Restore the copy of the metadata (target: the bookie that starts late)."""
        if self._copy is None:
            return
        lacks = set(self.oracle.hosts.values()) - set(Tree(self._copy).children(paths.BOOKIES))
        is_late = not lacks and self.plan.ack_quorum > 1
        self._stop_everything(event.target % len(self.machines) if is_late else -1)
        replace_tree(self.metadata, self._copy.copy())
        if lacks:
            self.operator.look_at_bookies(self._copy)
        else:
            self.accept_copy()

    def accept_copy(self) -> None:
        """Let the oracle judge by the restored copy from now on."""
        self.oracle.put_back(ledgers_of(self.metadata))
        self.world.saw("metadata put back")

    def _lost(self, event: Event) -> None:
        """Lose the metadata (first: 1 if a backup exists)."""
        self.operator.rescue(self._copy if event.first else None)

    def lose_metadata(self) -> None:
        self._stop_everything()
        replace_tree(self.metadata, MemoryRows())
        self.oracle.lost()
        self.world.saw("metadata lost")

    def _stop_everything(self, late: int = -1) -> None:
        """Stop all processes and restart them; bookie number `late` is started later than the others."""
        self._mend_network()
        self._stop_clients(STARTED_S)
        stores = [machine.store for machine in self.machines if machine.store is not None]
        for machine in self.machines:
            machine.kill(LATE_S if machine.number == late else 0.2)
            if machine.is_leaving:
                machine.is_leaving = False  # only the bookie's cookie still records the drain
                self.world.saw("drain interrupted")
        for store in stores:
            store.is_expired = True  # so that none of its pending changes is applied later
        self._aside = None

    def _read(self, event: Event) -> None:
        """Read a ledger, but not an open one whose id was used before: a LAC may belong to the former ledger."""
        ledger_id = self._some_ledger(event.target)
        if ledger_id not in self.oracle.former or not is_open(self.oracle.records[ledger_id]):
            super()._read(event)

    def _emptied(self, event: Event) -> None:
        """Empty the metadata store for some seconds (first)."""
        self._stop_clients(event.first + STARTED_S)
        self._aside = persistent_rows(self.metadata)
        self._use(MemoryRows())
        self.world.saw("metadata emptied")
        self.world.later(event.first, self._fill)

    def _fill(self) -> None:
        if self._aside is not None:
            self._use(self._aside)
            self._aside = None

    def _mend_network(self) -> None:
        for source, target in sorted(self.network.cuts):
            self.network.heal(source, target)
        self.network.slowness.clear()

    def _stop_clients(self, seconds: float) -> None:
        for client in self.clients:
            if client.store is not None:
                client.store.is_expired = True
            client.kill(seconds)

    def _use(self, rows: MemoryRows) -> None:
        """Replace the server's tree. All sessions end, and see the new tree when they reconnect."""
        replace_tree(self.metadata, rows)
        for store in self.metadata.stores:
            store.see_another_tree()


def replace_tree(metadata: MetadataServer, rows: MemoryRows) -> None:
    metadata.rows, metadata.tree = rows, Tree(rows)


def ledgers_of(metadata: MetadataServer) -> dict[int, LedgerRecord]:
    found = {}
    for path, row in metadata.rows._rows.items():
        if path.startswith(f"{paths.LEDGERS}/") and path.count("/") == 4:
            record = decode(LedgerRecord, row.value, path)
            found[record.ledger_id] = record
    return found


class RestoredHistory(LedgerHistory):
    cluster_kind = RestoredCluster
    cluster: RestoredCluster

    def _unsettled(self) -> str:
        operator = self.cluster.operator
        return f"the operator waits: {operator.why}" if operator.is_busy else super()._unsettled()

    @contextmanager
    def limits(self) -> Iterator[None]:
        """Patch limits. In half of the histories no bookie lists its ledgers in time, so that ids are reused."""
        rng = self.world.rng("limits")
        with adverse_limits(rng), mock.patch.object(ids, "ASK_S", rng.choice((0.0, ids.ASK_S))):
            yield
