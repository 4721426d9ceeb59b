"""Sets of entries: one [roaring bitmap](https://roaringbitmap.org) of entry ids per ledger. Performs no I/O.

Acknowledgements, pending acknowledgements and redeliveries form runs, so operations are on bitmaps and ranges, not
on single entries. Entry ids of a ledger are below 2^32, because segments are rolled earlier, so 32-bit bitmaps suffice.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyroaring import BitMap

from quire.serving.model.ports import Position

ENTRY_ID_MAX = 2**32 - 1

Span = tuple[int, int]
"""Consecutive entry ids, half-open: (first, stop)."""


def run_end(bitmap: BitMap, start: int) -> int:
    """Return the first id after `start` that is not in `bitmap`, in logarithmic time.

    Precondition: `start` is in `bitmap`.
    """
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
    """Return a bitmap of `first` .. `stop`-1; takes a fifth of the time of `BitMap(range(first, stop))`."""
    bitmap = BitMap()
    bitmap.add_range(first, stop)
    return bitmap


def run_count(bitmap: BitMap) -> int:
    """Count the runs of consecutive ids in `bitmap`."""
    return len(bitmap) - len(bitmap & bitmap.shift(1))


def spans(bitmap: BitMap) -> list[Span]:
    """Return `bitmap` as runs of consecutive ids, ascending."""
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
    """Set of entries of several ledgers. Invariant: no bitmap is empty."""

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
        """Iterate over (ledger id, entries), ordered by ledger id."""
        return iter(sorted(self.by_ledger.items()))

    def get(self, ledger_id: int) -> BitMap | None:
        return self.by_ledger.get(ledger_id)

    def within(self, ledger_id: int, first: int, stop: int) -> BitMap:
        """Return a new bitmap of the set's entries among `first` .. `stop`-1 of one ledger."""
        bitmap = self.by_ledger.get(ledger_id)
        if bitmap is None:
            return BitMap()
        # `BitMap(range(...))` up to the greatest possible id would build 65,536 containers on each call.
        return bitmap & BitMap(range(first, min(stop, bitmap.max() + 1)))

    def touches(self, ledger_id: int, first: int, stop: int) -> bool:
        """Return whether the set contains any of the entries `first` .. `stop`-1."""
        bitmap = self.by_ledger.get(ledger_id)
        return bitmap is not None and bitmap.range_cardinality(first, stop) > 0

    def min(self) -> Position:
        """Return the first entry. Precondition: the set is not empty."""
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
        """Remove all entries up to and including `position`."""
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
