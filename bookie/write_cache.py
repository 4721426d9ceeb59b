"""Write cache: the states of all ledgers, and the blocks that are not in the entry log yet.

There are two memtables: the active one accepts new blocks, the frozen one is being flushed. Every ledger with data on
this bookie has its `LedgerState` here.
"""

from __future__ import annotations

from quire.bookie.ledgers import LedgerState
from quire.bookie.memtable import Memtable


class WriteCache:
    """Ledger states and memtables; `memtable_bytes` is the size of each memtable."""

    def __init__(self, memtable_bytes: int) -> None:
        self.ledgers: dict[int, LedgerState] = {}
        self.changed: set[int] = set()
        """Ledgers with a new fence, tombstone or LAC since the last `freeze`."""
        self.active = Memtable()
        self.frozen: Memtable | None = None
        self.waiting_bytes = 0
        """Bytes of requests that wait in `intake` for space in a memtable."""
        self._memtable_bytes = memtable_bytes

    @property
    def size_bytes(self) -> int:
        """Bytes of the blocks in both memtables, and of the waiting requests."""
        frozen_bytes = self.frozen.size_bytes if self.frozen is not None else 0
        return self.active.size_bytes + frozen_bytes + self.waiting_bytes

    @property
    def is_full(self) -> bool:
        return self.active.size_bytes >= self._memtable_bytes

    @property
    def tables(self) -> tuple[Memtable, ...]:
        return (self.active,) if self.frozen is None else (self.frozen, self.active)

    def state(self, ledger_id: int) -> LedgerState:
        """Return the ledger's state; create it for a new ledger."""
        state = self.ledgers.get(ledger_id)
        if state is None:
            state = self.ledgers[ledger_id] = LedgerState(ledger_id)
        return state

    def freeze(self) -> tuple[Memtable, list[LedgerState]]:
        """Freeze the active memtable; return it with the states of ledgers that have blocks in it or other changes."""
        assert self.frozen is None
        self.frozen, self.active = self.active, Memtable()
        concerned = self.frozen.ledgers.keys() | self.changed
        self.changed.clear()
        return self.frozen, [self.ledgers[ledger_id] for ledger_id in sorted(concerned)]

    def release_frozen(self) -> None:
        """Drop the frozen memtable, after all its blocks were written to the entry log."""
        assert self.frozen is not None
        self.frozen = None
