"""Copies of the metadata in the archive, and labels beside its segments: taken, read, and refused when damaged."""

from __future__ import annotations

import tracemalloc
from uuid import uuid4

import pytest

from quire.identity.copies import FOLDER, copies_of, list_copies, number_of
from quire.identity.guard import accept_older, confirm_absence
from quire.identity.marker import NAME, encode_marker
from quire.identity.place import Place
from quire.identity.stores import StoreRole
from quire.metadata import paths
from quire.metadata.cluster import begin_cluster, read_cluster
from quire.metadata.records import Fragment, LedgerRecord, Policies, TopicRecord, encode
from quire.metadata.store import ANY_VERSION
from quire.rescue.facts import take_apart
from quire.runtime.clock import ManualClock
from quire.runtime.errors import (
    AlreadyExists,
    ConfigurationError,
    CorruptionError,
    Unavailable,
    WrongCluster,
)
from quire.testing.metadata import MemoryStore
from quire.testing.objects import MemoryObjectStore
from quire.tiering import metadata_copy, segment_label
from quire.tiering.metadata_copy import MetadataCopies
from quire.tiering.segment_label import SegmentLabel

from .segments import TOPIC, make_blocks, record_of


async def filled() -> MemoryStore:
    store = MemoryStore()
    await begin_cluster(store, 5)
    await store.create(paths.topic("t", "n", "x"), encode(TopicRecord(name=TOPIC, generation=7)))
    await store.create(paths.policies("t", "n", "x"), encode(Policies(message_ttl_ms=9)))
    await store.create(paths.ledger(0x1234), encode(LedgerRecord(ledger_id=0x1234)))
    await store.put(paths.ledger(0x1234), encode(LedgerRecord(ledger_id=0x1234, last_entry=3)), 0)
    await store.create(paths.bookie_available("b"), b"{}", ephemeral=True)
    return store


async def test_it_has_every_record_and_its_version() -> None:
    taken = await metadata_copy.take(await filled(), 1_000)
    copy = metadata_copy.decode(taken.sealed, "it")
    assert (copy.cluster, copy.taken_ms, len(copy.nodes)) == (taken.cluster, 1_000, taken.records)
    found = take_apart(copy)
    assert found.topics[TOPIC].record.generation == 7 and found.cluster == copy.cluster
    assert (found.ledgers[0x1234].record.last_entry, found.ledgers[0x1234].version) == (3, 1)
    assert [node.path for node in found.others] == [paths.policies("t", "n", "x")]
    assert not any("available" in node.path for node in copy.nodes)


async def copied(store: MemoryStore, objects: MemoryObjectStore, taken_ms: int) -> str:
    """Take and put a copy, and return its name."""
    cluster = (await read_cluster(store)).uuid
    record = await metadata_copy.number_copy(store, objects, cluster)
    return await metadata_copy.put(objects, await metadata_copy.take(store, taken_ms), record)


async def place_of(store: MemoryStore, objects: MemoryObjectStore) -> Place:
    place = Place(store, objects, (await read_cluster(store)).uuid, StoreRole.ARCHIVE)
    await place.enter()
    return place


async def test_the_newest_that_is_whole_is_read_and_few_are_kept() -> None:
    store, objects = await filled(), MemoryObjectStore()
    for taken_ms in range(1_000, 1_000 + metadata_copy.KEPT + 3):
        name = await copied(store, objects, taken_ms)
    assert len(await objects.list(FOLDER)) == metadata_copy.KEPT
    found, damaged = await metadata_copy.newest(objects)
    assert found is not None and found.taken_ms == taken_ms and not damaged
    raw = bytes(await objects.get_range(name, 0, await objects.size(name)))
    await objects.delete(name)
    await objects.put_whole(name, [raw[:-1] + bytes([raw[-1] ^ 1])])
    found, damaged = await metadata_copy.newest(objects)
    assert found is not None and found.taken_ms == taken_ms - 1
    assert damaged == [f"object {name} does not match its checksum"]


