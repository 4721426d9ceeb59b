"""The list of segments while several change it at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from quire.metadata import topics
from quire.metadata.records import ArchivePointer, SegmentRecord, TopicRecord
from quire.metadata.store import Step
from quire.serving.model.ports import Position
from quire.serving.topic.meta_store import MetaStore
from quire.serving.topic.segments import Active
from quire.testing.metadata import MemoryStore

POINTER = ArchivePointer(store="memory://", name="object", bytes=1, crc=0, archived_ms=1)
ARCHIVED = SegmentRecord(ledger_id=1, archive=POINTER)


class SlowStore(MemoryStore):
    """Takes a turn of the loop for each transaction, as a real one does."""

    async def transact(self, steps: Sequence[Step]) -> None:
        await asyncio.sleep(0)
        await super().transact(steps)


@pytest.fixture
async def meta_store() -> MetaStore:
    store = SlowStore()
    made = MetaStore(store, await topics.create(store, "/topic", TopicRecord(name="topic")))
    await made.begin(None, Active(1, 0, 1))
    active = made.segments.active
    assert active is not None
    active.last_entry, active.messages = 9, 10
    await made.begin(active.sealed(2), Active(2, 10, 2))
    return made


@pytest.mark.parametrize("change", ["archived", "off_bookies", "update", "trim"])
async def test_a_change_that_waited_for_a_roll_leaves_the_new_segment_active(
    meta_store: MetaStore, change: str
) -> None:
    segments = meta_store.segments
    assert segments.active is not None
    if change == "off_bookies":
        await meta_store.archived(ARCHIVED)
    segments.active.last_entry, segments.active.messages = 4, 5
    rolling = asyncio.ensure_future(meta_store.begin(segments.active.sealed(3), Active(3, 15, 3)))
    await asyncio.sleep(0)
    match change:
        case "archived":
            await meta_store.archived(ARCHIVED)
        case "off_bookies":
            await meta_store.off_bookies(1)
        case "update":
            await meta_store.update(lambda record: record)
        case "trim":
            await meta_store.trim(2)
    await rolling
    assert segments.active.ledger_id == 3
    assert segments.views()[-1].ledger_id == 3


async def test_a_change_that_waited_for_the_seal_leaves_none_active(meta_store: MetaStore) -> None:
    segments = meta_store.segments
    assert segments.active is not None
    sealing = asyncio.ensure_future(meta_store.seal(segments.active.sealed(3)))
    await asyncio.sleep(0)
    await meta_store.archived(ARCHIVED)
    await sealing
    assert segments.active is None
    assert segments.sealed[0].archive == POINTER


async def test_bookies_keep_what_no_object_holds(meta_store: MetaStore) -> None:
    segments = meta_store.segments
    with pytest.raises(AssertionError, match="a segment in state SEALED received RELEASED"):
        await meta_store.off_bookies(1)
    with pytest.raises(AssertionError, match="a segment in state ACTIVE received ARCHIVED"):
        await meta_store.archived(replace(ARCHIVED, ledger_id=2))
    assert [segment.on_bookies for segment in segments.listed] == [True, True]


async def test_an_empty_segment_leaves_the_list_and_its_id_is_not_forgotten(meta_store: MetaStore) -> None:
    segments = meta_store.segments
    assert segments.active is not None and segments.can_drop_active
    index = segments.next_index()
    await meta_store.drop_active(meta_store._store.transact)
    assert [segment.ledger_id for segment in segments.listed] == [1]
    assert (segments.greatest_id, segments.next_index()) == (2, index)
    assert segments.next_position(Position(2, -1)) == Position(2, 0)
    await meta_store.begin(None, Active(3, index, 5))
    assert segments.next_position(Position(2, -1)) == Position(3, 0)


async def test_a_segment_that_alone_knows_the_index_stays(meta_store: MetaStore) -> None:
    segments = meta_store.segments
    await meta_store.trim(2)
    assert segments.active is not None and segments.active.first_index == 10
    assert not segments.can_drop_active


async def test_a_segment_with_messages_stays(meta_store: MetaStore) -> None:
    segments = meta_store.segments
    assert segments.active is not None
    segments.active.last_entry = 0
    assert not segments.can_drop_active
