"""What metrics are: their kinds, what a process says of one, and a histogram that data paths can afford.

    rooms keep plain numbers ─▶ a source: names to values ─▶ `exposition`: Prometheus' text, when somebody asks

Every metric is a row of `metric_table`, by which it is written and documented; a source only says values. A value is
a number or a `Histogram`; of a metric with labels it is a mapping from the labels' values, in the order of the row.

Nothing is counted for each message: rooms count a group, a block or a turn of the event loop at once, with the number
of messages in it. What is never asked for costs no more than that.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

LATENCY_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0)
"""Upper bounds of a latency's classes: twelve, for each is a series of its own wherever it is kept."""

UNITS: Final = ("seconds", "bytes", "messages", "ratio")
"""What a name may end in (before `_total`); others count things, which the name says."""


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(NamedTuple):
    """A row of the table. `of`: the processes that have it."""

    name: str
    kind: Kind
    of: tuple[str, ...]
    help: str
    labels: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        """Its name as OpenMetrics has it: a counter's without `_total`."""
        return self.name.removesuffix("_total")

    @property
    def unit(self) -> str:
        """Empty when it counts things."""
        last = self.family.rpartition("_")[2]
        return last if last in UNITS else ""


class Histogram:
    """How often something took how long. Counts only grow."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...] = LATENCY_S) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """By class; the last one has what is greater than all bounds."""
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def add(self, other: Histogram) -> None:
        """Count what `other` counted as well."""
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
    """What several say; the last one counts."""
    return {name: value for source in sources for name, value in source().items()}
