"""The rebuilding over bookies in memory: interrupted, with a bookie missing, with too many missing."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from quire.identity.marker import NAME as MARKER
from quire.identity.marker import put_marker
from quire.ledger.ledgers import Ledgers
from quire.metadata import paths, topics
from quire.metadata.cluster import find_cluster
from quire.metadata.records import (
    ClusterRecord,
    LedgerRecord,
    LedgerState,
    SegmentRecord,
    TopicRecord,
    encode,
)
from quire.rescue.begin import begin, greatest_copy, look_at_restored, look_for_copy, marked_cluster
from quire.rescue.facts import CopyFacts
from quire.rescue.ledger_plan import Told
from quire.rescue.rescue import Report, Rescue
from quire.runtime.errors import ConfigurationError, CorruptionError, Unavailable, WrongCluster
from quire.testing.cluster import QUICK, Listener, MemoryCluster, expected, read_all, turns_until, write
from quire.testing.metadata import MemoryStore
from quire.testing.objects import MemoryObjectStore
from quire.tiering import metadata_copy

URL = "zk://somewhere/quire"
FIRST, OTHER = "5f0e0b3c-8d0a-4a6e-9a55-0f5f7f1f7a11", "6f0e0b3c-8d0a-4a6e-9a55-0f5f7f1f7a11"
PATH = paths.topic("t", "n", "x")


class World:
    """A cluster with an open ledger of `persistent://t/n/x`, and an empty metadata store."""

    def __init__(self, cluster: MemoryCluster, ledger_id: int, last: int) -> None:
        self.cluster = cluster
        self.ledger_id = ledger_id
        self.last = last
        self.store = MemoryStore()
        self.ledgers = Ledgers(self.store, cluster.directory, cluster.clock, Random(1), QUICK, quarantine_s=0)

    async def rescue(
        self, *, copy: CopyFacts | None = None, accept_loss: bool = False, is_dry: bool = False
    ) -> Report:
        report = Report()
        await begin(self.store, URL, "c", 5)
        rescue = Rescue(
            self.store,
            self.cluster.directory,
            self.ledgers,
            self.cluster.clock,
            lambda *_: None,
            accept_loss=accept_loss,
            is_dry=is_dry,
        )
        await rescue.run(copy or CopyFacts(), None, report)
        return report


async def begun(bookies: int = 3, *, changes: bool = False) -> World:
    """With `changes` its ensemble changed in the middle, and the bookie that was left is away for good."""
    cluster = MemoryCluster(bookies)
    writer = await cluster.ledgers.create("topic:persistent://t/n/x", listener := Listener(), generation=7)
    last = write(writer, blocks=5, count=3)
    await listener.until(last)
    if changes:
        gone = cluster.ensemble(writer)[0]
        gone.unreachable = True
        write(writer, blocks=1)
        await turns_until(lambda: len(writer.core.fragments) == 2)
        cluster.directory.leave(gone.bookie.uuid)
        last = write(writer, blocks=4)
        await listener.until(last)
    writer.abandon()
    return World(cluster, writer.ledger_id, last)


async def test_an_open_ledger_is_recovered_and_read_whole() -> None:
    world = await begun()
    dry = await world.rescue(is_dry=True)
    assert not dry.is_done and dry.messages == world.last + 1 and not await world.store.children(paths.TOPICS)
    assert not any(bookie.ledgers[world.ledger_id].is_fenced for bookie in world.cluster.bookies)
    report = await world.rescue()
    assert report.is_done and report.recovered == 1 and not report.lost
    (segment,) = (await topics.load(world.store, PATH)).segments
    assert (segment.ledger_id, segment.messages, segment.is_sealed) == (world.ledger_id, world.last + 1, True)
    assert (await topics.load(world.store, PATH)).record.generation == 7
    assert await read_all(world.ledgers, world.ledger_id) == expected(world.last)
    assert await world.ledgers.reserve(-1) > world.ledger_id, "its id is not given once more"
    await find_cluster(world.store, URL)
    with pytest.raises(ConfigurationError, match="a rescue must not overwrite"):
        await world.rescue()


async def test_a_run_that_was_interrupted_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await begun()

    async def fail(*_: object) -> None:
        raise Unavailable("the metadata store does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(Rescue, "_write_bookies", fail)
        with pytest.raises(Unavailable):
            await world.rescue()
    with pytest.raises(ConfigurationError, match="are being rebuilt"):
        await find_cluster(world.store, URL)
    assert (await world.ledgers.info(world.ledger_id)).state is LedgerState.CLOSED
    report = await world.rescue()
    assert report.is_done
    assert len((await topics.load(world.store, PATH)).segments) == 1


async def test_a_changed_ensemble_is_known_though_one_of_its_bookies_is_missing() -> None:
    world = await begun(4, changes=True)
    report = await world.rescue()
    assert report.is_done and len(report.missing) == 1 and report.messages == world.last + 1
    assert len((await world.ledgers.info(world.ledger_id)).fragments) == 2
    assert await read_all(world.ledgers, world.ledger_id) == expected(world.last)
    assert report.missing[0].rpartition(":")[0] in await world.store.children(paths.BOOKIES), (
        "it may come back"
    )


async def test_nothing_is_closed_while_too_many_are_missing() -> None:
    world = await begun()
    for bookie in world.cluster.bookies[1:]:
        world.cluster.directory.leave(bookie.bookie.uuid)
    report = await world.rescue()
    assert not report.is_done and "as many as the ack quorum" in report.lost[0]
    assert not world.cluster.bookies[0].ledgers[world.ledger_id].is_fenced
    accepted = await world.rescue(accept_loss=True)
    assert accepted.is_done and any("cannot be recovered" in lost for lost in accepted.lost)
    assert accepted.topics == 0


@pytest.mark.parametrize("version", [0, 1, 7])
async def test_later_labels_of_a_rescued_ledger_are_newer_than_those_from_before(version: int) -> None:
    world = await begun()
    rescue = Rescue(world.store, world.cluster.directory, world.ledgers, world.cluster.clock, lambda *_: None)
    told = Told(LedgerRecord(ledger_id=5), version)
    for _ in range(2):  # an interrupted run is repeated
        await rescue._write_ledger(told)
        assert (await world.store.get(paths.ledger(5))).version == version + 1


async def restored(store: MemoryStore) -> CopyFacts:
    """Return what a backup of the metadata store knows that was put back beside the new one."""
    return await look_at_restored(store, "zk://restored/quire", 7, Report())


async def test_an_older_metadata_store_serves_as_the_copy_and_labels_know_what_came_after_it() -> None:
    """Bookies restarted one after the other since the backup, so the open ledger's last blocks lie elsewhere."""
    cluster = MemoryCluster(5)
    await cluster.store.create(paths.CLUSTER, encode(ClusterRecord(uuid="c", copies=7)))
    writer = await cluster.ledgers.create("topic:persistent://t/n/x", listener := Listener(), generation=7)
    last = write(writer, blocks=5, count=3)
    await listener.until(last)
    record = TopicRecord(
        name="persistent://t/n/x", generation=7, segments=(SegmentRecord(ledger_id=writer.ledger_id),)
    )
    await topics.create(cluster.store, PATH, replace(record, properties={"a": "b"}))
    copy = await restored(cluster.store)
    for number in range(3):
        away = cluster.ensemble(writer)[number]
        away.unreachable = True
        write(writer, blocks=1)
        await turns_until(lambda: len(writer.core.fragments) == 2 + number)  # noqa: B023
        away.unreachable = False
        last = write(writer, blocks=4)
        await listener.until(last)
    writer.abandon()
    world = World(cluster, writer.ledger_id, last)
    report = await world.rescue(copy=copy)
    assert report.is_done and not report.lost and report.messages == last + 1
    assert await read_all(world.ledgers, world.ledger_id) == expected(last)
    assert (await topics.load(world.store, PATH)).record.properties == {"a": "b"}
    assert await greatest_copy(None, "c", copy) == 7


