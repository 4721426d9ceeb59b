"""The write cache: what a bookie knows of its ledgers, and the blocks that are not in the entry log yet.

The blocks lie in two memtables, one that takes new ones (active) and one that is being flushed (frozen). Every ledger
that was ever heard of has its `LedgerState` here.
"""

from __future__ import annotations

from quire.bookie.ledgers import LedgerState
from quire.bookie.memtable import Memtable


class WriteCache:
    """`memtable_bytes` is the size of each memtable."""

    def __init__(self, memtable_bytes: int) -> None:
        self.ledgers: dict[int, LedgerState] = {}
        self.changed: set[int] = set()
        """Ledgers fenced, deleted or told their LAC since the last `freeze`."""
        self.active = Memtable()
        self.frozen: Memtable | None = None
        self.waiting_bytes = 0
        """Of blocks that were accepted and wait until there is room for them here."""
        self._memtable_bytes = memtable_bytes

    @property
    def size_bytes(self) -> int:
        """Bytes that were accepted and are not yet in the entry log."""
        frozen_bytes = self.frozen.size_bytes if self.frozen is not None else 0
        return self.active.size_bytes + frozen_bytes + self.waiting_bytes

    @property
    def is_full(self) -> bool:
        return self.active.size_bytes >= self._memtable_bytes

    @property
    def tables(self) -> tuple[Memtable, ...]:
        return (self.active,) if self.frozen is None else (self.frozen, self.active)

    def state(self, ledger_id: int) -> LedgerState:
        """The ledger's state, made when it was never heard of."""
        state = self.ledgers.get(ledger_id)
        if state is None:
            state = self.ledgers[ledger_id] = LedgerState(ledger_id)
        return state

    def freeze(self) -> tuple[Memtable, list[LedgerState]]:
        """Turn the active memtable into the frozen one; returns it, and the ledgers concerned or changed."""
        assert self.frozen is None
        self.frozen, self.active = self.active, Memtable()
        concerned = self.frozen.ledgers.keys() | self.changed
        self.changed.clear()
        return self.frozen, [self.ledgers[ledger_id] for ledger_id in sorted(concerned)]

    def release_frozen(self) -> None:
        """The frozen memtable is in the entry log, whole: forget it."""
        self.frozen = None
