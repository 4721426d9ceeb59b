"""Memtable: blocks that are in the journal, or queued for it, and not yet in the entry log.

There are two memtables: the active one accepts blocks, the frozen one is being flushed. A memtable is a plain sorted
map from (ledger, first entry) to the block. It holds references, never copies. A writer's blocks arrive in order, so an
add is an append; only recovery and repair fill gaps. The few functions that need a block's entry ids read them from its
header.

Two blocks of a memtable never overlap: the caller checks `overlapping` first.
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
    """Blocks of one ledger in a memtable, in order of entries."""

    __slots__ = ("blocks", "last_entry")

    def __init__(self) -> None:
        self.blocks: list[Buffer] = []
        self.last_entry = -1
        """Last entry of the last block."""

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.blocks))

    def insert(self, first_entry: int, block: Buffer) -> None:
        """Insert a block whose entries precede those of the last block."""
        self.blocks.insert(bisect_left(self.blocks, first_entry, key=_first_entry), block)

    def place_of(self, entry_id: int) -> int:
        """Return the index in `blocks` of the block that contains the entry; -1 if no block does."""
        place = bisect_right(self.blocks, entry_id, key=_first_entry) - 1
        return place if place >= 0 and _last_entry(self.blocks[place]) >= entry_id else -1

    def overlapping(self, first_entry: int, last_entry: int) -> Buffer | None:
        """Return the first block that contains an entry from `first_entry` to `last_entry`, if any."""
        place = bisect_left(self.blocks, first_entry, key=_last_entry)
        if place < len(self.blocks) and _first_entry(self.blocks[place]) <= last_entry:
            return self.blocks[place]
        return None


class Memtable:
    """Blocks by ledger; `size_bytes` is the sum of their lengths."""

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
            assert found.overlapping(first_entry, last_entry) is None, "an entry would have two blocks"
            found.insert(first_entry, block)
            return
        found.last_entry = last_entry
        found.blocks.append(block)

    def overlapping(self, ledger_id: int, first_entry: int, last_entry: int) -> Buffer | None:
        """Return the first block of the ledger that contains an entry from `first_entry` to `last_entry`, if any."""
        found = self.ledgers.get(ledger_id)
        return found.overlapping(first_entry, last_entry) if found is not None else None

    def runs(self) -> Iterator[tuple[int, list[Buffer]]]:
        """Yield (ledger id, its blocks in order), sorted by ledger, as a flush needs them."""
        for ledger_id in sorted(self.ledgers):
            yield ledger_id, self.ledgers[ledger_id].blocks


def read(tables: tuple[Memtable, ...], ledger_id: int, first_entry: int, bytes_max: int) -> list[Buffer]:
    """Return contiguous blocks from the one that contains `first_entry` on; [] if no table has that entry.

    At least one block is returned, then as many as fit into `bytes_max`. A ledger's blocks may be in both tables.
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
    """Return first and last entry of each block of a ledger, in order."""
    here = [found for table in tables if (found := table.ledgers.get(ledger_id)) is not None]
    return sorted((_first_entry(block), _last_entry(block)) for found in here for block in found.blocks)


def find_time(
    tables: tuple[Memtable, ...], ledger_id: int, time_ms: int, clock_of: Callable[[Buffer], int]
) -> int | None:
    """Return the first entry of the first block with a clock of `time_ms` or later; None if there is no such block.

    The clocks of a ledger's blocks never decrease.
    """
    entries: list[int] = []
    for table in tables:
        found = table.ledgers.get(ledger_id)
        if found is not None:
            place = bisect_left(found.blocks, time_ms, key=clock_of)
            entries += map(_first_entry, found.blocks[place : place + 1])
    return min(entries, default=None)