async def test_a_large_cluster_is_copied_in_little_memory() -> None:
    store = await filled()
    for ledger_id in range(20_000):
        fragment = Fragment(first_entry=0, bookies=tuple(f"{uuid4()}:1" for _ in range(3)))
        await store.create(
            paths.ledger(ledger_id + 0x10000),
            encode(LedgerRecord(ledger_id=ledger_id, fragments=(fragment,))),
        )
    tracemalloc.start()
    try:
        taken = await metadata_copy.take(store, 1_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken.records > 20_000 and peak < 4 * len(taken.sealed), "and not what it was made of"
    assert len(metadata_copy.decode(taken.sealed, "it").nodes) == taken.records


async def test_another_cluster_over_the_same_archive_takes_no_copy_away() -> None:
    """Begun in haste after the loss, it would have deleted the last copies of the lost one within the hour."""
    lost, other, objects = await filled(), await filled(), MemoryObjectStore()
    cluster = (await read_cluster(lost)).uuid
    await copied(lost, objects, 1_000)
    for taken_ms in range(2_000, 2_000 + 2 * metadata_copy.KEPT):
        await copied(other, objects, taken_ms)
    with pytest.raises(ConfigurationError, match="name one with --cluster"):
        await metadata_copy.newest(objects)
    found, damaged = await metadata_copy.newest(objects, cluster)
    assert found is not None and (found.cluster, found.taken_ms, damaged) == (cluster, 1_000, [])


class Hours:
    """A coordinator that copies every ten minutes, by a clock that an operator sets."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.clock = ManualClock()
        self.copies = MetadataCopies(place, self.clock, lambda: True)
        self.hour = 0

    async def pass_by(self, hours: int) -> None:
        path = paths.tenant("t")
        for _ in range(hours):
            self.hour += 1
            try:
                await self.place.metadata.create(path, b"%d" % self.hour)
            except AlreadyExists:
                await self.place.metadata.put(path, b"%d" % self.hour, ANY_VERSION)
            for _ in range(6):
                self.clock.advance_ms(601_000)
                await self.copies.look()

    async def newest(self, number: int = 0) -> int:
        found, damaged = await metadata_copy.newest(self.place.objects, number=number)
        assert found is not None and not damaged
        return int(next(node.value for node in found.nodes if node.path == paths.tenant("t")))


@pytest.mark.parametrize("numbered", [True, False])
async def test_copies_are_ordered_by_their_number_whatever_the_clock_says(numbered: bool) -> None:
    """A clock that was a day ahead once, before or after copies were numbered, hides no later copy."""
    hours = Hours(await place_of(await filled(), MemoryObjectStore()))
    hours.clock.step_ms(86_400_000)
    if numbered:
        await hours.pass_by(1)
    else:
        name = f"{copies_of(hours.place.cluster)}{hours.clock.now_ms():016d}-{uuid4().hex}"
        await hours.place.objects.put_whole(name, [b"from before"])
    hours.clock.step_ms(-86_400_000)
    await hours.pass_by(3)
    assert await hours.newest() == hours.hour
    assert len(await list_copies(hours.place.objects, hours.place.cluster)) == metadata_copy.KEPT


async def test_an_older_backup_is_reported_and_newer_copies_are_kept_until_an_operator_decides(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, objects = await filled(), MemoryObjectStore()
    hours = Hours(await place_of(store, objects))
    await hours.pass_by(2)
    backup = MemoryStore()
    await backup.create(paths.CLUSTER, (await store.get(paths.CLUSTER)).value)
    await backup.create(paths.TENANTS, b"")
    await hours.pass_by(1)
    kept = await list_copies(objects, hours.place.cluster)
    number, restored = (
        number_of(kept[-1]),
        Hours(Place(backup, objects, hours.place.cluster, StoreRole.ARCHIVE)),
    )
    restored.hour = 100
    await restored.pass_by(3)
    assert caplog.text.count(f"are older than copy {number} of them") == 1
    assert (await read_cluster(backup)).outdated_by == number
    listed = await list_copies(objects, hours.place.cluster)
    assert listed[: metadata_copy.KEPT] == kept and len(listed) == 2 * metadata_copy.KEPT
    assert await restored.newest() == 103 and await restored.newest(number) == 3
    with pytest.raises(WrongCluster, match=f"older than copy {number}"):
        await confirm_absence(backup, hours.place.cluster, objects)
    assert await accept_older(backup, hours.place.cluster, objects) == number
    await confirm_absence(backup, hours.place.cluster, objects)
    await restored.pass_by(1)
    assert len(await list_copies(objects, hours.place.cluster)) == metadata_copy.KEPT


async def test_a_copy_is_not_deleted_as_it_is_put() -> None:
    """Another process became the coordinator, and put more copies while this one was being put."""
    store, objects = await filled(), MemoryObjectStore()
    cluster = (await read_cluster(store)).uuid
    slow = await metadata_copy.number_copy(store, objects, cluster)
    for taken_ms in range(2_000, 2_000 + metadata_copy.KEPT):
        await copied(store, objects, taken_ms)
    name = await metadata_copy.put(objects, await metadata_copy.take(store, 1_000), slow)
    assert name in await list_copies(objects, cluster)


async def test_no_copy_is_put_into_a_store_of_another_cluster(caplog: pytest.LogCaptureFixture) -> None:
    place = await place_of(await filled(), MemoryObjectStore())
    place.objects = MemoryObjectStore()
    await place.objects.put_whole(NAME, [encode_marker("5f0e0b3c-8d0a-4a6e-9a55-0f5f7f1f7a11")])
    await Hours(place).pass_by(1)
    assert "belongs to cluster 5f0e0b3c" in caplog.text and len(await place.objects.list()) == 1


class Slow(MemoryStore):
    """Each list of children takes a second."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.clock = clock
        self.lists = 0

    async def children(self, path: str) -> list[str]:
        self.lists += 1
        self.clock.advance_ms(1_000)
        return await super().children(path)


async def test_the_coordinator_alone_takes_one_now_and_then_and_none_too_often() -> None:
    clock, objects, is_coordinator = ManualClock(), MemoryObjectStore(), False
    store = Slow(clock)
    await begin_cluster(store, 5)
    copies = MetadataCopies(await place_of(store, objects), clock, lambda: is_coordinator)
    await copies.look()
    assert not store.lists and not await objects.list(FOLDER)
    is_coordinator = True
    await copies.look()
    assert not store.lists, "it takes over another one's topics at this moment"
    clock.advance_ms(int(1000 * metadata_copy.SETTLED_S))
    await copies.look()
    assert len(await objects.list(FOLDER)) == 1
    took = store.lists
    pause_s = int(took / metadata_copy.SHARE)
    assert pause_s > metadata_copy.INTERVAL_S
    clock.advance_ms(1000 * pause_s - 1)
    await copies.look()
    assert store.lists == took
    clock.advance_ms(1)
    await copies.look()
    assert len(await objects.list(FOLDER)) == 2


async def test_a_process_that_has_just_begun_has_topics_to_load_first() -> None:
    clock, objects = ManualClock(), MemoryObjectStore()
    store = Slow(clock)
    await begin_cluster(store, 5)
    copies = MetadataCopies(await place_of(store, objects), clock, lambda: True)
    await copies.start()
    clock.advance_ms(int(1000 * metadata_copy.SETTLED_S) - 1)
    await copies.look()
    assert not store.lists
    clock.advance_ms(1)
    await copies.look()
    assert len(await objects.list(FOLDER)) == 1
    await copies.stop()


async def test_an_archive_that_fails_costs_the_metadata_store_no_more_and_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, objects = ManualClock(), MemoryObjectStore()
    store = Slow(clock)
    await begin_cluster(store, 5)
    copies = MetadataCopies(await place_of(store, objects), clock, lambda: True)
    began_s = clock.monotonic()
    while clock.monotonic() < began_s + 24 * 3600:
        objects.faults.fail_next("finish", Unavailable("503"))
        await copies.look()
        clock.advance_ms(int(1000 * metadata_copy.LOOK_S))
    assert 0 < store.lists <= metadata_copy.SHARE * (clock.monotonic() - began_s) + 20
    assert caplog.text.count("cannot copy the metadata into the archive") == 1


async def test_a_label_is_read_with_the_store_that_it_lies_in() -> None:
    objects, segment = MemoryObjectStore(), record_of(make_blocks(3, 50))
    label = SegmentLabel(topic=TOPIC, segment=segment)
    made = segment_label.make(label)
    assert made.startswith(b"QUIRE label 1 ")
    await objects.put_whole("segments/a.label", [made])
    assert await segment_label.read(objects, "segments/a.label") == label
    await objects.put_whole("segments/b.label", [made.replace(b"label 1", b"label 2")])
    with pytest.raises(CorruptionError, match="a label of version 2, not 1"):
        await segment_label.read(objects, "segments/b.label")
    await objects.put_whole("segments/c.label", [b"something else"])
    with pytest.raises(CorruptionError, match="is not a label"):
        await segment_label.read(objects, "segments/c.label")
