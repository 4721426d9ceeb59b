"""The memtable: blocks that are in the journal (or on their way) and not yet in the entry log.

There are two, one that takes blocks (active) and one that is being flushed (frozen). A memtable is a plain
sorted map from (ledger, first entry) to the block, and holds references, never copies. A writer's blocks come
in order, so adding one is an append; only recovery fills gaps. Which entries a block has is asked of the block, by the
few who read here.

Two blocks of a memtable never overlap: the storage asks `overlapping` first.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import islice

from quire.wire.block import Buffer, brief


def _first_entry(block: Buffer) -> int:
    return brief(block)[2]


def _last_entry(block: Buffer) -> int:
    count, _, first_entry, *_ = brief(block)
    return first_entry + count - 1


class LedgerBlocks:
    """The blocks of one ledger, in order."""

    __slots__ = ("blocks", "last_entry")

    def __init__(self) -> None:
        self.blocks: list[Buffer] = []
        self.last_entry = -1
        """Of the last block."""

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.blocks))

    def insert(self, first_entry: int, block: Buffer) -> None:
        """Add a block that is not the last."""
        self.blocks.insert(bisect_left(self.blocks, first_entry, key=_first_entry), block)

    def place_of(self, entry_id: int) -> int:
        """Index of the block that contains the entry, or -1."""
        place = bisect_right(self.blocks, entry_id, key=_first_entry) - 1
        return place if place >= 0 and _last_entry(self.blocks[place]) >= entry_id else -1

    def overlapping(self, first_entry: int, last_entry: int) -> Buffer | None:
        """Some block that holds an entry of the range."""
        place = bisect_left(self.blocks, first_entry, key=_last_entry)
        if place < len(self.blocks) and _first_entry(self.blocks[place]) <= last_entry:
            return self.blocks[place]
        return None


class Memtable:
    """`size_bytes` is the sum of the blocks' lengths."""

    __slots__ = ("ledgers", "size_bytes")

    def __init__(self) -> None:
        self.ledgers: dict[int, LedgerBlocks] = {}
        self.size_bytes = 0

    def add(self, ledger_id: int, first_entry: int, last_entry: int, block: Buffer) -> None:
        found = self.ledgers.get(ledger_id)
        if found is None:
            found = self.ledgers[ledger_id] = LedgerBlocks()
        self.size_bytes += len(block)
        if first_entry <= found.last_entry:
            found.insert(first_entry, block)
            return
        found.last_entry = last_entry
        found.blocks.append(block)

    def overlapping(self, ledger_id: int, first_entry: int, last_entry: int) -> Buffer | None:
        """Some block of the ledger that holds an entry of the range, or None."""
        found = self.ledgers.get(ledger_id)
        return found.overlapping(first_entry, last_entry) if found is not None else None

    def runs(self) -> Iterator[tuple[int, list[Buffer]]]:
        """(ledger, its blocks in order) by ledger: the order in which they are flushed."""
        for ledger_id in sorted(self.ledgers):
            yield ledger_id, self.ledgers[ledger_id].blocks


def read(tables: tuple[Memtable, ...], ledger_id: int, first_entry: int, bytes_max: int) -> list[Buffer]:
    """Whole blocks from the one that contains `first_entry`, up to the first gap or `bytes_max`; one at least.

    The tables are looked at as one: a ledger's blocks may lie in both.
    """
    here = [found for table in tables if (found := table.ledgers.get(ledger_id)) is not None]
    blocks: list[Buffer] = []
    size_bytes = 0
    entry_id = first_entry
    while True:
        for found in here:
            place = found.place_of(entry_id)
            if place >= 0:
                break
        else:
            return blocks
        for block in islice(found.blocks, place, None):
            if blocks and _first_entry(block) != entry_id:
                break
            if blocks and size_bytes + len(block) > bytes_max:
                return blocks
            blocks.append(block)
            size_bytes += len(block)
            entry_id = _last_entry(block) + 1


def spans(tables: tuple[Memtable, ...], ledger_id: int) -> list[tuple[int, int]]:
    """First and last entry of each block of a ledger, in order."""
    here = [found for table in tables if (found := table.ledgers.get(ledger_id)) is not None]
    return sorted((_first_entry(block), _last_entry(block)) for found in here for block in found.blocks)


def find_time(
    tables: tuple[Memtable, ...], ledger_id: int, time_ms: int, clock_of: Callable[[Buffer], int]
) -> int | None:
    """First entry of the first block whose clock is `time_ms` or later. A ledger's clock never goes back."""
    entries: list[int] = []
    for table in tables:
        found = table.ledgers.get(ledger_id)
        if found is not None:
            place = bisect_left(found.blocks, time_ms, key=clock_of)
            entries += map(_first_entry, found.blocks[place : place + 1])
    return min(entries, default=None)
