"""The histogram of latencies: its percentiles against exact ones, and its sums against one histogram of all values."""

from __future__ import annotations

import json
from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from quire.perf.histogram import RELATIVE_ERROR_MAX, LatencyHistogram, bucket_of, highest_of

HOUR_NS = 3_600_000_000_000
latencies = st.one_of(st.integers(0, 5_000), st.integers(0, 50_000_000), st.integers(0, HOUR_NS))
samples = st.lists(latencies, min_size=1, max_size=300)


def histogram_of(values: list[int]) -> LatencyHistogram:
    made = LatencyHistogram()
    for value in values:
        made.record(value)
    return made


@given(latencies)
def test_a_bucket_is_narrow_and_holds_its_value(value: int) -> None:
    highest = highest_of(bucket_of(value))
    assert value <= highest <= value * (1 + RELATIVE_ERROR_MAX)
    assert bucket_of(highest) == bucket_of(value) == bucket_of(highest + 1) - 1


@given(samples, st.sampled_from([0.1, 1.0, 25.0, 50.0, 95.0, 99.0, 99.9, 100.0]))
def test_percentiles_are_exact_to_the_resolution(values: list[int], percent: float) -> None:
    exact = sorted(values)[max(1, ceil(percent * len(values) / 100)) - 1]
    assert exact <= histogram_of(values).percentile(percent) <= exact * (1 + RELATIVE_ERROR_MAX)


@given(samples)
def test_extremes_sum_and_count_are_exact(values: list[int]) -> None:
    made = histogram_of(values)
    assert (made.min, made.max, made.sum, made.count) == (min(values), max(values), sum(values), len(values))
    assert made.percentile(100) == max(values)


@given(st.lists(st.lists(latencies, max_size=50), max_size=6))
def test_sums_over_processes_lose_nothing(parts: list[list[int]]) -> None:
    """Each process sends its histogram as JSON."""
    whole, added = histogram_of([value for part in parts for value in part]), LatencyHistogram()
    for part in parts:
        added.add(LatencyHistogram.from_json(json.loads(json.dumps(histogram_of(part).as_json()))))
    assert added.as_json() | {"counts": sorted(added.counts)} == whole.as_json() | {
        "counts": sorted(whole.counts)
    }
    assert (added.counts, added.count) == (whole.counts, whole.count)
    assert added.summary_ms() == whole.summary_ms()


@given(samples, st.lists(st.integers(1, HOUR_NS), unique=True, max_size=8))
def test_rows_of_the_printed_histogram_count_each_value_once(values: list[int], bounds: list[int]) -> None:
    made = histogram_of(values)
    counts = [*made.between([*sorted(bounds), 2 * HOUR_NS])]
    assert sum(counts) == len(values)


def test_an_empty_histogram_and_a_clock_that_is_behind() -> None:
    made = LatencyHistogram()
    assert (made.percentile(99), made.summary_ms()["max"]) == (0, 0)
    made.record(-5)
    assert (made.count, made.min, made.max) == (1, 0, 0)
