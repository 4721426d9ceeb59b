"""A log is closed, read, swept or given up only in its own store, by a record that is as new as the log."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from quire.identity.marker import put_marker
from quire.identity.place import Place
from quire.identity.stores import StoreRole
from quire.metadata import paths
from quire.metadata.cluster import begin_cluster
from quire.metadata.records import WalRecord, WalState, encode
from quire.metadata.store import MetadataStore
from quire.objects.filesystem import FilesystemBlockingStore
from quire.objects.store import ObjectStore
from quire.runtime.clock import ManualClock, SystemClock
from quire.runtime.errors import (
    ConfigurationError,
    CorruptionError,
    DiskError,
    QuireError,
    Unavailable,
    Unreadable,
    WrongCluster,
)
from quire.runtime.limits import MIB
from quire.testing.metadata import MemoryStore
from quire.testing.objects import MemoryBlockingStore
from quire.wal import closing, wal_object
from quire.wal.closing import close_wal
from quire.wal.closing_core import WalDamaged
from quire.wal.collector import GRACE_S, Collector
from quire.wal.context import WalContext
from quire.wal.foreign import ForeignWal
from quire.wal.own_record import OwnRecord
from quire.wal.proof import RecordOutdated
from quire.wal.run_reader import run_cache
from quire.wal.settings import WalSettings
from quire.wal.storage import WalStorage
from quire.wal.view import View
from quire.wire.bookie import Status
from tests.wal.blocks import made
from tests.wal.context import wal_context
from tests.wal.node import Asked, Node

WRITER_DIES = ConfigurationError("the writer is dead")


class Cluster:
    """A cluster whose object stores prove themselves, and one log in the first of them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.metadata: MetadataStore = MemoryStore()
        self.uuid = ""

    def context(self, store: ObjectStore, metadata: MetadataStore | None = None) -> WalContext:
        place = Place(metadata or self.metadata, store, self.uuid, StoreRole.LOGS)
        return WalContext(place, run_cache(MIB), SystemClock(), WalSettings(wal_batch_ms=10), "broker")

    def directory(self, name: str) -> ObjectStore:
        return ObjectStore(FilesystemBlockingStore(self.root / name), threads=0)

    async def begin(self, *blocks: bytes) -> Asked:
        """Acknowledge `blocks`, then let the writer die without closing the log."""
        self.uuid = (await begin_cluster(self.metadata, 1)).uuid
        context = self.context(self.directory("bucket"))
        await context.place.enter()
        wal = WalStorage(context, await OwnRecord.begin(context), lambda _, why: None)
        wal.start()
        asked = Asked(wal, wal.bookie_id)
        for block in blocks:
            await asked.add(block)
        wal.journal.end(WRITER_DIES)
        await wal.stop()
        return asked

    async def record(self, asked: Asked) -> WalRecord:
        return (await OwnRecord.read(self.metadata, asked.bookie_id.uuid.removeprefix("wal-"))).record


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


@pytest.mark.parametrize(
    "wrong", ["another prefix", "another store of the cluster", "another cluster", "a missing mount"]
)
async def test_a_takeover_with_the_wrong_store_closes_nothing_and_denies_nothing(
    cluster: Cluster, wrong: str
) -> None:
    wrote = await cluster.begin(*(made(1, entry) for entry in range(5)))
    uuid = wrote.bookie_id.uuid.removeprefix("wal-")
    if wrong == "another cluster":
        (cluster.root / "bucket" / "quire-cluster").rename(cluster.root / "marker")
        other = Cluster(cluster.root)
        other.uuid = (await begin_cluster(other.metadata, 1)).uuid
        await other.context(cluster.directory("bucket")).place.enter()
    elif wrong == "a missing mount":
        (cluster.root / "bucket").rename(cluster.root / "unmounted")
    store = cluster.directory("bucket" if wrong in ("another cluster", "a missing mount") else "buckets")
    if wrong == "another store of the cluster":
        await put_marker(store, cluster.uuid)
    context = cluster.context(store)
    port = Asked(ForeignWal(context, uuid), wrote.bookie_id)
    assert (await port.ask(1, 0, fence=True)).status is Status.UNREACHABLE
    assert (await port.ask(1, 9)).status is Status.UNREACHABLE
    for accept_loss in (False, True):
        with pytest.raises(WrongCluster):
            await close_wal(context, uuid, accept_loss=accept_loss)
    record = await cluster.record(wrote)
    assert (record.state, record.end_seq) == (WalState.OPEN, -1)
    assert not list(cluster.root.glob("buckets/wal/*")), "no fence"
    if wrong == "a missing mount":
        (cluster.root / "unmounted").rename(cluster.root / "bucket")
    elif wrong == "another cluster":
        (cluster.root / "marker").rename(cluster.root / "bucket" / "quire-cluster")
    right = Asked(ForeignWal(cluster.context(cluster.directory("bucket")), uuid), wrote.bookie_id)
    assert (await right.ask(1, 0, fence=True)).lac == 4
    assert await right.read(1, 0) == [made(1, entry) for entry in range(5)]


