"""Sets of entries: one roaring bitmap of entry ids per ledger.

Acknowledgements, deliveries that wait for one, and redeliveries come in runs, so every operation here is on a
bitmap or a range, never on one entry. Entry ids of a ledger stay below 2^32 (segments roll long before), which
keeps the bitmaps of the 32-bit kind.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyroaring import BitMap

from quire.serving.model.ports import Position

ENTRY_ID_MAX = 2**32 - 1

Span = tuple[int, int]
"""Consecutive entry ids, half-open: (first, stop)."""


def run_end(bitmap: BitMap, start: int) -> int:
    """The first id after `start` that is not in `bitmap`; `start` is in it. Logarithmic in the run's length."""
    end, step = start + 1, 1
    while bitmap.contains_range(end, end + step):
        end += step
        step *= 2
    while step > 1:
        step //= 2
        if bitmap.contains_range(end, end + step):
            end += step
    return end


def span(first: int, stop: int) -> BitMap:
    """The ids `first` .. `stop`-1; a fifth of what `BitMap(range(first, stop))` costs."""
    bitmap = BitMap()
    bitmap.add_range(first, stop)
    return bitmap


def run_count(bitmap: BitMap) -> int:
    """How many runs of consecutive ids `bitmap` has."""
    return len(bitmap) - len(bitmap & bitmap.shift(1))


def spans(bitmap: BitMap) -> list[Span]:
    """`bitmap` as runs of consecutive ids, ascending."""
    if not bitmap:
        return []
    at, last = bitmap.min(), bitmap.max()
    if last - at + 1 == len(bitmap):
        return [(at, last + 1)]
    found = []
    while True:
        stop = run_end(bitmap, at)
        found.append((at, stop))
        if stop > last:
            return found
        at = bitmap.next_set_bit(stop)


class EntrySet:
    """Entries of several ledgers. No bitmap in it is empty, so truth is whether anything is in it."""

    __slots__ = ("by_ledger",)

    def __init__(self) -> None:
        self.by_ledger: dict[int, BitMap] = {}

    def __bool__(self) -> bool:
        return bool(self.by_ledger)

    def __len__(self) -> int:
        return sum(map(len, self.by_ledger.values()))

    def __contains__(self, position: Position) -> bool:
        bitmap = self.by_ledger.get(position.ledger_id)
        return bitmap is not None and position.entry_id in bitmap

    def items(self) -> Iterator[tuple[int, BitMap]]:
        """(ledger id, its entries), in the ledgers' order."""
        return iter(sorted(self.by_ledger.items()))

    def get(self, ledger_id: int) -> BitMap | None:
        return self.by_ledger.get(ledger_id)

    def within(self, ledger_id: int, first: int, stop: int) -> BitMap:
        """A new bitmap of what is in `first` .. `stop`-1 of one ledger."""
        bitmap = self.by_ledger.get(ledger_id)
        if bitmap is None:
            return BitMap()
        # A range up to the end of all ids would be 65,536 containers, built anew each time.
        return bitmap & BitMap(range(first, min(stop, bitmap.max() + 1)))

    def touches(self, ledger_id: int, first: int, stop: int) -> bool:
        """Whether anything of `first` .. `stop`-1 is in it."""
        bitmap = self.by_ledger.get(ledger_id)
        return bitmap is not None and bitmap.range_cardinality(first, stop) > 0

    def min(self) -> Position:
        """The first entry. Only when not empty."""
        ledger_id = min(self.by_ledger)
        return Position(ledger_id, self.by_ledger[ledger_id].min())

    def add(self, ledger_id: int, entries: BitMap) -> None:
        if not entries:
            return
        bitmap = self.by_ledger.get(ledger_id)
        if bitmap is None:
            self.by_ledger[ledger_id] = BitMap(entries)
        else:
            bitmap |= entries

    def add_span(self, ledger_id: int, first: int, stop: int) -> None:
        assert first < stop
        bitmap = self.by_ledger.get(ledger_id)
        if bitmap is None:
            self.by_ledger[ledger_id] = bitmap = BitMap()
        bitmap.add_range(first, stop)

    def remove(self, ledger_id: int, entries: BitMap) -> None:
        bitmap = self.by_ledger.get(ledger_id)
        if bitmap is not None:
            bitmap -= entries
            if not bitmap:
                del self.by_ledger[ledger_id]

    def remove_up_to(self, position: Position) -> None:
        """Forget everything up to and with `position`."""
        if not self.by_ledger:
            return
        for ledger_id in [ledger_id for ledger_id in self.by_ledger if ledger_id < position.ledger_id]:
            del self.by_ledger[ledger_id]
        bitmap = self.by_ledger.get(position.ledger_id)
        if bitmap is not None and position.entry_id >= 0:
            bitmap.remove_range(0, position.entry_id + 1)
            if not bitmap:
                del self.by_ledger[position.ledger_id]

    def clear(self) -> None:
        self.by_ledger.clear()
