"""The cursor against a model that keeps a plain set, and its records against the cursor."""

from __future__ import annotations

import copy
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from quire.runtime.errors import CorruptionError
from quire.serving.model.ports import Position, SegmentView
from quire.serving.model.positions import Segments, following
from quire.serving.subscription.cursor import cursor_record
from quire.serving.subscription.cursor.cursor import Cursor, CursorKey
from quire.serving.subscription.cursor.cursor_record import Kind

LAST_ENTRIES = {1: 5, 2: -1, 4: 0, 7: 9}
"""Ledger 2 ended empty, ledger 7 is active."""

SEGMENTS = Segments(lambda: [SegmentView(ledger, last, 0, 0, 0) for ledger, last in LAST_ENTRIES.items()])
ALL = [Position(ledger, entry) for ledger, last in LAST_ENTRIES.items() for entry in range(last + 1)]
KEY = CursorKey("persistent://public/default/t", 3, "s")

positions = st.sampled_from(ALL)
groups = st.tuples(st.sampled_from([1, 4, 7]), st.sets(st.integers(0, 9), min_size=1))
steps = st.one_of(
    st.tuples(st.just("each"), groups),
    st.tuples(st.just("up to"), positions),
    st.tuples(st.just("part"), st.tuples(positions, st.integers(1, 6))),
    st.tuples(st.just("again"), groups),
    st.tuples(st.just("seek"), positions),
)


class Model:
    """What is acknowledged, entry by entry."""

    def __init__(self) -> None:
        self.acked: set[Position] = set()
        self.partial: dict[Position, int] = {}
        self.counts: dict[Position, int] = {}

    def mark_delete(self) -> Position:
        marked = Position(1, -1)
        for position in ALL:
            if position not in self.acked:
                break
            marked = position
        return marked

    def forget_acked(self) -> None:
        for position in self.acked:
            self.partial.pop(position, None)
            self.counts.pop(position, None)


def acknowledge(cursor: Cursor, ledger: int, entries: set[int]) -> None:
    existing = BitMap(entry for entry in entries if entry <= LAST_ENTRIES[ledger])
    new = cursor.unacknowledged(ledger, existing)
    if new:
        cursor.acknowledge(ledger, new, SEGMENTS)


def play(cursor: Cursor, model: Model, step: tuple) -> None:
    what, given_ = step
    if what == "each":
        ledger, entries = given_
        acknowledge(cursor, ledger, entries)
        model.acked |= {Position(ledger, entry) for entry in entries} & set(ALL)
    elif what == "up to":
        cursor.acknowledge_up_to(given_, SEGMENTS)
        model.acked |= {position for position in ALL if position <= given_}
    elif what == "part":
        position, bits = given_
        bits &= model.partial.get(position, bits)
        if position not in model.acked and bits:
            cursor.acknowledge_partly(position, bits)
            model.partial[position] = bits
    elif what == "again":
        ledger, entries = given_
        back = cursor.unacknowledged(ledger, BitMap(e for e in entries if e <= LAST_ENTRIES[ledger]))
        if back:
            cursor.count_redelivery(ledger, back)
        for entry in back:
            model.counts[Position(ledger, entry)] = model.counts.get(Position(ledger, entry), 0) + 1
    else:
        before = Position(given_.ledger_id, given_.entry_id - 1)
        cursor.reset(before)
        model.acked = {position for position in ALL if position <= before}
        model.partial, model.counts = {}, {}
    model.forget_acked()


def check(cursor: Cursor, model: Model) -> None:
    assert {position for position in ALL if cursor.is_acknowledged(position)} == model.acked
    assert {p: cursor.remaining(p) for p in ALL if cursor.remaining(p)} == model.partial
    assert {p: cursor.redeliveries.count(p) for p in ALL if cursor.redeliveries.count(p)} == model.counts
    marked = model.mark_delete()
    # One position has several names at a segment's end; what follows is the same.
    assert following(cursor.mark_delete, SEGMENTS._views()) == following(marked, SEGMENTS._views())
    for ledger, entries in cursor.acked.items():
        assert entries and (ledger, entries.min()) > cursor.mark_delete


@given(st.lists(steps, max_size=25))
def test_a_cursor_is_the_set_of_what_was_acknowledged(history: list[tuple]) -> None:
    cursor, model = Cursor(KEY, Position(1, -1)), Model()
    for step in history:
        play(cursor, model, step)
        check(cursor, model)


@given(st.lists(st.tuples(steps, st.booleans()), max_size=25))
def test_replaying_its_records_gives_the_cursor_again(history: list[tuple]) -> None:
    cursor, model = Cursor(KEY, Position(1, -1), {"a": "b"}), Model()
    log: list[bytes] = []

    def write() -> None:
        if cursor.is_reset:
            cursor.is_reset = False
            cursor.take_delta()
            log.extend(cursor_record.snapshot(9, cursor))
        else:
            log.append(cursor_record.delta(9, cursor.take_delta()))

    for step, turn_ends in history:
        play(cursor, model, step)
        if turn_ends:
            write()
    write()
    for records in (log, list(cursor_record.snapshot(9, cursor))):
        again = replay(records)
        check(again, model)
        assert again.key == KEY and again.properties == {"a": "b"}


