"""What the scrub calls damage, what it calls an orphan, and what it never touches."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from quire.identity.guard import accept_older
from quire.identity.place import Place
from quire.identity.stores import StoreRole
from quire.metadata import paths, topics
from quire.metadata.cluster import begin_cluster, change_cluster
from quire.metadata.records import ArchivePointer, ClusterRecord, SegmentRecord, TopicRecord, decode, encode
from quire.objects.store import ObjectInfo
from quire.runtime.clock import ManualClock
from quire.runtime.errors import CorruptionError, Unavailable, WrongCluster
from quire.testing.metadata import MemoryStore
from quire.testing.objects import MemoryObjectStore
from quire.tiering import segment_label
from quire.tiering.archive import (
    PREFIX,
    Archive,
    cluster_of,
    find_cluster,
    name_of,
    object_of,
    sidecar_of,
)
from quire.tiering.metadata_copy import MetadataCopies
from quire.tiering.scrub import GRACE_MS, ScrubReport, recorded_segments, scrub
from quire.tiering.segment_label import label_of
from quire.wire.block import Buffer

from .segments import TOPIC, Source, make_blocks, offload, record_of

PATH = paths.topic("t", "n", "x")
ANOTHER = "0a0b0c0d-0000-4000-8000-000000000007"


class World:
    """A cluster with a topic, and its archive."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryObjectStore(self.clock)
        self.metadata = MemoryStore()

    async def begin(self) -> None:
        cluster = (await begin_cluster(self.metadata, 1)).uuid
        self.archive = Archive(Place(self.metadata, self.store, cluster, StoreRole.ARCHIVE), self.clock)
        await self.archive.place.enter()
        await topics.create(self.metadata, PATH, TopicRecord(name=TOPIC))

    async def add(self, ledger_id: int, *, record: bool = True) -> ArchivePointer:
        blocks = make_blocks(10, 300, ledger_id=ledger_id)
        segment = record_of(blocks)
        pointer = await offload(self.archive, segment, Source(blocks))
        if record:
            await self.record(replace(segment, archive=pointer))
        return pointer

    async def record(self, segment: SegmentRecord) -> None:
        topic = await topics.load(self.metadata, PATH)
        await topics.roll(self.metadata, topic, None, segment)

    async def forget(self, ledger_id: int) -> None:
        node = await self.metadata.get(PATH)
        record = decode(TopicRecord, node.value, PATH)
        left = tuple(one for one in record.segments if one.ledger_id != ledger_id)
        await self.metadata.put(PATH, encode(replace(record, segments=left)), node.version)

    async def segments(self) -> list[ObjectInfo]:
        """Objects and sidecars."""
        return [info for info in await self.store.list(PREFIX) if info.name != label_of(object_of(info.name))]

    async def scrub(self, *, delete_orphans: bool = False) -> ScrubReport:
        return await scrub(self.archive, self.clock, delete_orphans=delete_orphans)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    await made.begin()
    yield made
    await made.archive.close()


async def test_all_is_well(world: World) -> None:
    pointer = await world.add(1)
    report = await world.scrub()
    assert (report.segments, report.bytes, report.objects) == (1, pointer.bytes, 1)
    assert (report.damaged, report.orphans, report.unreachable) == ([], [], 0)
    assert report.damaged == []


async def test_missing_and_damaged_objects_are_named(world: World) -> None:
    missing, rotten, _ = await world.add(1), await world.add(2), await world.add(3)
    await world.archive.delete([missing])
    world.store.faults.flip(rotten.name, 1000)
    report = await world.scrub()
    assert len(report.damaged) == 2
    assert "missing" in report.damaged[0]
    assert missing.name in report.damaged[0]
    assert f"segment 2 of {TOPIC}" in report.damaged[1]
    assert rotten.name in report.damaged[1]
    assert "offset" in report.damaged[1]


async def test_a_label_that_is_missing_or_another_objects_is_named(world: World) -> None:
    none, others, rotten, _ = [await world.add(number) for number in range(1, 5)]
    objects = world.store.faults.objects
    del objects[label_of(none.name)]
    objects[label_of(others.name)] = objects[label_of(rotten.name)]
    world.store.faults.flip(label_of(rotten.name), 40)
    report = await world.scrub()
    assert (report.damaged, report.orphans) == ([], [])
    assert [line.split(":")[0] for line in report.unlabelled] == [
        f"segment {number} of persistent" for number in (1, 2, 3)
    ]


