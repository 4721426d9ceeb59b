"""The slots of the entries between mark-delete and the read position: two bytes for each. A core.

What was read once is not parsed again when it is dispatched later or given back, and an acknowledgement, which names an
entry, finds out which key it was for.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from pyroaring import BitMap

from quire.serving.model.ports import Position

TRIM_ENTRIES_MIN = 4_096
"""Less than this is not cut off at the front: that moves all that follows."""


class EntrySlots:
    """Slots by position. Entries of a ledger are pushed in order, without gaps."""

    __slots__ = ("_by_ledger",)

    def __init__(self) -> None:
        self._by_ledger: dict[int, tuple[int, array[int]]] = {}

    def push(self, ledger_id: int, first: int, slots: array[int]) -> None:
        """The slots of the entries from `first` on. `slots` is kept, not copied."""
        base, known = self._by_ledger.get(ledger_id, (0, None))
        if known is not None and base + len(known) == first:
            known.extend(slots)
        else:
            self._by_ledger[ledger_id] = first, slots

    def of(self, ledger_id: int, entries: Iterable[int]) -> list[int]:
        """The slot of each of `entries`, all of which were pushed."""
        base, known = self._by_ledger[ledger_id]
        return [known[entry - base] for entry in entries]

    def between(self, ledger_id: int, first: int, stop: int) -> array[int]:
        """The slots of entries `first` .. `stop`-1, all of which were pushed."""
        base, known = self._by_ledger[ledger_id]
        return known[first - base : stop - base]

    def grouped(self, ledger_id: int, entries: BitMap) -> dict[int, list[int]]:
        """`entries` by slot, each ascending."""
        found: dict[int, list[int]] = {}
        for entry, slot in zip(entries, self.of(ledger_id, entries), strict=True):
            found.setdefault(slot, []).append(entry)
        return found

    def trim(self, mark_delete: Position) -> None:
        """Forget (about) everything up to and with `mark_delete`."""
        for ledger_id in [one for one in self._by_ledger if one < mark_delete.ledger_id]:
            del self._by_ledger[ledger_id]
        if mark_delete.ledger_id in self._by_ledger:
            base, known = self._by_ledger[mark_delete.ledger_id]
            gone = min(mark_delete.entry_id + 1 - base, len(known))
            if gone >= TRIM_ENTRIES_MIN and gone >= len(known) // 2:
                del known[:gone]
                self._by_ledger[mark_delete.ledger_id] = base + gone, known

    def clear(self) -> None:
        self._by_ledger.clear()
