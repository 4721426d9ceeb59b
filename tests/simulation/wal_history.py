"""Histories of ledgers on object storage: brokers, a bucket and the metadata store, without bookies.

Each broker writes ledgers into its own write-ahead log (WAL), reads and takes over the ledgers of other brokers, and
deletes ledgers. In addition to the faults of processes and metadata (`faults`), these events are possible:

    hand_over       a broker stops cleanly, and is restarted
    store_cut       broker, seconds: the broker's requests do not reach the store
    store_slow      broker, seconds: the broker's requests are slow, so that uploads are hedged
    store_trouble   seconds, probability that a request fails
    close           WAL, first closer, seconds until a second close begins
    flush           a broker writes the blocks in its memory as a set
    store_bars      broker, seconds: the store forbids all requests of the broker
    unmount         broker, seconds: an empty directory replaces the broker's store
    raise           broker: its next upload raises an unexpected exception
    scrub           a broker's operator deletes all objects that no record names, whatever their age
    coordinate      broker, seconds: the broker believes that it is the coordinator, which cleans up closed WALs
    rot, vanish     an object that a later one records as durable, and the number of others that vanish with it;
                    `wal_oracle` has the invariants for this case. Listings do not lag in these histories, because only
                    a listing may reveal that a whole window of objects is lost

At the end, faults stop, and all brokers are started. Every ledger is recovered by two brokers, and read to its end by
two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from random import Random
from typing import Any, Final, TypeVar
from unittest import mock
from uuid import UUID

from quire.identity.place import Place
from quire.identity.stores import StoreRole
from quire.ledger.directory import LocalDirectory
from quire.ledger.ledgers import Ledgers
from quire.ledger.repair import Repair
from quire.metadata import cluster as cluster_records
from quire.metadata import paths
from quire.metadata.cluster import begin_cluster
from quire.metadata.records import LedgerState, TopicRecord, WalRecord, WalState, encode
from quire.metadata.tree import PERSISTENT
from quire.runtime.errors import CorruptionError, NotFound, QuireError
from quire.testing.metadata import MemoryRows
from quire.wal import collector, flusher, object_journal, own_record, probe, scrub, set_objects, wal_object
from quire.wal.closing import close_wal
from quire.wal.closing_core import ClosingCore
from quire.wal.collector import Collector
from quire.wal.context import WalContext
from quire.wal.directory import WalDirectory
from quire.wal.object_journal import ObjectJournal
from quire.wal.own_record import all_records
from quire.wal.proof import RecordOutdated
from quire.wal.run_reader import run_cache
from quire.wal.settings import WalSettings
from quire.wal.storage import WalStorage
from quire.wal.wal_core import WalCore
from quire.wal.wal_object import Header
from quire.wire.bookie import AddDone, AddRequest, DeleteRequest, Request, SimpleResponse, Status

from .client import REPAIR, Base, Client, adverse_ledger_settings
from .ledger_history import STEP_S, LedgerCluster, LedgerHistory, adverse_limits
from .loop import Process
from .metadata import SimulatedStore, beside, persistent_rows
from .plan import Event, Plan
from .wal_objects import LATE_S, WalBucket, WalObjects
from .wal_oracle import UPLOADS_MAX, WalOracle
from .world import Violation, World

R = TypeVar("R")
CLOSE_S: Final = 20.0
BACK_S: Final = 60.0
DAY_MS: Final = 86_400_000


class WalBroker(Client):
    """Broker without topics, whose ledgers are in its WAL."""

    cluster: WalCluster
    wals: WalDirectory | None = None
    objects: WalObjects
    context: WalContext
    collector: Collector
    is_leaving = False

    def forget(self) -> None:
        super().forget()
        self.wals = None
        self.is_leaving = False

    async def make_base(self, process: Process, store: SimulatedStore) -> Base:
        """Create the parts of the process, as `quire broker --wal` does."""
        self.objects = WalObjects(self.cluster.bucket, process)
        settings = self.cluster.settings(self.rng)
        cluster = (await begin_cluster(store, 1)).uuid
        place = Place(store, self.objects, cluster, StoreRole.LOGS)
        context = self.context = WalContext(place, run_cache(10_000), self.clock, settings, self.host)
        wals = WalDirectory(context, LocalDirectory())
        await wals.start()
        rng = self.rng
        ledgers = Ledgers(
            store,
            wals,
            self.clock,
            rng,
            adverse_ledger_settings(rng, 1, 1),
            quarantine_s=rng.choice((0.0, 2.0)),
        )
        repair = Repair(store, wals, self.clock, rng, REPAIR, process.name)
        usurpers = self.cluster.coordinating
        self.collector = Collector(
            context, wals.own_wal, lambda: repair.is_coordinator or self.host in usurpers
        )
        self.collector.start()
        self.wals = wals
        return Base(store, wals, ledgers, repair, self.clock)

    # -- actions of events -------------------------------------------------------------------------------
    async def close(self, uuid: str) -> None:
        """Close a WAL, even if its writer is active."""
        store, oracle = self.store, self.cluster.oracle
        assert store is not None
        with suppress(TimeoutError, NotFound):
            async with asyncio.timeout(CLOSE_S):
                try:
                    record = await close_wal(self.context, uuid)
                except CorruptionError as damage:
                    self.world.saw("WAL damage told")
                    self.world.check(oracle.is_damaged, "damage", f"{self.host} closes {uuid}: {damage}")
                    return
                oracle.told_end(uuid, record.end_seq)

    async def close_by_copy(self, copy: MemoryRows, number: int) -> None:
        """Close a WAL by its record in an older copy of the metadata, which a second store serves. Accept any loss."""
        store, oracle, now = beside(copy), self.cluster.oracle, self.context
        place = Place(store, self.objects, now.place.cluster, StoreRole.LOGS)
        context = WalContext(place, run_cache(10_000), self.clock, now.settings, self.host)
        known = sorted(await all_records(store))
        if not known:
            return
        uuid = known[number % len(known)]
        before = oracle.wals[uuid].record
        with suppress(TimeoutError, QuireError):
            async with asyncio.timeout(CLOSE_S):
                try:
                    record = await close_wal(context, uuid, accept_loss=True)
                except RecordOutdated:
                    self.world.saw("outdated record refused")
                    return
            self.world.saw("WAL closed by a copy of its record")
            if (
                oracle.wals[uuid].record is before
            ):  # else the WAL's broker was not stopped, as operators must do first
                oracle.closed_by_copy(record)

    async def scrub(self) -> None:
        """Scrub as `quire wal scrub --delete` does, with a clock that is a day ahead."""
        if self.wals is not None:
            with suppress(QuireError):
                await scrub.strays(self.context, self.clock.now_ms() + DAY_MS, self.objects.delete)
                self.world.saw("scrubbed")

    async def flush(self) -> None:
        if self.wals is not None:
            with suppress(QuireError):
                await self.wals.flush()

    async def back(self) -> None:
        """Wait until the broker is up and is not stopping."""
        for _ in range(int(BACK_S / STEP_S)):
            if self.wals is not None and not self.is_leaving:
                return
            await asyncio.sleep(STEP_S)
        raise Violation("liveness", f"{self.host} is not there {BACK_S:g} s after the last fault")

    async def hand_over(self, restart_s: float) -> None:
        process, wals = self.process, self.wals
        if wals is None or self.is_leaving or self.cluster.is_healed:
            return
        self.is_leaving = True
        await self.collector.stop()
        await wals.stop()
        self.world.saw("handed over")
        if self.process is process:
            self.world.later(0.0, self.kill, restart_s)


TOPIC = paths.topic("t", "n", "t")


class WalCluster(LedgerCluster):
    oracle_kind = WalOracle
    client_kind = WalBroker
    oracle: WalOracle
    clients: Sequence[WalBroker]  # type: ignore[assignment]

    def __init__(self, plan: Plan, world: World) -> None:
        super().__init__(plan, world)
        self.bucket = WalBucket(world)
        self.coordinating: set[str] = set()
        self.copy: MemoryRows | None = None
        by_listing = ("rot", "vanish", "close_by_copy")
        self.bucket.lists_lag = not any(event.kind in by_listing for event in plan.events)
        self.oracle.watch(self.bucket)
        topic = encode(TopicRecord(name="t"))  # because a scrub deletes nothing in a cluster without topics
        self.metadata.make(lambda tree: tree.create(TOPIC, topic, PERSISTENT), "metadata: there is a topic")

    @staticmethod
    def settings(rng: Random) -> WalSettings:
        return WalSettings(
            wal="memory://",
            wal_batch_ms=rng.choice((10, 40)),
            wal_batch_bytes=rng.choice((500, 3_000, 100_000)),
            wal_uploads_max=rng.randint(1, UPLOADS_MAX),
            wal_memory_bytes=rng.choice((8_000, 60_000, 1 << 30)),
        )

    @property
    def is_healed(self) -> bool:
        return self._is_over

    def heal(self) -> None:
        super().heal()
        self.bucket.trouble = 0.0
        bucket = self.bucket
        for hosts in (
            bucket.cut,
            bucket.slow,
            bucket.barred,
            bucket.unmounted,
            bucket.raising,
            self.coordinating,
        ):
            hosts.clear()

    # -- events ------------------------------------------------------------------------------------------
    def _client(self, event: Event) -> WalBroker:
        return self.clients[event.target % len(self.clients)]

    def _store_cut(self, event: Event) -> None:
        host = self._client(event).host
        self._for(event.first, lambda: self.bucket.cut.add(host), lambda: self.bucket.cut.discard(host))

    def _store_slow(self, event: Event) -> None:
        host = self._client(event).host
        self._for(event.first, lambda: self.bucket.slow.add(host), lambda: self.bucket.slow.discard(host))

    def _store_trouble(self, event: Event) -> None:
        self.bucket.trouble = event.second
        self.world.later(event.first, lambda: setattr(self.bucket, "trouble", 0.0))

    def _store_bars(self, event: Event) -> None:
        host, self.oracle.is_barred = self._client(event).host, True
        self._for(event.first, lambda: self.bucket.barred.add(host), lambda: self.bucket.barred.discard(host))

    def _unmount(self, event: Event) -> None:
        host, self.oracle.is_barred = self._client(event).host, True
        self.world.saw("store unmounted")
        self._for(
            event.first, lambda: self.bucket.unmounted.add(host), lambda: self.bucket.unmounted.discard(host)
        )

    def _raise(self, event: Event) -> None:
        self.oracle.is_barred = True
        self.bucket.raising.add(self._client(event).host)

    def _scrub(self, event: Event) -> None:
        client = self._client(event)
        self._in(client, client.scrub())

    def _coordinate(self, event: Event) -> None:
        host = self._client(event).host
        self._for(event.first, lambda: self.coordinating.add(host), lambda: self.coordinating.discard(host))

    def _flush(self, event: Event) -> None:
        client = self._client(event)
        self._in(client, client.flush())

    def _hand_over(self, event: Event) -> None:
        client = self._client(event)
        self._in(client, client.hand_over(event.first))

    def _close(self, event: Event) -> None:
        """Close a WAL (target: 0 is the newest) by a broker (first), and by another one after `second` s."""
        known = [uuid for uuid, wal in self.oracle.wals.items() if wal.record is not None]
        if not known:
            return
        uuid = known[-1 - event.target % len(known)]
        one, other = (self.clients[(int(event.first) + n) % len(self.clients)] for n in (0, 1))
        self._in(one, one.close(uuid))
        self.world.later(event.second, lambda: self._in(other, other.close(uuid)))

    def _copy_metadata(self, event: Event) -> None:
        self.copy = persistent_rows(self.metadata)

    def _close_by_copy(self, event: Event) -> None:
        """Close a WAL (target) by a copy of the metadata, by a broker (first)."""
        client = self.clients[int(event.first) % len(self.clients)]
        if client.wals is not None and self.copy is not None:
            self._in(client, client.close_by_copy(self.copy, event.target))

    def _rot(self, event: Event) -> None:
        name = self._known_to_be_durable(event.target)
        if name is not None:
            content, _ = self.bucket.objects[name]
            offset = self.rng.choice(
                (self.rng.randrange(wal_object.HEADER_BYTES), self.rng.randrange(len(content)))
            )
            self.oracle.is_damaged = True
            self.bucket.flip(name, offset, 1 << self.rng.randrange(8))
            self.world.saw("object rotted")
            self.world.note(f"a bit of {name} at {offset} flips")

    def _vanish(self, event: Event) -> None:
        """Delete a durable data object (target) and `first` others, as a lifecycle rule of a bucket might."""
        for _ in range(1 + int(event.first)):
            name = self._known_to_be_durable(event.target)
            if name is None:
                return
            self.oracle.is_damaged = True
            self.bucket.objects.pop(name)
            self.world.saw("object vanished")
            self.world.note(f"{name} vanishes")

    def _known_to_be_durable(self, number: int) -> str | None:
        """Return a data object after its WAL's trim point that a later object records as durable; None without one."""
        found = []
        for uuid, wal in self.oracle.wals.items():
            record = wal.record
            if record is None or record.state is WalState.CLOSED:
                continue
            confirmed = max((self._confirmed(uuid, seq) for seq in wal.data), default=-1)
            names = (wal_object.data_name(uuid, seq) for seq in range(record.trim_seq, confirmed + 1))
            found += [name for name in names if name in self.bucket.objects]
        return sorted(found)[number % len(found)] if found else None

    def _confirmed(self, uuid: str, seq: int) -> int:
        name = wal_object.data_name(uuid, seq)
        try:
            return wal_object.read_header(self.bucket.objects[name][0], name).confirmed_seq
        except (KeyError, CorruptionError):
            return -1


