"""Metrics: kinds, values, and a histogram that is cheap enough for data paths.

    packages keep plain numbers ─▶ a source: names to values ─▶ `exposition`: Prometheus' text, on request

Every metric is a row of `metric_table`, which documents it; a source only returns values. A value is a number or a
`Histogram`. For a metric with labels, it is a mapping from label values, in the order of the row.

Counters are not incremented per message, but once per group, block or iteration of the event loop, by the number of
messages in it. Without scrapes, metrics have no other cost.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

LATENCY_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0)
"""Upper bounds of latency buckets in seconds. There are only twelve, because each is a time series."""

UNITS: Final = ("seconds", "bytes", "messages", "ratio")
"""Units at the end of a name (before `_total`); other metrics count things, which the name contains."""


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(NamedTuple):
    """Row of the table. `of` lists the kinds of processes with this metric."""

    name: str
    kind: Kind
    of: tuple[str, ...]
    help: str
    labels: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        """Return the metric family in OpenMetrics: a counter's name without `_total`."""
        return self.name.removesuffix("_total")

    @property
    def unit(self) -> str:
        """Return the unit at the end of the name; "" for a count."""
        last = self.family.rpartition("_")[2]
        return last if last in UNITS else ""


class Histogram:
    """Histogram of durations in seconds. Its counts never decrease."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...] = LATENCY_S) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Counts by bucket; the last one is for values above all bounds."""
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def add(self, other: Histogram) -> None:
        """Add the observations of `other`."""
        assert self.bounds == other.bounds
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum

    @property
    def count(self) -> int:
        return sum(self.counts)


Labels = tuple[str, ...]
Value = float | Histogram
Values = Mapping[str, Value | Mapping[Labels, Value]]
MetricSource = Callable[[], Values]


def all_of(sources: Iterable[MetricSource]) -> dict[str, Value | Mapping[Labels, Value]]:
    """Merge several sources; for a name in several of them, the last value wins."""
    return {name: value for source in sources for name, value in source().items()}
