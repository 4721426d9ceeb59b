"""Counting all segments of a cluster from the metadata store."""

from __future__ import annotations

import pytest

from quire.metadata import topics
from quire.metadata.records import ArchivePointer, SegmentRecord, TopicRecord
from quire.serving.names import TopicName
from quire.testing.metadata import MemoryStore
from quire.tiering import inventory
from quire.tiering.inventory import all_topics, count_by_state

POINTER = ArchivePointer(store="memory://", name="object", bytes=1, crc=0, archived_ms=1)
SEGMENTS = (
    SegmentRecord(ledger_id=1, sealed_ms=1, bytes=10, archive=POINTER, on_bookies=False),
    SegmentRecord(ledger_id=2, sealed_ms=1, bytes=20, archive=POINTER),
    SegmentRecord(ledger_id=3, sealed_ms=1, bytes=40),
    SegmentRecord(ledger_id=4, sealed_ms=1, bytes=80),
    SegmentRecord(ledger_id=5),
)


async def test_counts_by_state_over_all_topics_however_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "AT_ONCE", 2)
    store = MemoryStore()
    for index in range(5):
        name = TopicName.parse(f"persistent://public/default/{index}")
        await topics.create(store, name.path, TopicRecord(name=str(name), segments=SEGMENTS))
    parent = TopicName.parse("persistent://public/default/parent")
    await topics.create(store, parent.path, TopicRecord(name=str(parent), partitions=2))

    async def is_flushed(ledger_id: int) -> bool:
        return ledger_id == 4

    assert len([topic async for topic in all_topics(store)]) == 6
    assert await count_by_state(store, is_flushed) == {
        "active": {"segments": 5, "bytes": 0},
        "sealed": {"segments": 5, "bytes": 200},
        "flushed": {"segments": 5, "bytes": 400},
        "archived": {"segments": 5, "bytes": 100},
        "released": {"segments": 5, "bytes": 50},
    }


async def test_an_empty_store_has_no_segments() -> None:
    async def is_flushed(ledger_id: int) -> bool:
        raise AssertionError(ledger_id)

    counts = await count_by_state(MemoryStore(), is_flushed)
    assert {one["segments"] for one in counts.values()} == {0}
