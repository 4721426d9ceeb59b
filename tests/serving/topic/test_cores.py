"""The small cores of a topic: tail cache, deduplication, retention."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.ledger.state_log import RECORD_BYTES_MAX
from quire.metadata.records import RetentionPolicy, SegmentRecord
from quire.runtime.errors import CorruptionError
from quire.runtime.limits import DEDUPLICATION_PRODUCERS_MAX, NAME_CHARS_MAX
from quire.serving.model.ports import EARLIEST, Position
from quire.serving.topic.dedup import (
    INACTIVE_MS_MAX,
    LAST,
    NEWEST_KEPT,
    SEQUENCE_ID_MAX,
    Deduplicator,
    DedupStore,
    Numbers,
    Seen,
    Snapshot,
    Verdict,
    encode,
    numbers_of,
)
from quire.serving.topic.lifecycle.retention import trimmable
from quire.serving.topic.tail_cache import TailCache
from quire.wire import pulsar_pb2 as pb
from quire.wire.message import seal

# -- tail cache ------------------------------------------------------------------------------------------


def test_a_position_inside_a_block_is_found_with_what_follows() -> None:
    tail = TailCache().tail()
    for first in (0, 5, 10):
        tail.put(Position(1, first), first + 4, b"block %d" % first)
    assert list(tail.find(Position(1, 7))) == [b"block 5", b"block 10"]
    assert list(tail.find(Position(1, 0))) == [b"block 0", b"block 5", b"block 10"]
    assert list(tail.find(Position(1, 15))) == []
    assert list(tail.find(Position(0, 3))) == []


def test_an_answer_ends_where_the_ledger_does() -> None:
    tail = TailCache().tail()
    tail.put(Position(1, 0), 4, b"one")
    tail.put(Position(2, 0), 4, b"two")
    assert list(tail.find(Position(1, 0))) == [b"one"]
    assert list(tail.find(Position(1, 5))) == []


def test_the_oldest_of_all_topics_leaves_first() -> None:
    cache = TailCache(bytes_max=30)
    first, second = cache.tail(), cache.tail()
    first.put(Position(1, 0), 0, b"x" * 10)
    second.put(Position(2, 0), 0, b"x" * 10)
    first.put(Position(1, 1), 1, b"x" * 10)
    second.put(Position(2, 1), 1, b"x" * 10)
    assert list(first.find(Position(1, 0))) == []
    assert len(first.find(Position(1, 1))) == 1
    assert len(second.find(Position(2, 0))) == 2
    assert cache.bytes_used == 30


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 20)), max_size=300))
def test_the_cache_never_holds_more_than_it_may(puts: list[tuple[int, int]]) -> None:
    cache = TailCache(bytes_max=50)
    tails = [cache.tail() for _ in range(4)]
    written: list[list[bytes]] = [[], [], [], []]
    for which, size in puts:
        block = bytes([len(written[which]) % 256]) * size
        tails[which].put(Position(which, len(written[which])), len(written[which]), block)
        written[which].append(block)
        assert cache.bytes_used <= 50
    for which, blocks in enumerate(written):
        for entry, block in enumerate(blocks):
            found = tails[which].find(Position(which, entry))
            assert not found or found[0] == block
    for tail in tails:
        tail.clear()
    assert cache.bytes_used == 0


def test_topics_that_come_and_go_leave_nothing_in_the_queue() -> None:
    cache = TailCache()
    stays = cache.tail()
    for entry in range(1000):
        passing = cache.tail()
        for tail in (stays, passing, passing):
            tail.put(Position(1, entry), entry, b"x")
        passing.clear()
    assert len(cache._order) < 2200, "half of it at most are turns of topics that are gone"
    assert len(stays.find(Position(1, 0))) == 1000


# -- deduplication ---------------------------------------------------------------------------------------


FRESH, DUPLICATE, FOREIGN, OVERLAPPING = Verdict


def numbers(low: int, high: int | None = None, chunk: int = LAST, name: str = "p") -> Numbers:
    return Numbers(name, low, low if high is None else high, chunk)


def test_a_number_is_accepted_once() -> None:
    dedup = Deduplicator()
    assert dedup.admit("p", [numbers(5), numbers(5), numbers(4)], 0) == [FRESH, DUPLICATE, DUPLICATE]
    assert dedup.admit("other", [numbers(4, name="other")], 0) == [FRESH]
    assert dedup.admit("p", [numbers(6, 9)], 0) == [FRESH]
    assert dedup.last_sequence_id("p") == 9


def test_what_comes_at_once_is_looked_at_one_by_one() -> None:
    dedup = Deduplicator()
    assert dedup.admit("p", map(numbers, (5, 5, 7)), 0) == [FRESH, DUPLICATE, FRESH]
    assert dedup.admit("p", map(numbers, (8, 12, 10)), 0) == [FRESH, FRESH, DUPLICATE]
    assert dedup.admit("p", [numbers(13, 14), numbers(13, 14)], 0) == [FRESH, DUPLICATE]
    assert dedup.last_sequence_id("p") == 14


def test_a_batch_that_is_stored_in_part_is_refused_and_changes_nothing() -> None:
    dedup = Deduplicator()
    sent = [numbers(0, 4), numbers(0, 9), numbers(4, 5), numbers(5, 9), numbers(0, 9)]
    assert dedup.admit("p", sent, 0) == [FRESH, OVERLAPPING, OVERLAPPING, FRESH, DUPLICATE]
    dedup.admit("p", [numbers(12, chunk=0)], 0)
    assert dedup.admit("p", [numbers(11, 12)], 0) == [OVERLAPPING]
    assert dedup.last_sequence_id("p") == 11


def test_what_is_in_the_log_counts_whole() -> None:
    dedup = Deduplicator({"p": Seen(4, LAST, 0)})
    for low, high in ((3, 9), (5, 6)):
        dedup.learn(seal(metadata(sequence_id=low, highest_sequence_id=high), b""), 0)
    assert dedup.last_sequence_id("p") == 9


def test_an_entry_of_another_or_of_nobody_is_foreign_and_changes_nothing() -> None:
    dedup = Deduplicator()
    sent = [numbers(1), numbers(2**60, name="victim"), None, numbers(2)]
    assert dedup.admit("p", sent, 0) == [FRESH, FOREIGN, FOREIGN, FRESH]
    assert (dedup.last_sequence_id("p"), dedup.last_sequence_id("victim")) == (2, -1)


@given(st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=6), max_size=20))
def test_it_stores_what_a_set_of_all_numbers_would(reads: list[list[tuple[int, int]]]) -> None:
    """In whatever reads they come, against all that is stored written down."""
    dedup, stored = Deduplicator(), {-1}
    for read in reads:
        sent = [numbers(low, low + more) for low, more in read]
        for one, verdict in zip(sent, dedup.admit("p", sent, 0), strict=True):
            assert (verdict is FRESH) == (one.low > max(stored))
            assert (verdict is DUPLICATE) == (one.high <= max(stored))
            if verdict is FRESH:
                assert not stored & set(range(one.low, one.high + 1))
                stored |= set(range(one.low, one.high + 1))
    assert dedup.last_sequence_id("p") == max(stored)


def test_chunks_of_one_number() -> None:
    dedup = Deduplicator()
    sent = [numbers(3, chunk=chunk) for chunk in (0, 1, 1, LAST, LAST, 0)]
    assert dedup.admit("p", sent, 0) == [FRESH, FRESH, DUPLICATE, FRESH, DUPLICATE, DUPLICATE]


def test_a_message_counts_as_sent_with_its_last_chunk() -> None:
    dedup = Deduplicator()
    dedup.admit("p", [numbers(4), numbers(7, chunk=0), numbers(7, chunk=1)], 0)
    assert dedup.last_sequence_id("p") == 6, "nothing between is coming any more"
    dedup.admit("p", [numbers(7)], 0)
    assert dedup.last_sequence_id("p") == 7


def metadata(**more: Any) -> pb.MessageMetadata:
    return pb.MessageMetadata(**{"producer_name": "p", "sequence_id": 3, "publish_time": 1, **more})


@pytest.mark.parametrize(
    ("sealed", "expected"),
    [
        (metadata(), numbers(3)),
        (metadata(highest_sequence_id=9), numbers(3, 9)),
        (metadata(highest_sequence_id=2), numbers(3)),
        (metadata(num_messages_in_batch=5), numbers(3, 7)),
        (metadata(num_messages_in_batch=-5), numbers(3)),
        (metadata(num_messages_in_batch=5, highest_sequence_id=20), numbers(3, 20)),
        (metadata(num_messages_in_batch=2**31 - 1, sequence_id=SEQUENCE_ID_MAX), None),
        (metadata(chunk_id=1, num_chunks_from_msg=3), numbers(3, chunk=1)),
        (metadata(chunk_id=2, num_chunks_from_msg=3), numbers(3)),
        (metadata(chunk_id=-1, num_chunks_from_msg=3), numbers(3)),
        (metadata(sequence_id=SEQUENCE_ID_MAX), numbers(SEQUENCE_ID_MAX)),
        (metadata(sequence_id=SEQUENCE_ID_MAX + 1), None),
        (metadata(highest_sequence_id=2**64 - 1), None),
        (metadata(producer_name="x" * (NAME_CHARS_MAX + 1)), None),
    ],
)
def test_the_metadata_tell_whose_it_is(sealed: pb.MessageMetadata, expected: Numbers | None) -> None:
    assert numbers_of(seal(sealed, b"payload")) == expected


@given(st.binary(max_size=60))
def test_any_bytes_may_be_an_entry(garbage: bytes) -> None:
    numbers_of(garbage)
    found = numbers_of(b"\x0e\x01" + bytes(4) + len(garbage).to_bytes(4, "big") + garbage)
    if found is not None:
        Deduplicator().admit(found.producer_name, [found], 0)
        list(encode("topic", Snapshot(1, EARLIEST, {found.producer_name: Seen(found.high, found.chunk, 0)})))


def test_inactive_producers_are_forgotten() -> None:
    newest = {f"new{number}": Seen(2, LAST, 10) for number in range(NEWEST_KEPT)}
    dedup = Deduplicator({"old": Seen(1, LAST, 0), **newest})
    assert set(dedup.capture(INACTIVE_MS_MAX + 5)) == newest.keys()


def test_a_clock_that_jumps_ahead_makes_no_topic_forget_its_newest_producers() -> None:
    dedup = Deduplicator({f"{number}": Seen(1, LAST, number) for number in range(2 * NEWEST_KEPT)})
    assert dedup.admit("p", [numbers(1)], 1000) == [Verdict.FRESH]
    assert dedup.capture(INACTIVE_MS_MAX * 10).keys() >= {"p", str(2 * NEWEST_KEPT - 1)}
    assert dedup.admit("p", [numbers(1)], INACTIVE_MS_MAX * 10) == [Verdict.DUPLICATE]


def test_of_too_many_producers_those_that_sent_last_are_known() -> None:
    dedup = Deduplicator({f"{i}": Seen(1, LAST, i % 7) for i in range(DEDUPLICATION_PRODUCERS_MAX)})
    dedup.admit("late", [numbers(1, name="late")], 8)
    captured = dedup.capture(10)
    assert len(captured) == DEDUPLICATION_PRODUCERS_MAX
    assert "late" in captured and "0" not in captured


@given(
    st.dictionaries(
        st.text(max_size=20),
        st.builds(Seen, st.integers(-1, 2**62), st.integers(0, LAST), st.integers(0, 2**60)),
        max_size=30,
    )
)
def test_a_snapshot_survives_the_log(seen: dict[str, Seen]) -> None:
    store, other = DedupStore(), DedupStore()
    for record in store.put("topic", Snapshot(7, Position(3, 4), seen)):
        other.apply(record)
    assert other.find("topic", 7) == Snapshot(7, Position(3, 4), seen)
    assert other.find("topic", 8) is None


def test_a_large_snapshot_is_several_records() -> None:
    seen = {f"producer {i}": Seen(i, LAST, i) for i in range(2500)}
    store, other = DedupStore(), DedupStore()
    position = Position(7, 8)
    records = list(store.put("topic", Snapshot(1, position, seen)))
    assert len(records) == 7
    for record in records[:-1]:
        other.apply(record)
        found = other.find("topic", 1)
        assert found is not None
        assert found.position == EARLIEST, "half a snapshot must not end the replay early"
    for record in [records[-1], *store.snapshot()]:
        other.apply(record)
    assert other.find("topic", 1) == Snapshot(1, position, seen)
    removal = store.remove("topic")
    assert removal is not None
    other.apply(removal)
    assert other.find("topic", 1) is None


def test_the_longest_names_fit_a_record() -> None:
    seen = {f"{i:04d}" + chr(0x10000) * (NAME_CHARS_MAX - 4): Seen(i, LAST, i) for i in range(1000)}
    records = list(DedupStore().put("t" * NAME_CHARS_MAX, Snapshot(1, EARLIEST, seen)))
    assert max(map(len, records)) <= RECORD_BYTES_MAX


@given(st.binary(max_size=80))
def test_damaged_records_are_told(tail: bytes) -> None:
    try:
        DedupStore().apply(b"D" + tail)
    except CorruptionError:
        pass


# -- retention -------------------------------------------------------------------------------------------


def sealed(*ends: int) -> list[SegmentRecord]:
    """Segments of ten entries and 100 bytes, sealed at these times."""
    return [
        SegmentRecord(ledger_id=i, sealed_ms=end, last_entry=9, messages=10, bytes=100)
        for i, end in enumerate(ends, 1)
    ]


@pytest.mark.parametrize(
    ("marks", "retention_ms", "retention_bytes", "expected"),
    [
        ([], -1, -1, 0),
        ([], 0, 0, 3),
        ([Position(2, 9)], 0, 0, 2),
        ([Position(2, 8)], 0, 0, 1),
        ([Position(3, 9), Position(1, 9)], 0, 0, 1),
        ([Position(0, -1)], 0, 0, 0),
        ([], 500, -1, 2),
        ([], -1, 250, 1),
        ([], 500, 10_000, 2),
        ([Position(1, 9)], 500, -1, 1),
    ],
)
def test_what_may_go(marks: list[Position], retention_ms: int, retention_bytes: int, expected: int) -> None:
    segments = sealed(100, 200, 900)
    retention = RetentionPolicy(retention_ms=retention_ms, retention_bytes=retention_bytes)
    assert trimmable(segments, 50, marks, retention, 1000) == expected