async def test_a_store_under_rescue_is_no_copy() -> None:
    store = MemoryStore()
    await begin(store, URL, "c", 5)
    with pytest.raises(ConfigurationError, match="are being rebuilt"):
        await restored(store)
    with pytest.raises(ConfigurationError, match="there is no cluster"):
        await restored(MemoryStore())


async def marked(cluster: str) -> MemoryObjectStore:
    objects = MemoryObjectStore()
    await put_marker(objects, cluster)
    return objects


async def test_the_marker_tells_which_cluster_it_was() -> None:
    first, other, unmarked = await marked(FIRST), await marked(OTHER), MemoryObjectStore()
    await unmarked.put_whole("segments/5", [b"x"])
    assert await marked_cluster([first, unmarked], "") == FIRST == await marked_cluster([first], FIRST)
    assert await marked_cluster([unmarked], FIRST) == FIRST and await marked_cluster([], "") == ""
    with pytest.raises(WrongCluster, match=f"belongs to cluster {FIRST}, but .* names cluster {OTHER}"):
        await marked_cluster([first], OTHER)
    with pytest.raises(WrongCluster, match=f"belongs to cluster {OTHER}, but .* belongs to cluster {FIRST}"):
        await marked_cluster([first, other], "")
    with pytest.raises(ConfigurationError, match="is empty"):
        await marked_cluster([first, MemoryObjectStore()], "")


async def test_a_damaged_marker_is_deleted_by_the_operator_for_the_metadata_are_lost() -> None:
    objects = await marked(FIRST)
    await objects.put_whole("segments/5", [b"x"])
    objects.faults.flip(MARKER, 20)
    with pytest.raises(CorruptionError, match=rf"delete the object {MARKER} .* with --cluster") as raised:
        await marked_cluster([objects], FIRST)
    assert "adopt" not in str(raised.value)
    await objects.delete(MARKER)
    assert await marked_cluster([objects], FIRST) == FIRST


async def test_an_operator_chooses_between_copies_from_before_and_after_an_older_backup() -> None:
    store, objects = MemoryStore(), await marked(FIRST)
    await store.create(paths.CLUSTER, encode(ClusterRecord(uuid=FIRST)))
    backup = MemoryStore()
    await backup.create(paths.CLUSTER, encode(ClusterRecord(uuid=FIRST)))
    for number, tree in enumerate((store, backup)):
        record = await metadata_copy.number_copy(tree, objects, FIRST)
        await metadata_copy.put(objects, await metadata_copy.take(tree, 10 + number), record)
    with pytest.raises(
        ConfigurationError, match="copy 1 was taken before that: choose one of the two with --copy"
    ):
        await look_for_copy(objects, FIRST, Report())
    for number in (1, 2):
        assert (await look_for_copy(objects, FIRST, Report(), number)).taken_ms == 9 + number
    with pytest.raises(ConfigurationError, match="no copy 3"):
        await look_for_copy(objects, FIRST, Report(), 3)
    whole = MemoryStore()
    await begin(whole, URL, FIRST, 5, await greatest_copy(objects, FIRST, CopyFacts()))
    assert (await metadata_copy.number_copy(whole, objects, FIRST)).outdated_by == 0
