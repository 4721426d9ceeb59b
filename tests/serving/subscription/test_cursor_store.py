"""A snapshot of all cursors that was prepared over many turns is one of the moment when it is taken."""

from __future__ import annotations

import asyncio
import random

import pytest
from pyroaring import BitMap

from quire.runtime.errors import QuireError, Unavailable
from quire.serving.model.ports import Position, SegmentView
from quire.serving.model.positions import Segments
from quire.serving.subscription.cursor import cursor_record, cursor_store
from quire.serving.subscription.cursor.cursor import Cursor, CursorKey
from quire.serving.subscription.cursor.cursor_store import CursorStore
from quire.serving.topic.dedup import DedupStore, Seen, Snapshot

SEGMENTS = Segments(lambda: [SegmentView(1, 999, 0, 1000, 1000)])


class Records:
    """A log that keeps what is written to it."""

    def __init__(self) -> None:
        self.records: list[bytes] = []

    def append(self, record: bytes, done: object = None) -> None:
        self.records.append(record)


def key(number: int) -> CursorKey:
    return CursorKey("persistent://public/default/t", 1, f"s-{number}")


def replayed(records: list[bytes]) -> dict[CursorKey, tuple[Position, list[list[int]]]]:
    store = CursorStore()
    for record in records:
        store.apply(record)
    return content(store)


def content(store: CursorStore) -> dict[CursorKey, tuple[Position, list[list[int]]]]:
    found: dict[CursorKey, Cursor] = {one.key: one for one in store.of_topic(key(0).topic)}
    return {
        name: (one.mark_delete, [list(entries) for _, entries in one.whole().acked.items()])
        for name, one in found.items()
    }


@pytest.mark.parametrize("seed", range(10))
async def test_what_changes_while_it_is_prepared_is_in_the_snapshot(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    monkeypatch.setattr(cursor_store, "CURSORS_A_TURN", 3)
    store, log = CursorStore(), Records()
    store.attach(log)
    cursors = {number: store.create(key(number), Position(1, -1), {}) for number in range(30)}
    deleting: list[asyncio.Future[None]] = []
    preparing = asyncio.ensure_future(store.prepare())
    while not preparing.done():
        for _ in range(rng.randrange(3)):
            number = rng.randrange(40)
            if number not in cursors:
                cursors[number] = store.create(key(number), Position(1, -1), {})
            elif rng.random() < 0.2:
                deleting.append(asyncio.ensure_future(store.delete(cursors.pop(number))))
            elif rng.random() < 0.2:
                store.rest(key(0).topic)
                again = {one.key: one for one in store.of_topic(key(0).topic)}
                cursors = {number: again[key(number)] for number in cursors}
            else:
                left = cursors[number].unacknowledged(1, BitMap([rng.randrange(5)]))
                if left:
                    cursors[number].acknowledge(1, left, SEGMENTS)
                    store.changed(cursors[number])
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    log.records.clear()
    snapshot = list(store.snapshot())
    assert replayed(snapshot) == content(store)
    assert replayed([*snapshot, *log.records]) == content(store)
    for each in deleting:
        each.cancel()  # nobody says that they are durable


async def test_only_what_changed_is_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    store = CursorStore()
    store.attach(Records())
    cursors = [store.create(key(number), Position(1, -1), {}) for number in range(500)]
    await asyncio.sleep(0)
    await store.prepare()
    cursors[7].acknowledge(1, BitMap([3]), SEGMENTS)
    store.changed(cursors[7])
    encoded: list[Cursor] = []
    real = cursor_record.snapshot

    def counted(cursor_id: int, cursor: Cursor) -> object:
        encoded.append(cursor)
        return real(cursor_id, cursor)

    monkeypatch.setattr(cursor_record, "snapshot", counted)
    assert len(list(store.snapshot())) >= 500
    assert encoded == [cursors[7]]


async def test_a_cursor_that_rests_comes_back_as_it_was() -> None:
    """With nothing beside its mark-delete, only its record is left of it, and that is its snapshot."""
    store = CursorStore()
    store.attach(Records())
    bare = store.create(key(1), Position(1, -1), {"colour": "green"})
    scattered = store.create(key(2), Position(1, -1), {})
    bare.acknowledge(1, BitMap(range(7)), SEGMENTS)
    scattered.acknowledge(1, BitMap([3, 5]), SEGMENTS)
    await asyncio.sleep(0)
    before = content(store)
    store.rest(key(1).topic)
    assert isinstance(store._cursors[bare.id], bytes)
    assert replayed(list(store.snapshot())) == before
    again = {one.key: one for one in store.of_topic(key(1).topic)}
    assert content(store) == before and again[key(2)] is scattered
    assert again[key(1)] is not bare and again[key(1)].properties == {"colour": "green"}
    assert again[key(1)].id == bare.id


async def test_cursors_that_were_replayed_rest() -> None:
    """A start reads all cursors of a broker's topics; nobody asks for most of them for a long time."""
    log = Records()
    store = CursorStore()
    store.attach(log)
    for number in range(10):
        cursor = store.create(key(number), Position(1, -1), {})
        await asyncio.sleep(0)
        cursor.acknowledge(1, BitMap(range(number)) if number else BitMap([2]), SEGMENTS)
        store.changed(cursor)
    await asyncio.sleep(0)
    again = CursorStore()
    for record in log.records:
        again.apply(record)
    await again.prepare()
    assert sum(isinstance(kept, Cursor) for kept in again._cursors.values()) == 1
    assert replayed(list(again.snapshot())) == content(store)


async def test_who_still_has_a_cursor_that_was_laid_down_changes_nothing() -> None:
    store, log = CursorStore(), Records()
    store.attach(log)
    stale = store.create(key(1), Position(1, -1), {})
    await asyncio.sleep(0)
    store.rest(key(1).topic)
    log.records.clear()
    stale.acknowledge(1, BitMap([0]), SEGMENTS)
    heard: list[QuireError | None] = []
    store.changed(stale, heard.append)
    with pytest.raises(Unavailable, match="was unloaded"):
        await store.save(stale)
    assert isinstance(heard[0], Unavailable) and not log.records
    assert [one.mark_delete for one in store.of_topic(key(1).topic)] == [Position(1, -1)]


def test_deduplication_s_part_is_prepared_as_well() -> None:
    store = DedupStore()
    for number in range(5):
        list(store.put(f"t{number}", Snapshot(1, Position(1, 2), {"p": Seen(number, 0, 0)})))
    for step, _ in enumerate(store.prepare()):
        if step == 2:
            list(store.put("t0", Snapshot(1, Position(1, 9), {"p": Seen(99, 0, 0)})))
            store.remove("t4")
            list(store.put("new", Snapshot(1, Position(1, 2), {"p": Seen(7, 0, 0)})))
    again = DedupStore()
    for record in store.snapshot():
        again.apply(record)
    assert again._snapshots == store._snapshots


async def test_a_snapshot_that_was_prepared_touches_no_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be a hundred thousand, and it is taken in one turn of the loop."""
    store, log = CursorStore(), Records()
    store.attach(log)
    saved = [store.save(store.create(key(number), Position(1, -1), {})) for number in range(3)]
    store._write()
    await store.prepare()
    with monkeypatch.context() as patched:
        patched.setattr(Cursor, "rest", None)
        records = list(store.snapshot())
    assert len(replayed(records)) == 3
    for one in saved:
        one.close()
