"""Replay queue: unacknowledged entries of the window that no consumer holds and that wait for redelivery.

Each dispatcher with many consumers has its own implementation: `shared_queue`, `key_queue`. (Pulsar:
`MessageRedeliveryController`)
"""

from __future__ import annotations

from typing import Protocol

from pyroaring import BitMap

from quire.serving.subscription.cursor.entry_set import EntrySet


class ReplayQueue(Protocol):
    """Replay queue of a dispatcher with many consumers. Its truth value is False if it is empty."""

    entries: EntrySet

    def __bool__(self) -> bool: ...

    def add(self, ledger_id: int, entries: BitMap) -> None:
        """Add entries that no consumer holds."""
        ...

    def remove(self, ledger_id: int, entries: BitMap) -> None:
        """Remove the queued entries among `entries`."""
        ...

    def released(self, ledger_id: int, entries: BitMap) -> bool:
        """Record that consumers no longer hold `entries`. Return whether other entries can now be dispatched."""
        ...

    def clear(self) -> None:
        """Remove all entries."""
        ...
