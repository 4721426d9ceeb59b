"""Partly acknowledged entries against a plain dict, and what a million of them take."""

from __future__ import annotations

import tracemalloc
from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from quire.serving.model.ports import Position
from quire.serving.subscription.cursor import cursor_record, partial_acks
from quire.serving.subscription.cursor.cursor import Cursor, CursorKey
from quire.serving.subscription.cursor.partial_acks import PartialAcks, width_of

LEDGERS = (1, 7)
ENTRIES_MAX = 40

positions = st.builds(Position, st.sampled_from(LEDGERS), st.integers(0, ENTRIES_MAX - 1))
bits = st.one_of(st.integers(1, 255), st.integers(1, (1 << 70) - 1))
groups = st.tuples(st.sampled_from(LEDGERS), st.sets(st.integers(0, ENTRIES_MAX - 1)))
steps = st.one_of(
    st.tuples(st.just("put"), st.tuples(positions, bits)),
    st.tuples(st.just("put"), st.tuples(positions, bits)),
    st.tuples(st.just("remove"), groups),
    st.tuples(st.just("up to"), positions),
    st.tuples(st.just("record"), st.none()),
)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 16 bytes: every history crosses their walls."""
    monkeypatch.setattr(partial_acks, "CHUNK_BYTES", 16)


def play(made: PartialAcks, model: dict[Position, int], what: str, given_: object) -> PartialAcks:
    match what, given_:
        case "put", (Position() as position, int(left)):
            made.put(*position, left)
            model[position] = left
        case "remove", (int(ledger), set(entries)):
            made.remove(ledger, BitMap(entries))
            for entry in entries:
                model.pop(Position(ledger, entry), None)
        case "up to", Position() as position:
            made.remove_up_to(position)
            for one in [one for one in model if one <= position]:
                del model[one]
        case _:
            again = PartialAcks()
            for chunk in made.chunks():
                again.merge(chunk)
            return again
    return made


def check(made: PartialAcks, model: dict[Position, int]) -> None:
    every = [Position(ledger, entry) for ledger in LEDGERS for entry in range(ENTRIES_MAX)]
    assert {one: made.get(*one) for one in every if made.get(*one)} == model
    assert len(made) == len(model) and bool(made) == bool(model)
    assert made.ledgers() == {one.ledger_id for one in model}
    for ledger in LEDGERS:
        mine = {one.entry_id: left for one, left in model.items() if one.ledger_id == ledger}
        for first, stop in ((0, ENTRIES_MAX), (3, 20), (5, 6), (9, 9)):
            inside = [entry for entry in mine if first <= entry < stop]
            assert set(made.between(ledger, first, stop)) == set(inside)
            assert made.touches(ledger, first, stop) == bool(inside)
            wanted = BitMap(range(first, stop))
            assert made.within(ledger, wanted) == BitMap(inside)
            assert made.left(ledger, wanted) == sum(mine[entry].bit_count() for entry in inside)


@settings(max_examples=200, deadline=None)
@given(st.lists(steps, max_size=30))
def test_it_is_a_dict_of_bits(history: list[tuple[str, object]]) -> None:
    made, model = PartialAcks(), dict[Position, int]()
    for what, given_ in history:
        made = play(made, model, what, given_)
        check(made, model)


@given(st.dictionaries(positions, bits), st.dictionaries(positions, bits))
def test_what_two_records_say_is_what_both_have_left(
    one: dict[Position, int], other: dict[Position, int]
) -> None:
    made = PartialAcks()
    for source in (one, other):
        told = PartialAcks()
        for position, left in source.items():
            # What an entry has left never is nothing: then it would be acknowledged.
            told.put(*position, left | 1)
        for chunk in told.chunks():
            made.merge(chunk)
    expected = {
        at: (one.get(at, -1) | 1) & (other.get(at, -1) | 1) for at in {*one, *other}
    }  # fmt: skip
    check(made, expected)


@pytest.mark.parametrize(("left", "width"), [(1, 1), (255, 1), (256, 2), (1 << 23, 4), (1 << 64, 16)])
def test_widths(left: int, width: int) -> None:
    assert width_of(left) == width


def test_a_million_batches_of_ten_take_a_few_bytes_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    cursor = Cursor(CursorKey("t", 0, "s"), Position(1, -1))
    tracemalloc.start()
    try:
        for first in range(0, 1_000_000, 1 << 14):
            entries = BitMap(range(first, min(first + (1 << 14), 1_000_000)))
            left = (0b11_1111_1110).to_bytes(2, "little") * len(entries)
            cursor.partial.merge(partial_acks.Chunk(1, 2, entries, left))
        assert tracemalloc.get_traced_memory()[0] < 4 << 20
    finally:
        tracemalloc.stop()
    assert len(cursor.partial) == 1_000_000
    records = list(cursor_record.snapshot(1, cursor))
    assert sum(map(len, records)) < 3 << 20 and max(map(len, records)) < 1 << 20


def test_one_huge_batch_does_not_widen_the_others() -> None:
    made = PartialAcks()
    made.put(1, 5, 1 << 999_999 | 1)
    for entry in range(6, 1000):
        made.put(1, entry, 3)
    assert sum(len(chunk.bits) for chunk in made.chunks()) < 200_000
    assert made.get(1, 5) == 1 << 999_999 | 1
    made.put(1, 6, 1 << 20)
    assert made.get(1, 6) == 1 << 20 and len(made) == 995


def test_records_of_the_first_version_are_read() -> None:
    """Each partly acknowledged entry by itself: 8 ledger, 8 entry, 2 words, 8 each."""
    head = b"C\x01\x02" + pack(">Q", 9)
    raw = head + pack(">qqIII", 1, 3, 0, 2, 0) + pack(">QQHQ", 1, 5, 1, 6) + pack(">QQHQQ", 2, 0, 2, 1, 1)
    delta = cursor_record.parse(raw).delta
    assert delta is not None and delta.mark_delete == (1, 3)
    made = PartialAcks()
    for chunk in delta.partial:
        made.merge(chunk)
    assert (made.get(1, 5), made.get(2, 0)) == (6, 1 << 64 | 1)
