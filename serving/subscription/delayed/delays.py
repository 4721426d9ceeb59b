"""Entries that are to be delivered later, by the time of each: a core.

A million delayed entries must cost a few bytes each, be found by their time exactly, and come by whole blocks. So
the times are kept as redelivery counts are, in *bit slices*: a time is a number of ticks, and slice k of a ledger the
bitmap of the entries whose number has bit k set. All questions are operations on whole bitmaps, one or two for each
slice (about 25 of them), however many entries there are:

    add(entries of a block, times)     OR each into the slices of its bits
    take_due(now)                      compare with now's bits from the highest down: those below, or equal
    next_ms                            the least: from the highest bit down, keep who has it clear if anybody has

A million entries of a ledger take about 4 MiB, whatever their times are (bench/delayed.py).

A time is rounded up to a tick, so nothing is early and nothing later than a tick. Ledgers whose least time is not
reached are not looked at. What is written down of it is a `survey`, whose times are such slices too, so that taking it
in is a few bitmap operations again.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyroaring import BitMap

from quire.serving.model.ports import Position
from quire.serving.subscription.delayed.survey import Times


class _Times:
    """The entries of one ledger and their times, in ticks since `base`."""

    __slots__ = ("base", "entries", "least", "slices")

    def __init__(self, base: int) -> None:
        self.base = base
        self.entries = BitMap()
        self.slices: list[BitMap] = []
        self.least: int | None = None
        """The least time; None when it must be found again."""

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
        """Entries that are not here yet, of the same base."""
        self.entries |= known.entries
        while len(self.slices) < len(known.slices):
            self.slices.append(BitMap())
        for mine, theirs in zip(self.slices, known.slices, strict=False):
            mine |= theirs
        self.least = None

    def find_least(self) -> int:
        """The least time of all entries, which are not none; in ticks since `base`."""
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
        """Remove and return the entries whose time is at most `limit` >= 0."""
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
    """The delayed entries of one subscription. Times in ms of the wall clock."""

    __slots__ = ("_by_ledger", "delay_ms_max", "now_ms", "tick_ms")

    def __init__(self, tick_ms: int, delay_ms_max: int = 0) -> None:
        self.tick_ms = tick_ms
        self.delay_ms_max = delay_ms_max
        self.now_ms = 0
        """Set by the shell before it dispatches: what is due by then is not delayed."""
        self._by_ledger: dict[int, _Times] = {}

    def __bool__(self) -> bool:
        return bool(self._by_ledger)

    def __len__(self) -> int:
        return sum(len(times.entries) for times in self._by_ledger.values())

    def add(self, ledger_id: int, entry_ids: Sequence[int], times_ms: Sequence[int]) -> None:
        """Entries that are not here yet, and their times."""
        times = self._by_ledger.get(ledger_id)
        if times is None:
            times = self._by_ledger[ledger_id] = _Times(self.now_ms // self.tick_ms)
        if self.delay_ms_max:
            last_ms = self.now_ms + self.delay_ms_max
            times_ms = [min(time_ms, last_ms) for time_ms in times_ms]
        times.add(entry_ids, [-(-time_ms // self.tick_ms) for time_ms in times_ms])

    def take_in(self, ledger_id: int, known: Times) -> None:
        """Entries that are not here yet, with their times as a survey has them, in the same ticks."""
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
        """The times of those of `wanted` that are here."""
        times = self._by_ledger.get(ledger_id)
        if times is None:
            return Times(self.tick_ms, 0, BitMap(), [])
        return Times(self.tick_ms, times.base, times.entries, times.slices).part(wanted)

    def next_ms(self) -> int | None:
        """When the next entry is due; None when there is none."""
        return min(map(self._least_ms, self._by_ledger.values()), default=None)

    def _least_ms(self, times: _Times) -> int:
        return (times.base + times.find_least()) * self.tick_ms

    def take_due(self) -> list[tuple[int, BitMap]]:
        """Remove and return what is due at `now_ms`: (ledger id, entries), in the ledgers' order."""
        found = []
        for ledger_id, times in sorted(self._by_ledger.items()):
            if self._least_ms(times) <= self.now_ms:
                found.append((ledger_id, times.take(self.now_ms // self.tick_ms - times.base)))
                self._drop_if_empty(ledger_id, times)
        return found

    def take_all(self) -> list[tuple[int, BitMap]]:
        """Remove and return everything: delays count no longer."""
        found = [(ledger_id, times.entries) for ledger_id, times in sorted(self._by_ledger.items())]
        self.clear()
        return found

    def remove(self, ledger_id: int, entries: BitMap) -> None:
        """Those of `entries` that are here are delayed no longer: they were acknowledged."""
        times = self._by_ledger.get(ledger_id)
        if times is not None and times.entries.intersect(entries):
            times.remove(entries)
            self._drop_if_empty(ledger_id, times)

    def remove_up_to(self, position: Position) -> None:
        """Forget everything up to and with `position`."""
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
