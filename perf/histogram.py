"""Log-linear histogram of latencies, whose sums over processes are exact to its resolution.

The buckets are those of [HdrHistogram](http://hdrhistogram.org): below 2^11 ns each value has its own bucket; above,
each power of two is divided into 1,024 buckets of equal width. A bucket is at most 1/1,024 as wide as its smallest
value, so a percentile is at most 0.1 % too high, and never too low. All histograms have the same buckets, so adding the
counts of two of them loses nothing; averages of their percentiles would be wrong.

The PyPI package `hdrhistogram` is not used, because it has wheels for x86-64 only, and installs setuptools and pbr.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import ceil
from typing import Any, Final

HALF_BITS: Final = 10
"""Each power of two has 2^`HALF_BITS` buckets."""

RELATIVE_ERROR_MAX: Final = 1 / (1 << HALF_BITS)

NS_PER_MS: Final = 1_000_000

PERCENTILES: Final = (50.0, 95.0, 99.0, 99.9)


def bucket_of(value: int) -> int:
    """Return the index of the bucket that contains a value."""
    shift = value.bit_length() - HALF_BITS - 1
    return value if shift <= 0 else (shift << HALF_BITS) + (value >> shift)


def highest_of(bucket: int) -> int:
    """Return the highest value in a bucket."""
    shift = (bucket >> HALF_BITS) - 1
    return bucket if shift <= 0 else ((bucket - (shift << HALF_BITS) + 1) << shift) - 1


class LatencyHistogram:
    """Counts of latencies in ns; the smallest, the largest and the sum are exact."""

    __slots__ = ("count", "counts", "max", "min", "sum")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.count = 0
        self.sum = 0
        self.min = 0
        self.max = 0

    def record(self, value: int) -> None:
        """Record one latency. Clocks of two machines differ, so a negative one is possible; it counts as 0."""
        if value < 0:
            value = 0
        bucket = bucket_of(value)
        self.counts[bucket] = self.counts.get(bucket, 0) + 1
        if value > self.max:
            self.max = value
        if value < self.min or not self.count:
            self.min = value
        self.count += 1
        self.sum += value

    def add(self, other: LatencyHistogram) -> None:
        """Add the latencies of another histogram."""
        if not other.count:
            return
        for bucket, count in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count
        self.min = min(self.min, other.min) if self.count else other.min
        self.max = max(self.max, other.max)
        self.count += other.count
        self.sum += other.sum

    def percentile(self, percent: float) -> int:
        """Return the latency that `percent` of all latencies do not exceed (nearest rank); 0 without latencies."""
        rank = max(1, ceil(percent * self.count / 100))
        for bucket in sorted(self.counts):
            rank -= self.counts[bucket]
            if rank <= 0:
                return min(highest_of(bucket), self.max)
        return self.max

    def between(self, bounds: Iterable[int]) -> Iterator[int]:
        """Yield the number of latencies up to each of the ascending bounds, and above the one before.

        A bucket counts where its highest value is.
        """
        buckets = [(highest_of(bucket), self.counts[bucket]) for bucket in sorted(self.counts)]
        at = 0
        for bound in bounds:
            begin = at
            while at < len(buckets) and buckets[at][0] <= bound:
                at += 1
            yield sum(count for _, count in buckets[begin:at])

    def summary_ms(self) -> dict[str, float]:
        """Return the smallest, the mean, the percentiles and the largest latency in ms."""
        found = {"min": self.min, "mean": self.sum / max(1, self.count)}
        found |= {f"p{percent:g}": self.percentile(percent) for percent in PERCENTILES}
        return {name: round(value / NS_PER_MS, 6) for name, value in (found | {"max": self.max}).items()}

    def as_json(self) -> dict[str, Any]:
        """Return the histogram for another process. The counts are pairs, because keys in JSON are text."""
        return {"counts": list(self.counts.items()), "sum": self.sum, "min": self.min, "max": self.max}

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> LatencyHistogram:
        """Return the histogram that `as_json` described."""
        made = cls()
        made.counts = dict(given["counts"])
        made.count = sum(made.counts.values())
        made.sum, made.min, made.max = given["sum"], given["min"], given["max"]
        return made
