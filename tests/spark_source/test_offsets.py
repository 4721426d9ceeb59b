"""Offsets of a stream: as JSON, where they lie in a partition, what lies between two, and shares of limits."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quire.runtime.errors import ConfigurationError
from quire.spark_source.positions import Window
from quire.spark_source.stream.offsets import (
    BEGINNING,
    Limits,
    Offset,
    Partition,
    from_json,
    limited,
    to_json,
)

TOPIC = "persistent://public/default/t"


def segment(ledger_id: int, first_index: int, entries: int, per_entry: int = 1) -> dict[str, Any]:
    return {
        "ledger_id": ledger_id,
        "first_index": first_index,
        "last_entry": entries - 1,
        "messages": entries * per_entry,
        "bytes": entries * per_entry * 100,
        "archive": None,
    }


def at(index: int, ledger: int, entry: int, batch: int = 0) -> Offset:
    return Offset(batch=batch, entry=entry, index=index, ledger=ledger)


def partition(*segments: dict[str, Any]) -> Partition:
    last = segments[-1]
    end = at(last["first_index"] + last["messages"], last["ledger_id"], last["last_entry"] + 1)
    return Partition(TOPIC, segments, end)


THREE = partition(segment(5, 0, 100), segment(8, 100, 50, 2), segment(9, 200, 10))


def test_equal_offsets_are_equal_texts() -> None:
    offsets = {"b": at(7, 1, 2), "a": at(3, 4, 5, 6)}
    text = json.dumps(to_json(offsets))
    assert text == json.dumps(to_json(dict(reversed(offsets.items()))))
    assert text == json.dumps(json.loads(text), sort_keys=True)
    assert from_json(json.loads(text)) == offsets


@pytest.mark.parametrize("value", [{"a": 7}, {"a": {"index": 1}}, {"a": {"index": "x"}}, ["a"]])
def test_what_is_no_offset_is_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"is not an offset .* another query's"):
        from_json(value)


@pytest.mark.parametrize(
    ("offset", "place", "lost"),
    [
        (BEGINNING, at(0, 5, 0), 0),
        (at(40, 5, 40), at(40, 5, 40), 0),
        (at(100, 5, 100), at(100, 8, 0), 0),  # two names of one place
        (at(103, 8, 1, 1), at(103, 8, 1, 1), 0),
        (at(210, 9, 10), at(210, 9, 10), 0),
    ],
)
def test_where_an_offset_lies(offset: Offset, place: Offset, lost: int) -> None:
    assert THREE.place(offset) == (place, lost)


@pytest.mark.parametrize(("offset", "lost"), [(BEGINNING, 100), (at(40, 5, 40), 60), (at(100, 5, 100), 0)])
def test_what_was_trimmed_is_counted(offset: Offset, lost: int) -> None:
    trimmed = partition(*THREE.segments[1:])
    assert trimmed.place(offset) == (at(100, 8, 0), lost)


@pytest.mark.parametrize(
    "offset",
    [at(211, 9, 11), at(40, 4, 40), at(40, 9, 40), at(150, 5, 150), at(210, 5, 210)],
)
def test_an_offset_of_another_topic_is_refused(offset: Offset) -> None:
    with pytest.raises(ConfigurationError, match=f"{TOPIC}, but .* created again, or the checkpoint"):
        THREE.place(offset)


@pytest.mark.parametrize("known", [0, 7])
def test_the_end_of_a_ledger_is_of_this_topic_only_if_that_ledger_comes_before(known: int) -> None:
    """Though a segment of the topic begins with the very message at which the stream stood."""
    now = replace(THREE, generation=7)
    before = replace(at(100, 3, 40), generation=known)
    with pytest.raises(ConfigurationError, match=r"the previous message is in ledger 5: .* created again"):
        now.place(before)
    assert now.place(replace(at(100, 5, 100), generation=known)).lost == 0


@pytest.mark.parametrize("segments", [THREE.segments[1:], ()])
def test_where_the_ledger_before_was_trimmed_the_generation_decides(
    segments: tuple[dict[str, Any], ...],
) -> None:
    end = at(210, 9, 10) if segments else at(100, -1, 0)
    now = Partition(TOPIC, segments, end, generation=7)
    for same in (0, 7):
        assert now.place(replace(at(100, 5, 100), generation=same)).lost == 0
    for index in (40, 100):
        with pytest.raises(ConfigurationError, match="its generation is 7, but the offset's is 6"):
            now.place(replace(at(index, 5, index), generation=6))


def test_offsets_of_a_version_without_generations_keep_their_text() -> None:
    text = '{"a": {"batch": 6, "entry": 5, "index": 3, "ledger": 4}}'
    assert json.dumps(to_json(from_json(json.loads(text)))) == text
    newer = to_json({"a": replace(at(3, 4, 5, 6), generation=9)})
    assert json.dumps(newer) == json.dumps(newer, sort_keys=True)
    assert from_json(newer)["a"].generation == 9


def test_a_trimmed_offset_of_another_topic_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="begins with message 100 in ledger 8"):
        partition(*THREE.segments[1:]).place(at(40, 11, 40))


def test_a_topic_without_messages() -> None:
    never = Partition(TOPIC, (), at(0, -1, 0))
    assert never.place(BEGINNING) == (BEGINNING, 0)
    trimmed = Partition(TOPIC, (), at(300, 12, 0))
    assert trimmed.place(at(300, 9, 10)) == (at(300, 9, 10), 0)
    assert trimmed.place(at(210, 9, 10)) == (at(300, 12, 0), 90)


def test_slices_between_two_offsets() -> None:
    found = list(THREE.between(at(40, 5, 40), at(103, 8, 1, 1)))
    assert [(one.origin.ledger_id, one.first_entry, one.end_entry) for one in found] == [
        (5, 40, 100),
        (8, 0, 2),
    ]
    assert found[1].window == Window((0, 0), (1, 1))
    assert list(THREE.between(at(100, 5, 100), at(100, 8, 0))) == []


@given(
    st.integers(0, 210),
    st.integers(0, 210),
    st.one_of(st.none(), st.integers(1, 300)),
    st.one_of(st.none(), st.integers(1, 30_000)),
)
@example(0, 107, None, 299)
def test_limits_hold_and_each_partition_moves(
    one: int, other: int, rows: int | None, size: int | None
) -> None:
    partitions = {"a": THREE, "b": THREE}
    starts = {"a": one, "b": other}
    ends = limited(partitions, starts, Limits(rows, size))
    news = {name for name, start in starts.items() if start < 210}
    assert ends.keys() == news or (ends.keys() <= news and len(ends) == rows)
    assert all(starts[name] < end <= 210 for name, end in ends.items())
    total = sum(end - starts[name] for name, end in ends.items())
    if rows is not None:
        assert total <= rows
    if size is not None:  # a message of each partition may come on top: it moves, though its share is less
        assert 100 * total <= size + 100 * len(ends)
    if rows is size is None:
        assert all(end == 210 for end in ends.values())


@given(st.lists(st.integers(1, 200), min_size=1, max_size=12), st.integers(1, 400))
def test_a_limit_of_rows_is_never_passed(waiting: list[int], limit: int) -> None:
    starts = {f"p{i}": 210 - rows for i, rows in enumerate(waiting)}
    partitions = dict.fromkeys(starts, THREE)
    while news := {name for name, start in starts.items() if start < 210}:
        left = sum(210 - start for start in starts.values())
        ends = limited(partitions, starts, Limits(rows=limit))
        total = sum(end - starts[name] for name, end in ends.items())
        assert min(limit, left) - len(news) < total <= limit
        assert ends.keys() == news or (len(ends) == limit < len(news))
        starts |= ends


@given(st.integers(2, 30), st.integers(1, 29))
def test_partitions_take_turns_where_the_limit_is_less_than_they_are(count: int, limit: int) -> None:
    starts = {f"p{i:02}": 0 for i in range(count)}
    partitions = dict.fromkeys(starts, THREE)
    for _ in range(-(-count // limit)):
        starts |= limited(partitions, starts, Limits(rows=limit))
    assert all(starts.values())
