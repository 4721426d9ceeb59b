"""Segment lists: changed only by version, of any length, never a mixture of two versions."""

from __future__ import annotations

import random

import msgspec
import pytest

from quire.metadata import paths, topics
from quire.metadata.records import SegmentRecord, TopicRecord
from quire.metadata.store import MetadataStore, Node
from quire.runtime.errors import CorruptionError, NotFound, OutcomeUnknown, VersionConflict
from quire.testing.metadata import MemoryStore

PATH = paths.topic("t", "n", "x/y")


async def new_topic(store: MetadataStore, segments: int = 0) -> topics.Topic:
    topic = await topics.create(store, PATH, TopicRecord(name="persistent://t/n/x%2Fy"))
    for number in range(segments):
        topic = await topics.roll(store, topic, None, SegmentRecord(ledger_id=number))
    return topic


def ids(topic: topics.Topic) -> list[int]:
    return [segment.ledger_id for segment in topic.segments]


async def manifest_count(store: MetadataStore) -> int:
    return len(await store.children(f"{paths.MANIFESTS}/t/n/persistent"))


async def test_append_seal_trim() -> None:
    store = MemoryStore()
    topic = await new_topic(store, 2)
    sealed = SegmentRecord(
        ledger_id=0, sealed_ms=5, last_entry=9, messages=20, bytes=300, first_clock_ms=1, last_clock_ms=4
    )
    topic = await topics.replace_segment(store, topic, sealed)
    assert topic.segment(0) == sealed
    assert topic.segment(0).is_sealed
    assert not topic.segment(1).is_sealed
    topic = await topics.trim_front(store, topic, 1)
    assert ids(topic) == [1]
    assert await topics.load(store, PATH) == topic


async def test_an_old_snapshot_conflicts_and_changes_nothing() -> None:
    store = MemoryStore()
    old = await new_topic(store, 1)
    new = await topics.roll(store, old, None, SegmentRecord(ledger_id=1))
    for change in (
        topics.roll(store, old, None, SegmentRecord(ledger_id=2)),
        topics.replace_segment(store, old, SegmentRecord(ledger_id=0, messages=1)),
        topics.trim_front(store, old, 0),
        topics.update(store, old, old.record),
        topics.delete(store, old),
    ):
        with pytest.raises(VersionConflict):
            await change
    assert await topics.load(store, PATH) == new


async def test_an_unknown_outcome_is_found_by_loading_again() -> None:
    store = MemoryStore()
    topic = await new_topic(store, 1)
    store.fail_next(OutcomeUnknown("time-out"), happened=True)
    with pytest.raises(OutcomeUnknown):
        await topics.roll(store, topic, None, SegmentRecord(ledger_id=1))
    assert ids(await topics.load(store, PATH)) == [0, 1]


async def test_older_segments_move_to_manifests_and_the_node_stays_small() -> None:
    store = MemoryStore()
    topic = await new_topic(store, 500)
    assert ids(topic) == list(range(500))
    assert len(topic.record.segments) <= topics.SEGMENTS_INLINE_MAX
    assert len((await store.get(PATH)).value) < 64 * 1024
    assert await topics.load(store, PATH) == topic
    assert await manifest_count(store) == len(topic.record.manifests) == 8


async def test_a_segment_in_a_manifest_is_replaced_by_a_new_manifest() -> None:
    store = MemoryStore()
    topic = await new_topic(store, 300)
    before = topic.record.manifests
    topic = await topics.replace_segment(store, topic, SegmentRecord(ledger_id=60, messages=7))
    after = topic.record.manifests
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, False, True, True]
    assert (await topics.load(store, PATH)).segment(60).messages == 7
    assert await manifest_count(store) == 4


@pytest.mark.parametrize("first", [0, 1, 49, 50, 75, 249, 299])
async def test_trimming_drops_whole_manifests_and_cuts_one(first: int) -> None:
    store = MemoryStore()
    topic = await topics.trim_front(store, await new_topic(store, 300), first)
    assert ids(topic) == list(range(first, 300))
    assert await topics.load(store, PATH) == topic
    assert await manifest_count(store) == len(topic.record.manifests)


async def test_deleting_takes_the_manifests_along() -> None:
    store = MemoryStore()
    await topics.delete(store, await new_topic(store, 200))
    assert await manifest_count(store) == 0
    with pytest.raises(NotFound):
        await topics.load(store, PATH)


async def test_update_leaves_the_segments() -> None:
    store = MemoryStore()
    topic = await new_topic(store, 150)
    wiped = msgspec.structs.replace(topic.record, terminated=True, segments=(), manifests=())
    topic = await topics.update(store, topic, wiped)
    assert ids(topic) == list(range(150))
    assert (await topics.load(store, PATH)).record.terminated


async def test_segments_that_are_not_there() -> None:
    store = MemoryStore()
    topic = await new_topic(store, 1)
    with pytest.raises(NotFound):
        await topics.trim_front(store, topic, 9)
    with pytest.raises(NotFound):
        await topics.replace_segment(store, topic, SegmentRecord(ledger_id=9))


async def test_a_missing_manifest_is_damage() -> None:
    store = MemoryStore()
    topic = await new_topic(store, 150)
    await store.delete(topic.record.manifests[0])
    with pytest.raises(CorruptionError, match="manifest"):
        await topics.load(store, PATH)


class Racing(MemoryStore):
    """Changes the list between the reader's look at the topic and at its first manifest."""

    topic: topics.Topic | None = None

    async def get(self, path: str) -> Node:
        if self.topic is not None and path in self.topic.record.manifests:
            topic, self.topic = self.topic, None
            await topics.trim_front(self, topic, 120)
        return await super().get(path)


async def test_a_list_that_moves_while_it_is_read_is_read_again() -> None:
    store = Racing()
    store.topic = await new_topic(store, 150)
    assert ids(await topics.load(store, PATH)) == list(range(120, 150))


@pytest.mark.parametrize("seed", range(5))
async def test_any_sequence_of_changes_equals_a_list(seed: int) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    store = MemoryStore()
    topic = await new_topic(store)
    model: list[SegmentRecord] = []
    for number in range(600):
        choice = rng.random()
        if choice < 0.8 or not model:
            model.append(SegmentRecord(ledger_id=number))
            topic = await topics.roll(store, topic, None, model[-1])
        elif choice < 0.97:
            place = rng.randrange(len(model))
            model[place] = msgspec.structs.replace(model[place], messages=number)
            topic = await topics.replace_segment(store, topic, model[place])
        else:
            first = rng.randrange(len(model))
            topic = await topics.trim_front(store, topic, model[first].ledger_id)
            del model[:first]
        assert list(topic.segments) == model
    assert await topics.load(store, PATH) == topic
    assert await manifest_count(store) == len(topic.record.manifests)
