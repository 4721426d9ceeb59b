"""Redelivery counts of entries, in bit slices (a vertical counter). Performs no I/O.

A client may request the redelivery of thousands of entries at once (all unacknowledged entries of a consumer). A
counter per entry would need one operation per entry. So counts are stored by binary digit: slice k of a ledger is the
bitmap of the entries whose count has bit k set. The counts of a set of entries are incremented by a binary addition
with carry: one pair of bitmap operations for each slice that the carry reaches. Most sets reach one or two.

Entries without a count (nearly all) use no memory, and `split` groups any set by count with as few operations.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyroaring import BitMap

from quire.serving.model.ports import Position

SLICES_MAX = 31
"""Maximum number of slices, so counts are below 2^31, because `redelivery_count` in MESSAGE has 32 bits.

A carry out of the last slice is dropped.
"""


class RedeliveryCounts:
    """Redelivery counts of entries, by ledger."""

    __slots__ = ("_slices",)

    def __init__(self) -> None:
        self._slices: dict[int, list[BitMap]] = {}

    def __bool__(self) -> bool:
        return bool(self._slices)

    def add(self, ledger_id: int, entries: BitMap, bit: int = 0) -> None:
        """Add 2^`bit` to the count of each entry of `entries`."""
        slices = self._slices.setdefault(ledger_id, [])
        carry = entries
        while carry and bit < SLICES_MAX:
            while len(slices) <= bit:
                slices.append(BitMap())
            following = slices[bit] & carry
            slices[bit] ^= carry
            carry = following
            bit += 1

    def split(self, ledger_id: int, entries: BitMap) -> list[tuple[int, BitMap]]:
        """Group `entries` by redelivery count: (count, entries), without empty groups."""
        groups = [(0, entries)] if entries else []
        for bit, one in enumerate(self._slices.get(ledger_id, ())):
            halves = [
                (count + (digit << bit), half)
                for count, group in groups
                for digit, half in ((0, group - one), (1, group & one))
            ]
            groups = [(count, half) for count, half in halves if half]
        return groups

    def count(self, position: Position) -> int:
        """Return the entry's redelivery count."""
        slices = self._slices.get(position.ledger_id, ())
        return sum(1 << bit for bit, one in enumerate(slices) if position.entry_id in one)

    def touches(self, ledger_id: int, first: int, stop: int) -> bool:
        """Return whether any of the entries `first` .. `stop`-1 has a count."""
        slices = self._slices.get(ledger_id)
        return slices is not None and any(one.range_cardinality(first, stop) for one in slices)

    def items(self) -> Iterator[tuple[int, int, BitMap]]:
        """Yield (ledger id, bit, entries whose count has that bit set), for a snapshot."""
        for ledger_id, slices in sorted(self._slices.items()):
            for bit, one in enumerate(slices):
                if one:
                    yield ledger_id, bit, one

    def remove(self, ledger_id: int, entries: BitMap) -> None:
        """Forget the counts of `entries`, because they were acknowledged."""
        slices = self._slices.get(ledger_id)
        if slices is None:
            return
        for one in slices:
            one -= entries
        self._tidy(ledger_id)

    def remove_up_to(self, position: Position) -> None:
        """Forget the counts of all entries up to and including `position`."""
        for ledger_id in [ledger_id for ledger_id in self._slices if ledger_id < position.ledger_id]:
            del self._slices[ledger_id]
        if position.ledger_id in self._slices and position.entry_id >= 0:
            for one in self._slices[position.ledger_id]:
                one.remove_range(0, position.entry_id + 1)
            self._tidy(position.ledger_id)

    def _tidy(self, ledger_id: int) -> None:
        slices = self._slices[ledger_id]
        while slices and not slices[-1]:
            slices.pop()
        if not slices:
            del self._slices[ledger_id]

    def clear(self) -> None:
        self._slices.clear()