async def test_a_mount_that_goes_while_a_log_is_closed_is_not_its_end(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrote = await cluster.begin(*(made(1, entry) for entry in range(3)))
    uuid = wrote.bookie_id.uuid.removeprefix("wal-")
    context = cluster.context(cluster.directory("bucket"))
    claimed, prove, is_missed = (
        closing.ClosingCore._probe,
        FilesystemBlockingStore._prove_root,
        asyncio.Event(),
    )

    def unmount(core: closing.ClosingCore) -> None:
        (cluster.root / "bucket").rename(cluster.root / "unmounted")
        (cluster.root / "bucket").mkdir()
        claimed(core)

    def miss(store: FilesystemBlockingStore) -> None:
        try:
            prove(store)
        except Unavailable:
            is_missed.set()
            raise

    monkeypatch.setattr(closing.ClosingCore, "_probe", unmount)
    monkeypatch.setattr(FilesystemBlockingStore, "_prove_root", miss)
    closes = asyncio.ensure_future(close_wal(context, uuid))
    await is_missed.wait()
    assert not closes.done() and (await cluster.record(wrote)).state is WalState.CLOSING
    monkeypatch.setattr(closing.ClosingCore, "_probe", claimed)
    (cluster.root / "bucket").rename(cluster.root / "below")
    (cluster.root / "unmounted").rename(cluster.root / "bucket")
    await closes
    assert await Asked(ForeignWal(context, uuid), wrote.bookie_id).read(1, 0) == [
        made(1, n) for n in range(3)
    ]
    assert not list((cluster.root / "below").iterdir()), "nothing lies below the mount"


async def test_a_block_is_not_acknowledged_into_an_empty_directory(cluster: Cluster) -> None:
    """A mount that goes under a process that runs leaves a directory that would take what is published."""
    cluster.uuid = (await begin_cluster(cluster.metadata, 1)).uuid
    context = cluster.context(cluster.directory("bucket"))
    await context.place.enter()
    wal = WalStorage(context, await OwnRecord.begin(context), lambda _, why: None)
    wal.start()
    asked = Asked(wal, wal.bookie_id)
    await asked.add(made(1, 0))
    (cluster.root / "bucket").rename(cluster.root / "unmounted")
    (cluster.root / "bucket").mkdir()
    adds = asyncio.ensure_future(asked.add(made(1, 1)))
    await asyncio.wait([adds], timeout=0.2)
    assert not adds.done()
    assert not list((cluster.root / "bucket").rglob("*"))
    (cluster.root / "bucket").rename(cluster.root / "below")
    (cluster.root / "unmounted").rename(cluster.root / "bucket")
    await adds
    wal.journal.end(WRITER_DIES)
    await wal.stop()
    again = Asked(ForeignWal(context, wal.bookie_id.uuid.removeprefix("wal-")), wal.bookie_id)
    assert await again.read(1, 0) == [made(1, 0), made(1, 1)]


@pytest.mark.parametrize("lost", ["empty", "another cluster's"])
async def test_metadata_that_are_not_the_cluster_s_prove_no_absence(cluster: Cluster, lost: str) -> None:
    """A log without a record is taken for one of which nothing is left; not so where all records are missing."""
    wrote = await cluster.begin()
    metadata = MemoryStore()
    if lost != "empty":
        await begin_cluster(metadata, 1)
    context = cluster.context(cluster.directory("bucket"), metadata)
    port = Asked(ForeignWal(context, wrote.bookie_id.uuid.removeprefix("wal-")), wrote.bookie_id)
    assert (await port.ask(1, 0, fence=True)).status is Status.UNREACHABLE


async def put_back(node: Node, copied: WalRecord) -> None:
    """Put the record back as a copy of the metadata store has it."""
    path = paths.wal(node.uuid)
    await node.metadata.put(path, encode(copied), (await node.metadata.get(path)).version)


@pytest.mark.parametrize("has_set", [False, True])
@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("accept_loss", [False, True])
async def test_nothing_is_closed_or_deleted_by_a_record_that_is_older_than_the_log(
    has_set: bool, goes_on: bool, accept_loss: bool
) -> None:
    node = await Node().start()
    await node.add(made(1, 0), made(2, 0))
    if has_set:
        await node.wal.flush()
        await node.add(made(1, 1))
    copied = await node.record()
    await node.add(made(1, 2) if has_set else made(1, 1))
    await node.wal.flush()
    await node.wal.trash.emptied()
    newest = await node.record()
    if goes_on:
        await node.add(made(3, 0))
    node.wal.journal.end(WRITER_DIES)
    await node.wal.stop()
    await put_back(node, copied)
    before = node.objects()
    port = Asked(ForeignWal(node.context, node.uuid), node.bookie_id)
    assert (await port.ask(1, 0, fence=True)).status is Status.UNREACHABLE
    with pytest.raises(RecordOutdated, match=r"older than its objects.*quire rescue metadata"):
        await close_wal(node.context, node.uuid, accept_loss=accept_loss)
    clock = ManualClock()
    collector = Collector(wal_context(node.store, node.metadata, clock=clock), lambda: None, lambda: True)
    for _ in range(3):
        await collector.look()
        clock.advance_ms(int(GRACE_S * 1000))
    assert node.objects() == before and (await node.record()).state is WalState.CLOSING
    await put_back(node, newest)
    again = Asked(ForeignWal(node.context, node.uuid), node.bookie_id)
    assert (await again.ask(1, 0, fence=True)).status is Status.OK
    assert await again.read(2, 0) == [made(2, 0)]


async def test_a_set_that_was_written_and_not_recorded_before_a_death_stops_no_close() -> None:
    """Its data objects are there, so the record is as new as the log."""
    node = await Node().start()
    await node.add(made(1, 0), made(2, 0))
    blocks = [(1, [made(1, 0)]), (2, [made(2, 0)])]
    written = wal_object.encode_set(node.uuid, 0, 0, 1, blocks)
    await node.store.put_whole(wal_object.set_name(node.uuid, 1, "x"), written)
    node.wal.journal.end(WRITER_DIES)
    await node.wal.stop()
    port = Asked(ForeignWal(node.context, node.uuid), node.bookie_id)
    assert (await port.ask(1, 0, fence=True)).lac == 0
    await Collector(node.context, lambda: None, lambda: True).look()
    assert node.objects() == ["1", "set", "sets"], "the fence, and what the collector wrote"
    assert await Asked(ForeignWal(node.context, node.uuid), node.bookie_id).read(2, 0) == [made(2, 0)]


async def test_a_catalogue_that_is_missing_is_damage_and_not_an_end() -> None:
    node = await Node().start()
    await node.add(made(1, 0), made(2, 0))
    await node.wal.flush()
    await node.wal.trash.emptied()
    node.wal.journal.end(WRITER_DIES)
    await node.wal.stop()
    del node.store.faults.objects[(await node.record()).catalogue]
    with pytest.raises(WalDamaged, match=r"catalogue .* is missing"):
        await close_wal(node.context, node.uuid)
    port = Asked(ForeignWal(node.context, node.uuid), node.bookie_id)
    assert (await port.ask(1, 0, fence=True)).status is Status.IO_ERROR
    assert (await node.record()).state is not WalState.CLOSED
    assert (await close_wal(node.context, node.uuid, accept_loss=True)).state is WalState.CLOSED


async def test_a_missing_object_of_a_closed_log_is_damage() -> None:
    node = await Node().start()
    for entry in range(3):
        await node.add(made(1, entry))
    await close_wal(node.context, node.uuid)
    await node.wal.stop()
    del node.store.faults.objects[wal_object.data_name(node.uuid, 1)]
    with pytest.raises(CorruptionError, match="missing although the record of its WAL names it"):
        await View(node.context, node.uuid).refresh()
    port = Asked(ForeignWal(node.context, node.uuid), node.bookie_id)
    assert (await port.ask(1, 0)).status is Status.IO_ERROR


@pytest.mark.parametrize(
    "error",
    [ConfigurationError("AccessDenied"), DiskError("Too many open files"), Unreadable("Input/output error")],
)
async def test_what_a_store_forbids_or_cannot_read_for_a_moment_is_not_lost(
    error: QuireError, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await Node().start()
    await node.add(made(1, 0), made(2, 0))
    await node.wal.flush()

    def fail(call: str) -> None:
        if call == "get_range":
            raise error

    node.store.faults.before = fail
    assert (await node.ask(1, 0)).status is Status.UNREACHABLE
    node.store.faults.before = lambda call: None
    assert await node.read(1, 0) == [made(1, 0)]
    await node.wal.stop()


async def test_an_object_that_cannot_be_read_stops_a_close_until_its_loss_is_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quire.wal.patience.FIRST_WAIT_S", 0.001)
    node = await Node().start()
    for entry in range(5):
        await node.add(made(1, entry))
    node.wal.journal.end(WRITER_DIES)
    await node.wal.stop()
    bad, real = wal_object.data_name(node.uuid, 2), MemoryBlockingStore.get_range

    def get_range(self: MemoryBlockingStore, name: str, offset: int, length: int) -> object:
        if name == bad:
            raise Unreadable(f"cannot read {name}: Input/output error")
        return real(self, name, offset, length)

    monkeypatch.setattr(MemoryBlockingStore, "get_range", get_range)
    with pytest.raises(Unreadable, match=bad):
        await asyncio.wait_for(close_wal(node.context, node.uuid), 10)
    port = Asked(ForeignWal(node.context, node.uuid), node.bookie_id)
    assert (await port.ask(1, 0, fence=True)).status is Status.UNREACHABLE, "nothing is lost yet"
    record = await asyncio.wait_for(close_wal(node.context, node.uuid, accept_loss=True), 10)
    assert (record.state, record.end_seq, record.lost) == (WalState.CLOSED, 5, (2,))
