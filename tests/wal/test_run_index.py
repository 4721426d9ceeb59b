"""The index finds what is in the rows of any number of objects, as a walk over all of them would."""

from __future__ import annotations

import random

import pytest

from quire.wal.run_index import Run, RunIndex, RunTable
from quire.wal.wal_object import ROW, SET_ROW


def table(name: str, rows: list[tuple[int, ...]]) -> RunTable:
    row = ROW if len(rows[0]) == 6 else SET_ROW
    return RunTable(name, b"".join(row.pack(*each) for each in sorted(rows)), row)


def test_a_run_is_found_wherever_it_lies() -> None:
    index = RunIndex()
    index.add(table("a", [(1, 0, 9, 96, 50, 7), (1, 10, 12, 146, 9, 8), (3, 5, 5, 155, 4, 9)]))
    index.add(table("b", [(1, 13, 20, 96, 60, 1, 1_013), (1, 30, 31, 156, 6, 2, 1_031)]))
    assert index.find(1, 11) == Run("a", 1, 10, 12, 146, 9, 8)
    assert index.find(1, 20) == Run("b", 1, 13, 20, 96, 60, 1, 1_013)
    assert index.find(1, 21) is None and index.find(2, 0) is None
    assert [row.first_entry for row in index.rows(1, 11, 9)] == [10, 13, 30]
    assert [row.first_entry for row in index.rows(1, 22, 9)] == [30]
    assert (index.last_entry(1), index.last_entry(2), index.bytes_of(1)) == (31, -1, 125)
    index.remove("b")
    assert index.last_entry(1) == 12 and index.rows(1, 13, 9) == []


def test_what_is_in_two_objects_is_found_as_long_as_one_is_there() -> None:
    index = RunIndex()
    index.add(table("data 1", [(1, 0, 4, 96, 10, 0)]))
    index.add(table("data 2", [(1, 5, 9, 96, 10, 0)]))
    index.add(table("set", [(1, 0, 9, 96, 20, 0, 1_009)]))
    assert [row.last_entry for row in index.rows(1, 0, 9)][-1] == 9
    index.remove("data 1")
    index.remove("data 2")
    assert [row.object_name for row in index.rows(1, 3, 9)] == ["set"]


def test_an_object_without_life_is_one_whose_ledgers_are_all_dead() -> None:
    index = RunIndex()
    index.add(table("a", [(1, 0, 0, 96, 1, 0), (2, 0, 0, 97, 1, 0)]))
    index.add(table("b", [(2, 1, 1, 96, 1, 0)]))
    assert index.without_life([]) == set()
    assert index.without_life([1]) == set()
    assert index.without_life([2]) == {"b"}
    assert index.without_life([1, 2, 9]) == {"a", "b"}


def test_a_time_is_found() -> None:
    index = RunIndex()
    index.add(table("set", [(1, 0, 9, 96, 1, 0, 1_009), (1, 10, 19, 97, 1, 0, 1_019)]))
    assert [index.find_time(1, ms) for ms in (0, 1_009, 1_010, 1_019, 1_020)] == [0, 0, 10, 10, 20]
    index.add(table("data", [(1, 20, 24, 96, 1, 0)]))
    assert index.find_time(1, 5_000) == 20, "what tells no clocks may hold any"
    assert index.find_time(2, 0) == 0


@pytest.mark.parametrize("seed", range(20))
def test_as_a_walk_over_all_rows(seed: int) -> None:
    rng = random.Random(seed)
    index, known = RunIndex(), {}
    for number in range(30):
        rows = []
        for ledger_id in rng.sample(range(4), rng.randint(1, 4)):
            entry = rng.randrange(40)
            for _ in range(rng.randint(1, 3)):
                last = entry + rng.randrange(5)
                rows.append((ledger_id, entry, last, 96, 10, number))
                entry = last + 1 + rng.randrange(3)
        known[f"o{number}"] = rows
        index.add(table(f"o{number}", rows))
        if rng.random() < 0.4:
            gone = rng.choice(list(known))
            index.remove(gone)
            del known[gone]
        for ledger_id in range(4):
            held = {
                e
                for rows in known.values()
                for row in rows
                if row[0] == ledger_id
                for e in range(row[1], row[2] + 1)
            }
            assert index.last_entry(ledger_id) == max(held, default=-1)
            for entry in range(60):
                assert (index.find(ledger_id, entry) is not None) == (entry in held), (seed, ledger_id, entry)


def test_random_overlaps_are_found_as_a_walk_over_all_rows_finds_them() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        ends = sorted(rng.sample(range(1, 120), rng.randint(1, 40)))
        blocks = list(zip([0, *ends], [end - 1 for end in ends], strict=False))
        index, known = RunIndex(), {}
        for number in range(rng.randint(1, 8)):
            share = rng.choice((0.2, 0.6, 0.95))
            if some := [each for each in blocks if rng.random() < share]:
                known[f"object {number}"] = some
                index.add(table(f"object {number}", [(7, *each, 96, 10, 0) for each in some]))
        for name in [name for name in known if rng.random() < 0.2]:
            index.remove(name)
            del known[name]
        rows = [each for some in known.values() for each in some]
        for entry in range(ends[-1] + 1):
            found = index.next(7, entry)
            after = [first for first, last in rows if last >= entry]
            if any(first <= entry <= last for first, last in rows):
                assert found is not None and found.first_entry <= entry <= found.last_entry, seed
            else:
                assert (found and found.first_entry) == (min(after) if after else None), seed
        assert index.last_entry(7) == max((last for _, last in rows), default=-1)
        assert index.bytes_of(7) == 10 * len(rows)
        for name in known:
            index.remove(name)
        assert index.size_bytes == 0 and index.next(7, 0) is None


def test_a_thousand_objects_of_one_ledger_cost_a_look_up_little() -> None:
    """Counted in rows that are looked at, not in time."""
    looked = 0

    class Counted(RunTable):
        def at(self, ledger_id: int, entry: int) -> Run | None:
            nonlocal looked
            looked += 1
            return super().at(ledger_id, entry)

    index = RunIndex()
    for seq in range(1_000):
        index.add(Counted(f"{seq:04}", ROW.pack(7, seq, seq, 96, 10, 0), ROW))
    assert index.bytes_of(7) == 10_000 and looked == 0
    assert len(index.rows(7, 900, 20)) == 20 and looked < 100
    assert index.find(7, 1_000) is None and looked < 100
