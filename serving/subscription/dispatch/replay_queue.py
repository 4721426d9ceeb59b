"""What of a subscription's window nobody holds, is not acknowledged and may be dispatched: it waits to be replayed.

There is one for each kind of dispatcher of many consumers: `shared_queue`, `key_queue`.
"""

from __future__ import annotations

from typing import Protocol

from pyroaring import BitMap

from quire.serving.subscription.cursor.entry_set import EntrySet


class ReplayQueue(Protocol):
    """Truth is whether anything waits."""

    entries: EntrySet

    def __bool__(self) -> bool: ...

    def add(self, ledger_id: int, entries: BitMap) -> None:
        """`entries`, which nobody holds, wait to be dispatched."""
        ...

    def remove(self, ledger_id: int, entries: BitMap) -> None:
        """Those of `entries` that wait do so no longer."""
        ...

    def released(self, ledger_id: int, entries: BitMap) -> bool:
        """`entries` have left the consumer that held them. Whether others may be dispatched that could not be."""
        ...

    def clear(self) -> None:
        """Nothing waits."""
        ...
