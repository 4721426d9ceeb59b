"""Sketches: mergeable statistics of bounded size. No I/O.

- `Sizes` is a histogram whose classes are an eighth of an octave wide, so that the error of a quantile is at most 9 %.
- `Distinct` keeps the 4096 smallest hashes of keys ([k minimum values]). It counts fewer keys exactly, and more keys
  with an error of about 3 %.
- `Hottest` keeps the keys with the most messages, and an upper bound for the messages of a key that were not counted.

[k minimum values]: https://doi.org/10.1007/3-540-45726-7_1
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import mmh3
import numpy as np

from quire.spark_source.protobuf import Ints

CLASSES_AN_OCTAVE: Final = 8
CLASSES: Final = 33 * CLASSES_AN_OCTAVE
HASHES_KEPT: Final = 4096
KEYS_KEPT: Final = 512
"""Number of hottest keys that a slice returns."""
KEYS_HELD: Final = 16_384
"""Number of hottest keys that the driver keeps. At twice as many, it drops the half with fewer messages."""

_HASH_END: Final = 1 << 64


class Class(NamedTuple):
    """Number of values with sizes in `[start, end)` bytes."""

    start: int
    end: int
    values: int


@dataclass
class Sizes:
    """Histogram of the values' sizes."""

    counts: Ints = field(default_factory=lambda: np.zeros(CLASSES, np.int64))
    bytes: int = 0
    largest: int = 0

    def count(self, sizes: Ints) -> None:
        if not len(sizes):
            return
        self.counts += np.bincount(_class(sizes), minlength=CLASSES)
        self.bytes += int(sizes.sum())
        self.largest = max(self.largest, int(sizes.max()))

    def merge(self, other: Sizes) -> None:
        self.counts = self.counts + other.counts
        self.bytes += other.bytes
        self.largest = max(self.largest, other.largest)

    def quantile(self, part: float) -> int:
        """Return the size that the fraction `part` of the values does not exceed, rounded up to its class's end."""
        total = int(self.counts.sum())
        if not total:
            return 0
        number = int(np.searchsorted(np.cumsum(self.counts), part * total))
        return min(_start(number + 1) - 1, self.largest)

    def octaves(self) -> Iterator[Class]:
        """Yield the counts of all octaves from the smallest value's to the largest value's."""
        sums = self.counts.reshape(-1, CLASSES_AN_OCTAVE).sum(axis=1)
        used = np.flatnonzero(sums)
        for octave in range(used[0], used[-1] + 1) if len(used) else ():
            first = octave * CLASSES_AN_OCTAVE
            yield Class(_start(first), _start(first + CLASSES_AN_OCTAVE), int(sums[octave]))


def _class(sizes: Ints) -> Any:
    """Return the class of each size; sizes 0 and 1 are in class 0."""
    found = np.floor(np.log2(np.maximum(sizes, 1)) * CLASSES_AN_OCTAVE).astype(np.int64)
    return np.minimum(found, CLASSES - 1)


def _start(number: int) -> int:
    """Return the smallest size of a class."""
    return 0 if number == 0 else int(np.ceil(2 ** (number / CLASSES_AN_OCTAVE)))


@dataclass
class Distinct:
    """Sketch of the number of different keys."""

    hashes: Any = field(default_factory=lambda: np.zeros(0, np.uint64))
    """Smallest hashes of the keys, ascending."""

    def add_keys(self, keys: Iterable[bytes]) -> None:
        found = np.fromiter((mmh3.hash64(key, signed=False)[0] for key in keys), np.uint64)
        self._keep(found)

    def merge(self, other: Distinct) -> None:
        self._keep(other.hashes)

    def _keep(self, more: Any) -> None:
        self.hashes = np.unique(np.concatenate((self.hashes, more)))[:HASHES_KEPT]

    @property
    def is_exact(self) -> bool:
        return len(self.hashes) < HASHES_KEPT

    @property
    def count(self) -> int:
        if self.is_exact:
            return len(self.hashes)
        return round((HASHES_KEPT - 1) / (int(self.hashes[-1]) / _HASH_END))


@dataclass
class Hot:
    """Numbers of messages of one key."""

    messages: int = 0
    bytes: int = 0
    over_time: dict[int, int] = field(default_factory=dict)
    """Number of messages by interval."""

    def merge(self, other: Hot) -> None:
        self.messages += other.messages
        self.bytes += other.bytes
        for interval, count in other.over_time.items():
            self.over_time[interval] = self.over_time.get(interval, 0) + count


@dataclass
class Hottest:
    """Keys with the most messages. A key may have up to `unseen` messages that are not counted."""

    keys: dict[bytes, Hot] = field(default_factory=dict)
    unseen: int = 0

    def truncate(self, most: int) -> None:
        """Keep only the `most` hottest keys."""
        in_order = sorted(self.keys.items(), key=_heat)
        if len(in_order) > most:
            self.unseen += in_order[most][1].messages
            self.keys = dict(in_order[:most])

    def merge(self, other: Hottest) -> None:
        self.unseen += other.unseen
        for key, hot in other.keys.items():
            self.keys.setdefault(key, Hot()).merge(hot)
        if len(self.keys) > 2 * KEYS_HELD:
            self.truncate(KEYS_HELD)

    def top(self, most: int) -> list[tuple[bytes, Hot]]:
        return sorted(self.keys.items(), key=_heat)[:most]


def _heat(pair: tuple[bytes, Hot]) -> tuple[int, bytes]:
    return -pair[1].messages, pair[0]


def add_counts(to: dict[Any, int], more: Mapping[Any, int]) -> None:
    for name, count in more.items():
        to[name] = to.get(name, 0) + count
