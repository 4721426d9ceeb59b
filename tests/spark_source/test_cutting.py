"""Tasks even in bytes, out of segments of all sizes; and each entry in one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.runtime.limits import MIB
from quire.spark_source import cutting
from quire.spark_source.cutting import Cut, Task, cuts_of, evenly, gathered
from quire.spark_source.options import parse
from quire.spark_source.plan import Slice, origin_of
from quire.spark_source.positions import Window
from quire.spark_source.source import QuireReader
from quire.wire.message import OutgoingMessage, encode_one

TIME_MS = 1_700_000_000_000
TOPIC = "persistent://public/default/t"


def piece(ledger_id: int, size: int, entries: int = 1000, first: int = 0) -> Slice:
    window = Window().narrowed(first, entries)
    return Slice(origin_of(TOPIC, ledger_id), first, entries, window, archived=None, bytes=size)


def made(sizes: list[int], slice_bytes: int, entries: int = 1000) -> list[Task]:
    pieces = [piece(number, size, entries) for number, size in enumerate(sizes)]
    return list(gathered(pieces, cuts_of(sizes, slice_bytes), evenly))


def sizes_of(tasks: list[Task]) -> list[int]:
    return [sum(one.bytes for one in task) for task in tasks]


def test_many_small_segments_become_one_task() -> None:
    assert [len(task) for task in made([100_000] * 500, 96 * MIB)] == [500]
    many = made([MIB] * 500, 96 * MIB)
    assert len(many) == 4
    assert all(64 * MIB <= size <= 128 * MIB for size in sizes_of(many))


def test_a_large_segment_becomes_many_tasks_and_shares_its_ends_with_its_neighbours() -> None:
    tasks = made([10 * MIB, 900 * MIB, 20 * MIB], 96 * MIB)
    assert len(tasks) == 8
    assert all(115 * MIB <= size <= 117 * MIB for size in sizes_of(tasks))
    assert [one.origin.ledger_id for one in tasks[0]] == [0, 1]
    assert [one.origin.ledger_id for one in tasks[-1]] == [1, 2]


def test_nothing_and_little() -> None:
    assert made([], 96 * MIB) == []
    assert [len(task) for task in made([0, 0, 1], 96 * MIB)] == [3]
    assert cuts_of([0, 10, 0, 10], 10) == [Cut(1, 1.0)]


@given(
    st.lists(st.tuples(st.integers(0, 500), st.integers(1, 40), st.integers(0, 20)), max_size=12),
    st.integers(1, 400),
    st.randoms(use_true_random=False),
)
def test_each_entry_is_in_one_task_whatever_is_said_of_bytes(
    parts: list[tuple[int, int, int]], slice_bytes: int, dice: Any
) -> None:
    pieces = [
        piece(number, size, first + entries, first) for number, (size, entries, first) in enumerate(parts)
    ]
    cuts = cuts_of([one.bytes for one in pieces], slice_bytes)
    tasks = list(gathered(pieces, cuts, lambda one, _: dice.randint(one.first_entry - 1, one.end_entry + 1)))
    assert all(tasks)
    found = [
        (one.origin.ledger_id, entry)
        for task in tasks
        for one in task
        for entry in range(one.first_entry, one.end_entry)
    ]
    assert found == [
        (one.origin.ledger_id, entry) for one in pieces for entry in range(one.first_entry, one.end_entry)
    ]
    assert all(
        one.window == Window().narrowed(one.first_entry, one.end_entry) for task in tasks for one in task
    )


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=30), st.integers(100, 1000))
def test_tasks_are_even_in_bytes(sizes: list[int], slice_bytes: int) -> None:
    tasks = made(sizes, slice_bytes, entries=10_000)
    found = sizes_of(tasks)
    mean = sum(sizes) / len(tasks)
    assert mean <= slice_bytes * 4 / 3 + 1
    assert len(tasks) == 1 or mean >= slice_bytes * 2 / 3 - 1
    assert all(abs(size - mean) <= 2 * len(sizes) + 4 for size in found)


# -- with the archive ------------------------------------------------------------------------------------


def entry(number: int, size: int) -> bytes:
    return encode_one(OutgoingMessage(b"%09d" % number + bytes(size)), "p", number, TIME_MS)


@pytest.fixture
def uneven(broker: Any, archivist: Any) -> Any:
    """A segment of 3,000 small messages and then 60 large ones, 6 MB in all."""
    entries = [entry(number, 10 if number < 3000 else 100_000) for number in range(3060)]
    broker.topics[TOPIC] = [broker.segment(3, entries, per_block=10)]
    archivist.archive(broker.topics[TOPIC][0])
    return broker


def plan(broker: Any) -> tuple[QuireReader, list[Any]]:
    rows = QuireReader(parse({"service_url": broker.url, "topic": "t", "slice_bytes": "1MiB"}))
    return rows, rows.partitions()


def test_a_cut_in_an_archived_segment_goes_by_its_index(uneven: Any) -> None:
    rows, partitions = plan(uneven)
    assert len(partitions) == 5
    sizes, numbers = [], []
    for partition in partitions:
        batches = list(rows.read(partition))
        sizes.append(sum(batch.nbytes for batch in batches))
        numbers += [index for batch in batches for index in batch.column("message_index").to_pylist()]
    assert numbers == list(range(3060))
    assert max(sizes) < 2.5 * min(sizes), "blocks are of a MB, so a cut is not exact"


def test_without_the_index_cuts_go_by_entries(
    uneven: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", cutting.__name__)
    uneven.topics[TOPIC][0].on_broker = True
    (tmp_path / "archive" / uneven.topics[TOPIC][0].archive["name"]).unlink()
    rows, partitions = plan(uneven)
    assert [one.end_entry for partition in partitions for one in partition.value] == [
        612,
        1224,
        1836,
        2448,
        3060,
    ]
    assert "by entries, because" in caplog.text
    assert sum(batch.num_rows for partition in partitions for batch in rows.read(partition)) == 3060
