"""What every index promises: the one that lasts and the fake that crashes."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.bookie.index import Index, IndexRow, find_hole
from quire.bookie.index_lmdb import LmdbIndex
from quire.testing.index import MemoryIndex

Reopen = Callable[[Index], Index]


@pytest.fixture(params=["memory", "lmdb", "lmdb, map that must grow"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Index, Reopen]:
    """An index and how its next process finds it."""
    if request.param == "memory":
        return MemoryIndex(), lambda index: index.crash()
    map_bytes = 1 << 30 if request.param == "lmdb" else 1 << 16

    def reopen(index: Index) -> Index:
        index.close()
        return LmdbIndex(tmp_path / "index", map_bytes=map_bytes)

    return LmdbIndex(tmp_path / "index", map_bytes=map_bytes), reopen


def row(
    ledger_id: int, first: int, last: int, log_id: int = 1, offset: int = 48, length: int = 100
) -> IndexRow:
    return IndexRow(
        ledger_id, first, last, log_id, offset, length, 1000 + first * 10, 1000 + last * 10, first - 1
    )


def test_an_empty_index_knows_nothing(opened: tuple[Index, Reopen]) -> None:
    index, _ = opened
    assert index.find(1, 0) is None
    assert index.rows(1, 0, 10) == []
    assert index.last_entry(1) == -1
    assert index.find_time(1, 0) == 0
    assert list(index.ledgers()) == []
    assert index.mark() == b""
    assert index.usage() == {}
    index.verify()


def test_an_entry_is_found_in_the_run_that_holds_it_and_nowhere_else(opened: tuple[Index, Reopen]) -> None:
    index, _ = opened
    rows = [row(1, 0, 9), row(1, 10, 19), row(1, 30, 39), row(2, 5, 5), row(1 << 63, 7, 8)]
    index.commit(rows, {}, b"m")
    assert index.find(1, 0) == index.find(1, 9) == rows[0]
    assert index.find(1, 10) == rows[1]
    assert index.find(1, 20) is index.find(1, 29) is None
    assert index.find(1, 39) == rows[2]
    assert index.find(1, 40) is index.find(2, 4) is index.find(2, 6) is index.find(0, 0) is None
    assert index.find(1 << 63, 8) == rows[4]
    assert [index.last_entry(ledger_id) for ledger_id in (0, 1, 2, 3, 1 << 63)] == [-1, 39, 5, -1, 8]


def test_rows_begin_where_the_entry_is_or_after_it(opened: tuple[Index, Reopen]) -> None:
    index, _ = opened
    rows = [row(1, 0, 9), row(1, 10, 19), row(1, 30, 39), row(2, 0, 0)]
    index.commit(rows, {}, b"m")
    assert index.rows(1, 5, 2) == rows[:2]
    assert index.rows(1, 20, 9) == index.rows(1, 35, 9) == rows[2:3]
    assert index.rows(1, 40, 9) == []
    assert index.rows(1, 0, 0) == []


def test_a_time_is_found_at_its_run(opened: tuple[Index, Reopen]) -> None:
    index, _ = opened
    index.commit([row(1, 5, 9), row(1, 10, 19), row(1, 1000, 1009), row(2, 0, 0)], {}, b"m")
    assert index.find_time(1, 0) == 5
    assert index.find_time(1, 1090) == 5
    assert index.find_time(1, 1091) == 10
    assert index.find_time(1, 1191) == 1000
    assert index.find_time(1, 11_090) == 1000
    assert index.find_time(1, 11_091) == 1010


def test_the_first_hole_is_found_over_many_rows_and_what_is_only_in_memory(
    opened: tuple[Index, Reopen],
) -> None:
    index, _ = opened
    index.commit([row(1, 2 * i, 2 * i + 1) for i in range(1_200) if i not in (7, 1_100)], {}, b"")
    assert find_hole(index, [], 1, 0, 5_000) == 14
    assert find_hole(index, [(14, 14)], 1, 3, 5_000) == 15
    assert find_hole(index, [(14, 15), (16, 17)], 1, 0, 2_000) == 2_001
    assert find_hole(index, [(14, 15), (2_200, 2_201)], 1, 0, 2_399) == 2_400
    assert find_hole(index, [(14, 15), (2_200, 2_201), (2_400, 2_450)], 1, 0, 5_000) == 2_451
    assert find_hole(index, [], 1, 16, 5_000) == 2_200
    assert find_hole(index, [], 2, 5, 9) == 5


def test_everything_of_a_commit_is_found_by_the_next_process(opened: tuple[Index, Reopen]) -> None:
    index, reopen = opened
    index.commit([row(1, 0, 9)], {1: b"fenced", 7: b""}, b"mark 1")
    index.commit([row(2, 0, 3, log_id=2)], {2: b"open"}, b"mark 2")
    index = reopen(index)
    assert list(index.ledgers()) == [(1, b"fenced"), (2, b"open"), (7, b"")]
    assert index.mark() == b"mark 2"
    assert index.find(1, 3) == row(1, 0, 9) and index.find(2, 3) == row(2, 0, 3, log_id=2)
    assert index.usage() == {1: 100, 2: 100}
    index.close()


def test_a_deleted_ledger_leaves_its_tombstone_and_no_bytes(opened: tuple[Index, Reopen]) -> None:
    index, reopen = opened
    index.commit([row(1, 0, 9), row(1, 10, 19, log_id=2), row(2, 0, 9)], {1: b"x", 2: b"y", 3: b"z"}, b"1")
    index.commit([], {1: b"tombstone"}, b"2", deleted=[1, 3, 99])
    index = reopen(index)
    assert index.rows(1, 0, 9) == []
    assert list(index.ledgers()) == [(1, b"tombstone"), (2, b"y")]
    assert index.usage() == {1: 100, 2: 0}
    assert index.find(2, 0) is not None
    index.close()


def test_a_flush_that_is_done_again_counts_once(opened: tuple[Index, Reopen]) -> None:
    index, _ = opened
    index.commit([row(1, 0, 9), row(2, 0, 9)], {}, b"1")
    index.commit([row(1, 0, 9, log_id=2), row(2, 0, 9), row(3, 0, 9)], {}, b"2")
    assert index.usage() == {1: 200, 2: 100}
    assert index.find(1, 0) == row(1, 0, 9, log_id=2)
    index.verify()


def test_compaction_swaps_rows(opened: tuple[Index, Reopen]) -> None:
    index, reopen = opened
    old = [row(1, 0, 9), row(1, 10, 19)]
    index.commit([*old, row(2, 0, 0)], {}, b"1")
    index.replace(old, [row(1, 0, 19, log_id=5, length=200)])
    index = reopen(index)
    assert index.rows(1, 0, 9) == [row(1, 0, 19, log_id=5, length=200)]
    assert index.usage() == {1: 100, 5: 200}
    assert index.mark() == b"1"
    index.close()


def test_rows_that_are_not_there_cannot_be_swapped(opened: tuple[Index, Reopen]) -> None:
    index, _ = opened
    index.commit([row(1, 0, 9)], {}, b"1")
    with pytest.raises((AssertionError, ValueError)):
        index.replace([row(1, 0, 9, offset=9999)], [row(1, 0, 9, log_id=2)])


def test_a_log_is_dropped_only_when_empty_and_a_held_one_is_not_empty(opened: tuple[Index, Reopen]) -> None:
    index, reopen = opened
    index.commit([row(1, 0, 9)], {}, b"1")
    index.hold(4, 10)
    with pytest.raises(AssertionError):
        index.drop_log(4)
    with pytest.raises(AssertionError):
        index.drop_log(1)
    index.commit([], {}, b"2", deleted=[1])
    index.drop_log(1)
    index = reopen(index)
    assert index.usage() == {4: 10}
    index.close()


LEDGERS = st.integers(0, 3)


@settings(max_examples=40, deadline=None)
@given(
    history=st.lists(
        st.one_of(
            st.lists(st.tuples(LEDGERS, st.integers(1, 5), st.integers(0, 2)), min_size=1, max_size=8),
            st.sets(LEDGERS, min_size=1, max_size=2),
        ),
        max_size=12,
    )
)
def test_both_indexes_answer_alike(history: list[object], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Random flushes and deletes: every question has the same answer, before and after a restart."""
    path = tmp_path_factory.mktemp("index")
    lasting: Index = LmdbIndex(path, map_bytes=1 << 20)
    fake: Index = MemoryIndex()
    ends: dict[int, int] = {}
    for number, step in enumerate(history):
        rows: list[IndexRow] = []
        if isinstance(step, list):
            for ledger_id, count, gap in step:
                first = ends.get(ledger_id, 0) + gap
                ends[ledger_id] = first + count
                rows.append(row(ledger_id, first, first + count - 1, log_id=number))
        deleted = step if isinstance(step, set) else set()
        for index in (lasting, fake):
            index.commit(sorted(rows), dict.fromkeys(deleted, b"gone"), b"%d" % number, deleted)
    lasting.close()
    lasting = LmdbIndex(path, map_bytes=1 << 20)
    assert list(lasting.ledgers()) == list(fake.ledgers())
    assert (lasting.usage(), lasting.mark()) == (fake.usage(), fake.mark())
    for ledger_id in range(4):
        assert lasting.last_entry(ledger_id) == fake.last_entry(ledger_id)
        for entry_id in range(ends.get(ledger_id, 0) + 2):
            assert lasting.find(ledger_id, entry_id) == fake.find(ledger_id, entry_id)
            assert lasting.rows(ledger_id, entry_id, 3) == fake.rows(ledger_id, entry_id, 3)
            time_ms = 1000 + entry_id * 10
            assert lasting.find_time(ledger_id, time_ms) == fake.find_time(ledger_id, time_ms)
    lasting.verify()
    lasting.close()