@contextmanager
def adverse_wals(rng: Random, oracle: WalOracle) -> Iterator[None]:
    """Patch WALs: small limits and periods, names of WALs and objects from the seed, and reports to the oracle."""

    def unique() -> UUID:
        return UUID(int=rng.getrandbits(128), version=4)

    limits: Any = ClosingCore.__init__.__kwdefaults__
    add, ask, put, taken = WalStorage.add, WalStorage.ask, ObjectJournal._put, WalCore.taken
    ended = WalDirectory._ended

    def heard_add(self: WalStorage, request: AddRequest, done: AddDone) -> None:
        uuid = self.bookie_id.uuid.removeprefix("wal-")
        judge = oracle.add_arrives(self.bookie_id, request)
        blocks = list(request.blocks)

        def answered(statuses: Sequence[Status]) -> None:
            judge(statuses)
            oracle.answered(uuid, blocks, statuses)
            done(statuses)

        add(self, request, answered)

    async def heard_ask(self: WalStorage, request: Request[R]) -> R:
        answer = await ask(self, request)
        if (
            isinstance(request, DeleteRequest)
            and isinstance(answer, SimpleResponse)
            and answer.status is Status.OK
        ):
            oracle.wals[self.bookie_id.uuid.removeprefix("wal-")].buried.add(request.ledger_id)
        return answer

    def heard_ended(self: WalDirectory, own: WalStorage, why: QuireError) -> None:
        oracle.ended(own.bookie_id.uuid.removeprefix("wal-"), why)
        ended(self, own, why)

    async def heard_put(self: ObjectJournal, *args: Any) -> None:
        before = self.uploads_hedged
        try:
            await put(self, *args)
        finally:
            if self.uploads_hedged > before:
                oracle.world.saw("upload hedged")

    def heard_taken(self: WalCore, seq: int, ours: Header, found: Header) -> None:
        oracle.world.saw("name taken by the own object" if found == ours else "name taken by a fence")
        taken(self, seq, ours, found)

    with (
        adverse_limits(rng),
        _heard_collectors(oracle),
        _names_from(unique),
        mock.patch.object(flusher, "INTERVAL_S", rng.choice((1.0, 4.0, 300.0))),
        mock.patch.object(flusher, "LOOK_S", 0.7),
        mock.patch.object(collector, "LOOK_S", 0.7),
        mock.patch.object(collector, "GRACE_S", rng.choice((1.0, 5.0))),
        mock.patch.object(collector, "REMOVE_AFTER_S", 2 * max(LATE_S)),
        mock.patch.object(object_journal, "ENOUGH", 4),
        mock.patch.object(object_journal, "HEDGE_AT_FIRST_S", 0.1),
        mock.patch.object(probe, "RACES", rng.choice((1, 1, 1, 4))),
        mock.patch.dict(limits, {"look_behind": UPLOADS_MAX, "reads_max": rng.choice((2, 8))}),
        mock.patch.object(wal_object, "RUN_BYTES_MAX", rng.choice((300, 1 << 20))),
        mock.patch.object(WalStorage, "add", heard_add),
        mock.patch.object(WalStorage, "ask", heard_ask),
        mock.patch.object(WalDirectory, "_ended", heard_ended),
        mock.patch.object(ObjectJournal, "_put", heard_put),
        mock.patch.object(WalCore, "taken", heard_taken),
    ):
        yield


