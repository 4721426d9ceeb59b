"""The list of segments while several change it at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from quire.metadata import topics
from quire.metadata.records import ArchivePointer, TopicRecord
from quire.metadata.store import Step
from quire.serving.model.ports import Position
from quire.serving.topic.segments import Active, Segments
from quire.testing.metadata import MemoryStore

POINTER = ArchivePointer(store="memory://", name="object", bytes=1, crc=0, archived_ms=1)


class SlowStore(MemoryStore):
    """Takes a turn of the loop for each transaction, as a real one does."""

    async def transact(self, steps: Sequence[Step]) -> None:
        await asyncio.sleep(0)
        await super().transact(steps)


@pytest.fixture
async def segments() -> Segments:
    store = SlowStore()
    made = Segments(store, await topics.create(store, "/topic", TopicRecord(name="topic")))
    await made.begin(None, Active(1, 0, 1))
    assert made.active is not None
    made.active.last_entry, made.active.messages = 9, 10
    await made.begin(made.active.sealed(2), Active(2, 10, 2))
    return made


@pytest.mark.parametrize("change", ["archived", "off_bookies", "update", "trim"])
async def test_a_change_that_waited_for_a_roll_leaves_the_new_segment_active(
    segments: Segments, change: str
) -> None:
    assert segments.active is not None
    if change == "off_bookies":
        await segments.archived(1, POINTER)
    segments.active.last_entry, segments.active.messages = 4, 5
    rolling = asyncio.ensure_future(segments.begin(segments.active.sealed(3), Active(3, 15, 3)))
    await asyncio.sleep(0)
    match change:
        case "archived":
            await segments.archived(1, POINTER)
        case "off_bookies":
            await segments.off_bookies(1)
        case "update":
            await segments.update(lambda record: record)
        case "trim":
            await segments.trim(2)
    await rolling
    assert segments.active.ledger_id == 3
    assert segments.views()[-1].ledger_id == 3


async def test_a_change_that_waited_for_the_seal_leaves_none_active(segments: Segments) -> None:
    assert segments.active is not None
    sealing = asyncio.ensure_future(segments.seal(segments.active.sealed(3)))
    await asyncio.sleep(0)
    await segments.archived(1, POINTER)
    await sealing
    assert segments.active is None
    assert segments.sealed[0].archive == POINTER


async def test_bookies_keep_what_no_object_holds(segments: Segments) -> None:
    with pytest.raises(AssertionError, match="a segment in state SEALED met RELEASED"):
        await segments.off_bookies(1)
    with pytest.raises(AssertionError, match="a segment in state ACTIVE met ARCHIVED"):
        await segments.archived(2, POINTER)
    assert [segment.on_bookies for segment in segments.listed] == [True, True]


async def test_an_empty_segment_leaves_the_list_and_its_id_is_not_forgotten(segments: Segments) -> None:
    assert segments.active is not None and segments.can_drop_active
    index = segments.next_index()
    await segments.drop_active(segments._store.transact)
    assert [segment.ledger_id for segment in segments.listed] == [1]
    assert (segments.greatest_id, segments.next_index()) == (2, index)
    assert segments.next_position(Position(2, -1)) == Position(2, 0)
    await segments.begin(None, Active(3, index, 5))
    assert segments.next_position(Position(2, -1)) == Position(3, 0)


async def test_a_segment_that_alone_knows_the_index_stays(segments: Segments) -> None:
    await segments.trim(2)
    assert segments.active is not None and segments.active.first_index == 10
    assert not segments.can_drop_active


async def test_a_segment_with_messages_stays(segments: Segments) -> None:
    assert segments.active is not None
    segments.active.last_entry = 0
    assert not segments.can_drop_active
