"""Delayed entries and their delivery times, as a bit-sliced index. Performs no I/O.

A million delayed entries must take a few bytes each, be found by their exact time, and be added a block at a time. So
times are stored in *bit slices*, like redelivery counts: a time is a number of ticks, and slice k of a ledger is the
bitmap of the entries whose number has bit k set. Each query is one or two operations on whole bitmaps for each slice
(about 25 of them), for any number of entries:

    add(entries of a block, times)     add each entry to the slices of the bits of its time
    take_due(now)                      entries with lower or equal times: compare with the bits of `now`, highest first
    next_ms                            minimum: for each bit, highest first, keep the entries without it, if any

A million entries of a ledger take about 4 MiB, for any distribution of times (bench/delayed.py).

Times are rounded up to a tick, so an entry is never early and at most one tick late. `take_due` skips a ledger whose
least time is in the future. A `delayed_snapshot` contains the same slices, so it is restored by a few bitmap
operations.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyroaring import BitMap

from quire.serving.model.ports import Position
from quire.serving.subscription.delayed.delayed_snapshot import Times


class _Times:
    """Entries of one ledger and their delivery times, in ticks since `base`."""

    __slots__ = ("base", "entries", "least", "slices")

    def __init__(self, base: int) -> None:
        self.base = base
        self.entries = BitMap()
        self.slices: list[BitMap] = []
        self.least: int | None = None
        """Least delivery time, in ticks since `base`; None if it must be computed."""

    def add(self, entry_ids: Sequence[int], ticks: Sequence[int]) -> None:
        groups: dict[int, list[int]] = {}
        for entry_id, tick in zip(entry_ids, ticks, strict=True):
            groups.setdefault(max(0, tick - self.base), []).append(entry_id)
        highest = max(groups).bit_length()
        while len(self.slices) < highest:
            self.slices.append(BitMap())
        for bit in range(highest):
            here = [one for number, some in groups.items() if number >> bit & 1 for one in some]
            if here:
                self.slices[bit] |= BitMap(here)
        was_empty = not self.entries
        self.entries |= BitMap(entry_ids)
        if was_empty:
            self.least = min(groups)
        elif self.least is not None:
            self.least = min(self.least, *groups)

    def take_in(self, known: Times) -> None:
        """Add new entries with their times from a snapshot, which has the same base."""
        self.entries |= known.entries
        while len(self.slices) < len(known.slices):
            self.slices.append(BitMap())
        for mine, theirs in zip(self.slices, known.slices, strict=False):
            mine |= theirs
        self.least = None

    def find_least(self) -> int:
        """Return the least time, in ticks since `base`. Precondition: `entries` is not empty."""
        if self.least is None:
            candidates, found = self.entries, 0
            for bit in reversed(range(len(self.slices))):
                without = candidates - self.slices[bit]
                if without:
                    candidates = without
                else:
                    found |= 1 << bit
            self.least = found
        return self.least

    def take(self, limit: int) -> BitMap:
        """Remove and return the entries whose time is at most `limit`. Precondition: `limit` >= 0."""
        if limit.bit_length() > len(self.slices):
            due = self.entries.copy()
        else:
            due, equal = BitMap(), self.entries.copy()
            for bit in reversed(range(len(self.slices))):
                if limit >> bit & 1:
                    due |= equal - self.slices[bit]
                    equal &= self.slices[bit]
                else:
                    equal -= self.slices[bit]
            due |= equal
        self.remove(due)
        return due

    def remove(self, entries: BitMap) -> None:
        self.entries -= entries
        for one in self.slices:
            one -= entries
        self.least = None


class Delays:
    """Delayed entries of one subscription. Times are wall-clock times in ms since 1970."""

    __slots__ = ("_by_ledger", "delay_ms_max", "now_ms", "tick_ms")

    def __init__(self, tick_ms: int, delay_ms_max: int = 0) -> None:
        self.tick_ms = tick_ms
        self.delay_ms_max = delay_ms_max
        self.now_ms = 0
        """Time, set by the shell before it dispatches; entries due by this time are not delayed."""
        self._by_ledger: dict[int, _Times] = {}

    def __bool__(self) -> bool:
        return bool(self._by_ledger)

    def __len__(self) -> int:
        return sum(len(times.entries) for times in self._by_ledger.values())

    def add(self, ledger_id: int, entry_ids: Sequence[int], times_ms: Sequence[int]) -> None:
        """Add new entries with their delivery times."""
        times = self._by_ledger.get(ledger_id)
        if times is None:
            times = self._by_ledger[ledger_id] = _Times(self.now_ms // self.tick_ms)
        if self.delay_ms_max:
            last_ms = self.now_ms + self.delay_ms_max
            times_ms = [min(time_ms, last_ms) for time_ms in times_ms]
        times.add(entry_ids, [-(-time_ms // self.tick_ms) for time_ms in times_ms])

    def take_in(self, ledger_id: int, known: Times) -> None:
        """Add new entries with their delivery times from a snapshot, which has the same tick."""
        if not known.entries:
            return
        times = self._by_ledger.get(ledger_id)
        if times is None:
            times = self._by_ledger[ledger_id] = _Times(known.base)
        if times.base == known.base:
            times.take_in(known)
        else:
            ticks = known.ticks()
            times.add(list(ticks), list(ticks.values()))

    def part(self, ledger_id: int, wanted: BitMap) -> Times:
        """Return the delivery times of the delayed entries among `wanted`."""
        times = self._by_ledger.get(ledger_id)
        if times is None:
            return Times(self.tick_ms, 0, BitMap(), [])
        return Times(self.tick_ms, times.base, times.entries, times.slices).part(wanted)

    def next_ms(self) -> int | None:
        """Return the time at which the next entry is due, in ms since 1970; None if no entry is delayed."""
        return min(map(self._least_ms, self._by_ledger.values()), default=None)

    def _least_ms(self, times: _Times) -> int:
        return (times.base + times.find_least()) * self.tick_ms

    def take_due(self) -> list[tuple[int, BitMap]]:
        """Remove and return the entries that are due at `now_ms`: (ledger id, entries), ordered by ledger id."""
        found = []
        for ledger_id, times in sorted(self._by_ledger.items()):
            if self._least_ms(times) <= self.now_ms:
                found.append((ledger_id, times.take(self.now_ms // self.tick_ms - times.base)))
                self._drop_if_empty(ledger_id, times)
        return found

    def take_all(self) -> list[tuple[int, BitMap]]:
        """Remove and return all entries, because delivery times are ignored from now on."""
        found = [(ledger_id, times.entries) for ledger_id, times in sorted(self._by_ledger.items())]
        self.clear()
        return found

    def remove(self, ledger_id: int, entries: BitMap) -> None:
        """Remove the delayed entries among `entries`, because they were acknowledged."""
        times = self._by_ledger.get(ledger_id)
        if times is not None and times.entries.intersect(entries):
            times.remove(entries)
            self._drop_if_empty(ledger_id, times)

    def remove_up_to(self, position: Position) -> None:
        """Remove all entries up to and including `position`."""
        for ledger_id in [one for one in self._by_ledger if one < position.ledger_id]:
            del self._by_ledger[ledger_id]
        times = self._by_ledger.get(position.ledger_id)
        if times is not None and position.entry_id >= 0 and times.entries.min() <= position.entry_id:
            times.remove(times.entries & BitMap(range(position.entry_id + 1)))
            self._drop_if_empty(position.ledger_id, times)

    def _drop_if_empty(self, ledger_id: int, times: _Times) -> None:
        if not times.entries:
            del self._by_ledger[ledger_id]

    def clear(self) -> None:
        self._by_ledger.clear()
