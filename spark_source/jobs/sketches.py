"""Sums of a history that fit into memory whatever the history is, and can be added up. No I/O.

`Sizes` counts sizes by classes an eighth of an octave wide: a quantile is right to 9 %. `Distinct` keeps the 4096
smallest hashes of what it has seen: fewer than that are counted exactly, more to about 3 %. `Hottest` keeps the keys
with the most messages, and how many of a key's messages it may have let go of.
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
"""Of a slice."""
KEYS_HELD: Final = 16_384
"""Of a history; beyond twice as many the colder half is let go."""

_HASH_END: Final = 1 << 64


class Class(NamedTuple):
    """Sizes in `[start, end)` bytes."""

    start: int
    end: int
    values: int


@dataclass
class Sizes:
    """How large the values are."""

    counts: Ints = field(default_factory=lambda: np.zeros(CLASSES, np.int64))
    bytes: int = 0
    largest: int = 0

    def take(self, sizes: Ints) -> None:
        if not len(sizes):
            return
        self.counts += np.bincount(_class(sizes), minlength=CLASSES)
        self.bytes += int(sizes.sum())
        self.largest = max(self.largest, int(sizes.max()))

    def add(self, other: Sizes) -> None:
        self.counts = self.counts + other.counts
        self.bytes += other.bytes
        self.largest = max(self.largest, other.largest)

    def quantile(self, part: float) -> int:
        """A size that this part of the values does not exceed, to within its class."""
        total = int(self.counts.sum())
        if not total:
            return 0
        number = int(np.searchsorted(np.cumsum(self.counts), part * total))
        return min(_start(number + 1) - 1, self.largest)

    def octaves(self) -> Iterator[Class]:
        """From the smallest that is there to the largest."""
        sums = self.counts.reshape(-1, CLASSES_AN_OCTAVE).sum(axis=1)
        there = np.flatnonzero(sums)
        for octave in range(there[0], there[-1] + 1) if len(there) else ():
            first = octave * CLASSES_AN_OCTAVE
            yield Class(_start(first), _start(first + CLASSES_AN_OCTAVE), int(sums[octave]))


def _class(sizes: Ints) -> Any:
    """Of each size the class; size 0 is in class 0, with 1."""
    found = np.floor(np.log2(np.maximum(sizes, 1)) * CLASSES_AN_OCTAVE).astype(np.int64)
    return np.minimum(found, CLASSES - 1)


def _start(number: int) -> int:
    """The smallest size of a class."""
    return 0 if number == 0 else int(np.ceil(2 ** (number / CLASSES_AN_OCTAVE)))


@dataclass
class Distinct:
    """How many different keys there are."""

    hashes: Any = field(default_factory=lambda: np.zeros(0, np.uint64))
    """The smallest, in order."""

    def take(self, keys: Iterable[bytes]) -> None:
        found = np.fromiter((mmh3.hash64(key, signed=False)[0] for key in keys), np.uint64)
        self._keep(found)

    def add(self, other: Distinct) -> None:
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
    """One key."""

    messages: int = 0
    bytes: int = 0
    over_time: dict[int, int] = field(default_factory=dict)
    """Messages by interval."""

    def add(self, other: Hot) -> None:
        self.messages += other.messages
        self.bytes += other.bytes
        for interval, count in other.over_time.items():
            self.over_time[interval] = self.over_time.get(interval, 0) + count


@dataclass
class Hottest:
    """The keys with the most messages. A key may have `unseen` more messages than are counted here."""

    keys: dict[bytes, Hot] = field(default_factory=dict)
    unseen: int = 0

    def only(self, most: int) -> None:
        """Let go of all but this many."""
        in_order = sorted(self.keys.items(), key=_heat)
        if len(in_order) > most:
            self.unseen += in_order[most][1].messages
            self.keys = dict(in_order[:most])

    def add(self, other: Hottest) -> None:
        self.unseen += other.unseen
        for key, hot in other.keys.items():
            self.keys.setdefault(key, Hot()).add(hot)
        if len(self.keys) > 2 * KEYS_HELD:
            self.only(KEYS_HELD)

    def top(self, most: int) -> list[tuple[bytes, Hot]]:
        return sorted(self.keys.items(), key=_heat)[:most]


def _heat(pair: tuple[bytes, Hot]) -> tuple[int, bytes]:
    return -pair[1].messages, pair[0]


def add_counts(to: dict[Any, int], more: Mapping[Any, int]) -> None:
    for name, count in more.items():
        to[name] = to.get(name, 0) + count
