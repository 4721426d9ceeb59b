"""What the scrub calls damage, what it calls an orphan, and what it never touches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest

from quire.metadata import paths, topics
from quire.metadata.records import ArchivePointer, SegmentRecord, TopicRecord
from quire.runtime.clock import ManualClock
from quire.runtime.errors import CorruptionError, Unavailable
from quire.testing.metadata import MemoryStore
from quire.testing.objects import MemoryObjectStore
from quire.tiering.archive import Archive, sidecar_of
from quire.tiering.scrub import GRACE_MS, Recorded, recorded_segments, scrub
from quire.tiering.segment_label import label_of
from quire.wire.block import Buffer

from .segments import TOPIC, Source, but_labels, make_blocks, record_of


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryObjectStore(self.clock)
        self.archive = Archive(self.store, self.clock)
        self.recorded: list[Recorded] = []

    async def records(self) -> Sequence[Recorded]:
        return list(self.recorded)

    async def add(self, ledger_id: int, *, record: bool = True) -> ArchivePointer:
        blocks = make_blocks(10, 300, ledger_id=ledger_id)
        pointer = await self.archive.offload(TOPIC, record_of(blocks), Source(blocks))
        if record:
            self.recorded.append(Recorded(TOPIC, ledger_id, pointer))
        return pointer


async def test_all_is_well() -> None:
    world = World()
    pointer = await world.add(1)
    report = await scrub(world.archive, world.records, world.clock)
    assert (report.segments, report.bytes, report.objects) == (1, pointer.bytes, 1)
    assert (report.damaged, report.orphans, report.unreachable) == ([], [], 0)
    assert report.as_dict()["damaged"] == []


async def test_missing_and_damaged_objects_are_named() -> None:
    world = World()
    missing, rotten, _ = await world.add(1), await world.add(2), await world.add(3)
    await world.archive.delete(missing)
    world.store.faults.flip(rotten.name, 1000)
    report = await scrub(world.archive, world.records, world.clock)
    assert len(report.damaged) == 2
    assert "missing" in report.damaged[0]
    assert missing.name in report.damaged[0]
    assert f"segment 2 of {TOPIC}" in report.damaged[1]
    assert rotten.name in report.damaged[1]
    assert "offset" in report.damaged[1]


async def test_a_label_that_is_missing_or_another_objects_is_named() -> None:
    world = World()
    none, others, rotten, _ = [await world.add(number) for number in range(1, 5)]
    objects = world.store.faults.objects
    del objects[label_of(none.name)]
    objects[label_of(others.name)] = objects[label_of(rotten.name)]
    world.store.faults.flip(label_of(rotten.name), 40)
    report = await scrub(world.archive, world.records, world.clock)
    assert (report.damaged, report.orphans) == ([], [])
    assert [line.split(":")[0] for line in report.unlabelled] == [
        f"segment {number} of persistent" for number in (1, 2, 3)
    ]


async def test_a_store_that_does_not_answer_is_not_damage() -> None:
    world = World()
    await world.add(1)
    world.store.faults.fail_next("get_range", Unavailable("no"))
    report = await scrub(world.archive, world.records, world.clock)
    assert (report.damaged, report.unreachable) == ([], 1)
    world.store.faults.fail_next("list", Unavailable("no"))
    with pytest.raises(Unavailable):
        await scrub(world.archive, world.records, world.clock)


async def test_an_orphan_is_told_after_the_grace_and_deleted_only_when_asked() -> None:
    world = World()
    orphan = await world.add(1, record=False)
    kept = await world.add(2)
    world.store.faults.begin("segments/never-ended")
    assert (await scrub(world.archive, world.records, world.clock, delete_orphans=True)).orphans == []
    world.clock.advance_ms(GRACE_MS + 1)
    young = await world.add(3, record=False)
    report = await scrub(world.archive, world.records, world.clock)
    assert [line.split()[0] for line in report.orphans] == [orphan.name, label_of(orphan.name)]
    assert report.orphan_bytes == orphan.bytes + await world.store.size(label_of(orphan.name))
    assert (report.deleted, report.unfinished_uploads) == (0, 0)
    report = await scrub(world.archive, world.records, world.clock, delete_orphans=True)
    assert (report.deleted, report.unfinished_uploads) == (2, 1)
    assert {info.name for info in await but_labels(world.store)} == {kept.name, young.name}


async def put(world: World, name: str) -> None:
    async def parts() -> AsyncIterator[Buffer]:
        yield b"a sidecar"

    await world.store.put(name, parts())


async def test_a_sidecar_belongs_to_its_object() -> None:
    world = World()
    kept, orphan, trimmed = await world.add(1), await world.add(2, record=False), await world.add(3)
    for pointer in (kept, orphan, trimmed):
        await put(world, sidecar_of(pointer.name))
    await world.archive.store.delete(trimmed.name)  # as by a broker that dies in the middle of it
    world.recorded.pop()
    world.clock.advance_ms(GRACE_MS + 1)
    report = await scrub(world.archive, world.records, world.clock)
    assert (report.objects, report.sidecars) == (2, 3)
    assert sorted(line.split()[0] for line in report.orphans) == sorted(
        [
            *(orphan.name, sidecar_of(orphan.name), label_of(orphan.name)),
            *(sidecar_of(trimmed.name), label_of(trimmed.name)),
        ]
    )
    report = await scrub(world.archive, world.records, world.clock, delete_orphans=True)
    assert report.deleted == 5
    assert {info.name for info in await but_labels(world.store)} == {kept.name, sidecar_of(kept.name)}


async def test_a_sidecar_goes_before_its_object() -> None:
    world = World()
    pointer = await world.add(1)
    await put(world, sidecar_of(pointer.name))
    world.store.faults.fail_next("delete", Unavailable("no"))
    with pytest.raises(Unavailable):
        await world.archive.delete(pointer)
    assert len(await but_labels(world.store)) == 2
    await world.archive.delete(pointer)
    assert await world.store.list() == []


async def test_an_object_recorded_while_the_scrub_runs_is_not_deleted() -> None:
    world = World()
    late = await world.add(1, record=False)
    world.clock.advance_ms(GRACE_MS + 1)
    reads = 0

    async def records() -> Sequence[Recorded]:
        nonlocal reads
        reads += 1
        return [] if reads == 1 else [Recorded(TOPIC, 1, late)]

    report = await scrub(world.archive, records, world.clock, delete_orphans=True)
    assert report.deleted == 0
    assert await world.archive.is_there(late)


async def test_other_peoples_objects_are_not_looked_at() -> None:
    world = World()

    async def parts() -> AsyncIterator[Buffer]:
        yield b"precious"

    await world.store.put("photos/cat", parts())
    world.clock.advance_ms(GRACE_MS + 1)
    report = await scrub(world.archive, world.records, world.clock, delete_orphans=True)
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