def replay(records: list[bytes]) -> Cursor:
    cursor = None
    for raw in records:
        record = cursor_record.parse(raw)
        assert record.cursor_id == 9
        if record.kind is Kind.BEGIN:
            cursor = record.cursor
        else:
            assert cursor is not None and record.delta is not None
            cursor.apply(record.delta)
    assert cursor is not None
    return cursor


@given(st.lists(steps, max_size=15))
def test_a_delta_after_the_snapshot_that_holds_it_acknowledges_nothing_else(history: list[tuple]) -> None:
    cursor, model = Cursor(KEY, Position(1, -1)), Model()
    cursor.is_reset = False
    for step in history:
        if step[0] not in ("seek", "again"):
            play(cursor, model, step)
    snapshot = list(cursor_record.snapshot(9, cursor))
    check(replay([*snapshot, cursor_record.delta(9, cursor.take_delta())]), model)


def test_a_large_cursor_is_written_in_pieces_that_a_log_takes() -> None:
    cursor = Cursor(KEY, Position(1, -1))
    scattered = BitMap(range(1, 6_000_000, 2))
    cursor.acked.add(7, scattered)
    cursor.redeliveries.add(7, BitMap(range(0, 3_000_000, 2)), 3)
    for entry in range(10000, 20000, 2):
        cursor.partial.put(7, entry, 1 << 70 | 1)
    records = list(cursor_record.snapshot(9, cursor))
    assert max(map(len, records)) < 1024 * 1024
    again = replay(records)
    assert again.acked.get(7) == scattered
    assert again.redeliveries.count(Position(7, 2_999_998)) == 8
    assert again.remaining(Position(7, 19_998)) == 1 << 70 | 1


def test_a_record_that_is_cut_or_changed_is_damage() -> None:
    cursor = Cursor(KEY, Position(1, 3), {"colour": "blue"})
    acknowledge(cursor, 7, {2, 3, 9})
    cursor.acknowledge_partly(Position(7, 5), 6)
    cursor.count_redelivery(7, BitMap([5]))
    for raw in cursor_record.snapshot(9, cursor):
        for end in range(len(raw)):
            with pytest.raises(CorruptionError):
                cursor_record.parse(raw[:end])
        with pytest.raises(CorruptionError):
            cursor_record.parse(raw + b"\0")
        with pytest.raises(CorruptionError):
            cursor_record.parse(b"X" + raw[1:])
        with pytest.raises(CorruptionError):
            cursor_record.parse(raw[:1] + b"\3" + raw[2:])


@given(st.binary(max_size=80))
def test_any_bytes_are_a_record_or_damage(body: bytes) -> None:
    for version, kind in product((1, 2), (1, 2, 3)):
        try:
            cursor_record.parse(b"C" + bytes([version, kind]) + body)
        except CorruptionError:
            pass


@given(st.integers(1, 1 << 200))
def test_words_and_bits_are_each_others_reverse(bits: int) -> None:
    words = cursor_record.words_of(bits)
    assert cursor_record.bits_of(words) == bits
    assert all(-(1 << 63) <= word < 1 << 63 for word in words)


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        ((1, -1), (1, 0)),
        ((1, 5), (4, 0)),
        ((3, 7), (4, 0)),
        ((4, 0), (7, 0)),
        ((7, 9), (7, 10)),
        ((0, 0), (1, 0)),
    ],
)
def test_the_entry_behind_a_position(position: tuple[int, int], expected: tuple[int, int]) -> None:
    assert SEGMENTS.following(Position(*position)) == expected


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        ((-1, -1), (1, 0)),
        ((1, 3), (1, 3)),
        ((1, 6), (4, 0)),
        ((2, 0), (4, 0)),
        ((2**63 - 1, 2**63 - 1), (7, 10)),
    ],
)
def test_a_position_is_clamped_to_what_can_be_read(
    position: tuple[int, int], expected: tuple[int, int]
) -> None:
    assert SEGMENTS.clamp(Position(*position)) == expected


def test_counters_in_bit_slices_count() -> None:
    cursor = Cursor(KEY, Position(1, -1))
    for round_ in range(1, 6):
        cursor.count_redelivery(7, BitMap(range(round_)))
    assert [cursor.redeliveries.count(Position(7, entry)) for entry in range(6)] == [5, 4, 3, 2, 1, 0]
    groups = cursor.redeliveries.split(7, BitMap(range(6)))
    assert {count: list(entries) for count, entries in groups} == {5 - e: [e] for e in range(6)}
    before = copy.copy(list(cursor.redeliveries.items()))
    acknowledge(cursor, 7, {0, 3})
    assert before and [cursor.redeliveries.count(Position(7, entry)) for entry in range(5)] == [0, 4, 3, 0, 1]
