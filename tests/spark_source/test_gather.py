"""Values gathered out of a chunk: what is copied as a table is what one copy for each would give."""

from __future__ import annotations

from random import Random

import numpy as np
import pyarrow as pa
import pytest

from quire.spark_source import columns
from quire.spark_source.columns import gather
from quire.spark_source.protobuf import Bytes

DATA = Random(7).randbytes(40_000)


def gathered(places: list[tuple[int, int]]) -> list[bytes]:
    start, end = np.array(places, np.int64).reshape(-1, 2).T
    array = gather(Bytes(DATA), start, end)
    array.validate(full=True)
    assert array.type == pa.binary()
    return [bytes(value) for value in array.to_pylist()]


def expected(places: list[tuple[int, int]]) -> list[bytes]:
    return [DATA[start:end] for start, end in places]


def series(first: int, count: int, size: int, distance: int) -> list[tuple[int, int]]:
    return [(at, at + size) for at in range(first, first + count * distance, distance)]


@pytest.mark.parametrize(
    ("places", "is_table"),
    [
        (series(0, 100, 20, 33), True),
        (series(5, 16, 1, 1), True),
        (series(0, 400, 100, 100), True),  # to the last byte
        (series(0, 50, 20, 33) + series(2_001, 50, 20, 33) + series(30_000, 60, 20, 33), True),
        (series(30_000, 50, 20, 33) + series(0, 50, 20, 33), True),  # one that lies before
        (series(0, 1, 20, 33) + series(500, 99, 20, 33), True),  # the first distance is no other's
        (series(0, 100, 20, 33) + series(9_000, 100, 20, 34), False),
        ([*series(0, 100, 20, 33), (9_000, 9_021)], False),
        (series(0, 100, 0, 33), False),
        (series(0, 100, 20, 10), False),  # they overlap
        (series(0, 15, 20, 33), False),
        ([], False),
    ],
)
def test_values_of_one_length_are_copied_as_a_table(
    places: list[tuple[int, int]], is_table: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, end = np.array(places, np.int64).reshape(-1, 2).T
    assert (columns._gather_alike(Bytes(DATA), start, end) is not None) == is_table
    assert gathered(places) == expected(places)
    monkeypatch.setattr(columns, "_gather_alike", lambda *_: None)
    assert gathered(places) == expected(places)


def test_any_places_give_their_bytes() -> None:
    rng = Random(11)
    for _ in range(300):
        places: list[tuple[int, int]] = []
        for _ in range(rng.randrange(1, 4)):
            size, gap = rng.randrange(0, 40), rng.randrange(0, 20)
            places += series(rng.randrange(0, 20_000), rng.randrange(1, 120), size, max(1, size + gap))
        if rng.random() < 0.3:
            rng.shuffle(places)
        assert gathered(places) == expected(places)