@contextmanager
def _heard_collectors(oracle: WalOracle) -> Iterator[None]:
    async def heard_close(context: WalContext, uuid: str) -> WalRecord:
        oracle.closed_by_collector(uuid)
        return await close_wal(context, uuid)

    with mock.patch.object(collector, "close_wal", heard_close):
        yield


@contextmanager
def _names_from(unique: Callable[[], UUID]) -> Iterator[None]:
    with ExitStack() as patches:
        for module in (own_record, set_objects, probe, cluster_records):
            patches.enter_context(mock.patch.object(module, "uuid4", unique))
        yield


class WalHistory(LedgerHistory):
    cluster_kind = WalCluster
    cluster: WalCluster
    oracle: WalOracle

    def limits(self) -> AbstractContextManager[None]:
        return adverse_wals(self.world.rng("limits"), self.oracle)

    async def run(self) -> None:
        self.cluster.start()
        await asyncio.sleep(self.plan.seconds)
        self.world.note("-- faults are over")
        self.cluster.heal()
        for client in self.cluster.clients:
            client.stops = True
        if self.oracle.is_damaged:
            await asyncio.sleep(
                20.0
            )  # losses must be reported; an operator decides which ledgers can be closed
            return
        for client in self.cluster.clients:
            await client.back()
        await self._settle()
        await asyncio.sleep(self.cluster.metadata.lag_s)
        await self._read_all()
        for uuid in self.oracle.wals:
            self.oracle.check_kept(uuid)

    def _unsettled(self) -> str:
        cluster, oracle = self.cluster, self.oracle
        writing = [each.host for each in cluster.clients if each.open or each.base is None]
        if writing:
            return f"{writing} still write or are not up"
        deleting = [each.host for each in cluster.clients if each.deleting]
        if deleting:
            return f"{deleting} still delete"
        unended = [each.ledger_id for each in oracle.records.values() if each.state is not LedgerState.CLOSED]
        return f"ledgers {unended} are not closed or not deleted" if unended else ""