async def test_a_store_that_does_not_answer_is_not_damage(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.add(1)

    async def verify(pointer: ArchivePointer, times: object = None) -> None:
        raise Unavailable("no")

    with monkeypatch.context() as patched:
        patched.setattr(world.archive, "verify", verify)
        report = await world.scrub()
    assert (report.damaged, report.unreachable) == ([], 1)
    world.store.faults.fail_next("list", Unavailable("no"))
    with pytest.raises(Unavailable):
        await world.scrub()


async def test_an_orphan_is_told_after_the_grace_and_deleted_only_when_asked(world: World) -> None:
    orphan = await world.add(1, record=False)
    kept = await world.add(2)
    world.store.faults.begin("segments/never-ended")
    assert (await world.scrub(delete_orphans=True)).orphans == []
    world.clock.advance_ms(GRACE_MS + 1)
    young = await world.add(3, record=False)
    report = await world.scrub()
    assert [line.split()[0] for line in report.orphans] == [orphan.name, label_of(orphan.name)]
    assert report.orphan_bytes == orphan.bytes + await world.store.size(label_of(orphan.name))
    assert (report.deleted, report.unfinished_uploads) == (0, 0)
    report = await world.scrub(delete_orphans=True)
    assert (report.deleted, report.unfinished_uploads) == (2, 1)
    assert {info.name for info in await world.segments()} == {kept.name, young.name}


async def put(world: World, name: str) -> None:
    async def parts() -> AsyncIterator[Buffer]:
        yield b"a sidecar"

    await world.store.put(name, parts())


async def test_a_sidecar_belongs_to_its_object(world: World) -> None:
    kept, orphan, trimmed = await world.add(1), await world.add(2, record=False), await world.add(3)
    for pointer in (kept, orphan, trimmed):
        await put(world, sidecar_of(pointer.name))
    await world.archive.store.delete(trimmed.name)  # as by a broker that dies in the middle of it
    await world.forget(3)
    world.clock.advance_ms(GRACE_MS + 1)
    report = await world.scrub()
    assert (report.objects, report.sidecars) == (2, 3)
    assert sorted(line.split()[0] for line in report.orphans) == sorted(
        [
            *(orphan.name, sidecar_of(orphan.name), label_of(orphan.name)),
            *(sidecar_of(trimmed.name), label_of(trimmed.name)),
        ]
    )
    report = await world.scrub(delete_orphans=True)
    assert report.deleted == 5
    assert {info.name for info in await world.segments()} == {kept.name, sidecar_of(kept.name)}


async def test_a_sidecar_goes_before_its_object(world: World) -> None:
    pointer = await world.add(1)
    await put(world, sidecar_of(pointer.name))
    world.store.faults.fail_next("delete", Unavailable("no"))
    with pytest.raises(Unavailable):
        await world.archive.delete([pointer])
    assert len(await world.segments()) == 2
    await world.archive.delete([pointer])
    assert await world.store.list(PREFIX) == []


async def test_an_object_that_is_recorded_just_before_its_deletion_stays(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, late = await world.add(1, record=False), await world.add(2, record=False)
    segment = replace(record_of(make_blocks(10, 300, ledger_id=2)), archive=late)
    world.clock.advance_ms(GRACE_MS + 1)
    delete = world.store.delete

    async def deleting(name: str) -> None:
        await delete(name)
        if name == first.name:
            await world.record(segment)

    monkeypatch.setattr(world.store, "delete", deleting)
    report = await world.scrub(delete_orphans=True)
    assert report.deleted == 2 and len(report.orphans) == 4
    assert await world.archive.is_there(late) and not await world.archive.is_there(first)


async def orphaned(world: World) -> ArchivePointer:
    """A segment that was archived days ago."""
    pointer = await world.add(1)
    world.clock.advance_ms(GRACE_MS + 1)
    return pointer


async def refused(world: World, match: str) -> None:
    before = {info.name for info in await world.store.list()}
    with pytest.raises(WrongCluster, match=match):
        await world.scrub(delete_orphans=True)
    assert {info.name for info in await world.store.list()} == before


async def test_a_metadata_store_that_came_back_empty_costs_no_object(world: World) -> None:
    await orphaned(world)
    world.archive.place.metadata = MemoryStore()
    await refused(world, "has no cluster")
    report = await world.scrub()
    assert len(report.orphans) == 2 and "has no cluster" in report.unproven


async def test_a_cluster_without_topics_costs_no_object(world: World) -> None:
    await orphaned(world)
    await world.metadata.delete(PATH)
    await refused(world, r"has no topic of cluster .*, but there are 1 objects of segments")


async def test_metadata_that_are_being_rebuilt_cost_no_object(world: World) -> None:
    await orphaned(world)
    await change_cluster(
        world.metadata, world.archive.place.cluster, lambda record: replace(record, rescue_begun_ms=5)
    )
    await refused(world, "being rebuilt")


async def test_an_older_backup_of_the_metadata_costs_no_object(world: World) -> None:
    await world.add(0)
    backup = MemoryStore()
    await backup.create(paths.CLUSTER, (await world.metadata.get(paths.CLUSTER)).value)
    await backup.create(PATH, (await world.metadata.get(PATH)).value)
    await orphaned(world)
    copies = MetadataCopies(world.archive.place, world.clock, lambda: True)
    await copies.look()
    world.archive.place.metadata = backup
    await refused(world, "older than copy 1 of them")
    assert await accept_older(backup, world.archive.place.cluster, world.store) == 1
    assert (await world.scrub(delete_orphans=True)).deleted == 2


async def test_a_metadata_store_that_empties_while_the_scrub_runs_costs_no_object(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.add(1, record=False)
    await world.add(2)
    world.clock.advance_ms(GRACE_MS + 1)
    confirm, calls = world.archive.place.confirm, 0

    async def emptied() -> ClusterRecord:
        nonlocal calls
        calls += 1
        if calls == 1:
            world.archive.place.metadata = MemoryStore()
        return await confirm()

    monkeypatch.setattr(world.archive.place, "confirm", emptied)
    before = len(await world.store.list())
    with pytest.raises(WrongCluster, match="has no cluster"):
        await world.scrub(delete_orphans=True)
    assert calls == 1 and len(await world.store.list()) == before


async def test_an_object_whose_label_names_another_cluster_is_not_deleted(world: World) -> None:
    pointer = await world.add(1, record=False)
    await world.add(2)
    name, objects = label_of(pointer.name), world.store.faults.objects
    label = replace(await segment_label.read(world.store, name), cluster=ANOTHER)
    older = f"{PREFIX}{1:016x}-{'0' * 32}"  # from before names had the cluster's id
    objects[label_of(older)] = segment_label.make(label), objects[name][1]
    objects[older] = objects[pointer.name]
    world.clock.advance_ms(GRACE_MS + 1)
    await refused(
        world, rf"cluster {world.archive.place.cluster}, but .*{older} belongs to cluster {ANOTHER}"
    )


async def test_objects_whose_names_have_another_cluster_are_evidence_and_no_orphans(world: World) -> None:
    """As when another cluster's archive was copied into this one, its labels lost on the way."""
    pointer = await world.add(1, record=False)
    await world.add(2)
    world.clock.advance_ms(GRACE_MS + 1)
    assert len((await world.scrub()).orphans) == 2
    theirs = name_of(7, ANOTHER, "0" * 16)
    objects = world.store.faults.objects
    objects[theirs] = objects[sidecar_of(theirs)] = objects[pointer.name]
    report = await world.scrub()
    assert report.foreign == [f"{theirs} belongs to cluster {ANOTHER}"]
    assert len(report.orphans) == 2 and not [line for line in report.orphans if theirs in line]
    assert ANOTHER in report.unproven and world.archive.place.cluster in report.unproven
    await refused(world, rf"{theirs} belongs to cluster {ANOTHER}")
    del objects[theirs], objects[sidecar_of(theirs)]
    assert (await world.scrub(delete_orphans=True)).deleted == 2


async def test_an_object_with_an_older_name_belongs_to_no_other_cluster(world: World) -> None:
    pointer = await world.add(1)
    assert cluster_of(pointer.name) == world.archive.place.cluster
    older = f"{PREFIX}{2:016x}-{'0' * 32}"
    assert (cluster_of(older), await find_cluster(world.store, older)) == ("", "")
    world.store.faults.objects[older] = world.store.faults.objects[pointer.name]
    world.clock.advance_ms(GRACE_MS + 1)
    report = await world.scrub(delete_orphans=True)
    assert report.foreign == [] and report.deleted == 1


async def test_other_peoples_objects_are_not_looked_at(world: World) -> None:

    async def parts() -> AsyncIterator[Buffer]:
        yield b"precious"

    await world.store.put("photos/cat", parts())
    world.clock.advance_ms(GRACE_MS + 1)
    report = await world.scrub(delete_orphans=True)
    assert (report.objects, report.deleted) == (0, 0)


async def test_records_are_those_of_every_topic_with_its_manifests() -> None:
    store = MemoryStore()
    pointer = ArchivePointer(store="memory://", name="segments/1", bytes=1, crc=1, archived_ms=1)
    expected = set()
    for tenant, name, count in (("a", "x/y", 150), ("b", "z", 2)):
        topic = await topics.create(store, paths.topic(tenant, "n", name), TopicRecord(name=name))
        for number in range(count):
            archived = number % 2 == 0
            segment = SegmentRecord(ledger_id=number, archive=pointer if archived else None)
            topic = await topics.roll(store, topic, None, segment)
            if archived:
                expected.add((name, number))
    found = await recorded_segments(store)
    assert {(one.topic, one.ledger_id) for one in found} == expected
    await store.delete((await topics.load(store, paths.topic("a", "n", "x/y"))).record.manifests[0])
    with pytest.raises(CorruptionError):
        await recorded_segments(store)
