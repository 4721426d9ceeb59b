"""Key_Shared slots of the entries between mark-delete and the read position, two bytes each. Performs no I/O.

With these slots, an entry that waits or is redelivered need not be parsed again, and the slot of an acknowledged entry
id can be looked up.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from pyroaring import BitMap

from quire.serving.model.ports import Position

TRIM_ENTRIES_MIN = 4_096
"""Minimum number of entries to trim at the front of an array, because a trim moves all later ones."""


class EntrySlots:
    """Slots by position. The entries of a ledger must be pushed in order, without gaps."""

    __slots__ = ("_by_ledger",)

    def __init__(self) -> None:
        self._by_ledger: dict[int, tuple[int, array[int]]] = {}

    def push(self, ledger_id: int, first: int, slots: array[int]) -> None:
        """Append the slots of the entries from `first` on. `slots` is kept, not copied."""
        base, known = self._by_ledger.get(ledger_id, (0, None))
        if known is not None and base + len(known) == first:
            known.extend(slots)
        else:
            self._by_ledger[ledger_id] = first, slots

    def of(self, ledger_id: int, entries: Iterable[int]) -> list[int]:
        """Return the slot of each of `entries`, which were all pushed."""
        base, known = self._by_ledger[ledger_id]
        return [known[entry - base] for entry in entries]

    def between(self, ledger_id: int, first: int, stop: int) -> array[int]:
        """Return the slots of the entries `first` .. `stop`-1, which were all pushed."""
        base, known = self._by_ledger[ledger_id]
        return known[first - base : stop - base]

    def grouped(self, ledger_id: int, entries: BitMap) -> dict[int, list[int]]:
        """Group `entries` by slot; each group is ascending."""
        found: dict[int, list[int]] = {}
        for entry, slot in zip(entries, self.of(ledger_id, entries), strict=True):
            found.setdefault(slot, []).append(entry)
        return found

    def trim(self, mark_delete: Position) -> None:
        """Drop the slots of entries up to and including `mark_delete`; a few of them may be kept for a later trim."""
        for ledger_id in [one for one in self._by_ledger if one < mark_delete.ledger_id]:
            del self._by_ledger[ledger_id]
        if mark_delete.ledger_id in self._by_ledger:
            base, known = self._by_ledger[mark_delete.ledger_id]
            count = min(mark_delete.entry_id + 1 - base, len(known))
            if count >= TRIM_ENTRIES_MIN and count >= len(known) // 2:
                del known[:count]
                self._by_ledger[mark_delete.ledger_id] = base + count, known

    def clear(self) -> None:
        self._by_ledger.clear()
