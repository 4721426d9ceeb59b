"""The memtable: blocks that are in the journal (or on their way) and not yet in the entry log.

There are two, one that takes blocks (active) and one that is being flushed (frozen). A memtable is a plain
sorted map from (ledger, first entry) to the block, and holds references, never copies. A writer's blocks come
in order, so adding one is three appends; only recovery fills gaps.

Two blocks of a memtable never overlap: the storage asks `overlapping` first.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator

from quire.wire.block import Buffer


class LedgerBlocks:
    """The blocks of one ledger, in order, as three columns of equal length."""

    __slots__ = ("blocks", "firsts", "lasts")

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.lasts: list[int] = []
        self.blocks: list[Buffer] = []

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.blocks))

    def insert(self, first_entry: int, last_entry: int, block: Buffer) -> None:
        """Add a block that may not be the last."""
        place = bisect_left(self.firsts, first_entry)
        self.firsts.insert(place, first_entry)
        self.lasts.insert(place, last_entry)
        self.blocks.insert(place, block)

    def place_of(self, entry_id: int) -> int:
        """Index of the block that contains the entry, or -1."""
        place = bisect_right(self.firsts, entry_id) - 1
        return place if place >= 0 and self.lasts[place] >= entry_id else -1

    def overlapping(self, first_entry: int, last_entry: int) -> Buffer | None:
        """Some block that holds an entry of the range."""
        place = bisect_left(self.lasts, first_entry)
        if place < len(self.firsts) and self.firsts[place] <= last_entry:
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
        lasts = found.lasts
        if lasts and first_entry <= lasts[-1]:
            found.insert(first_entry, last_entry, block)
            return
        found.firsts.append(first_entry)
        lasts.append(last_entry)
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
    columns = [found for table in tables if (found := table.ledgers.get(ledger_id)) is not None]
    blocks: list[Buffer] = []
    size_bytes = 0
    entry_id = first_entry
    while True:
        for column in columns:
            place = column.place_of(entry_id)
            if place >= 0:
                break
        else:
            return blocks
        while place < len(column.firsts) and (column.firsts[place] == entry_id or not blocks):
            block = column.blocks[place]
            if blocks and size_bytes + len(block) > bytes_max:
                return blocks
            blocks.append(block)
            size_bytes += len(block)
            entry_id = column.lasts[place] + 1
            place += 1


def spans(tables: tuple[Memtable, ...], ledger_id: int) -> list[tuple[int, int]]:
    """First and last entry of each block of a ledger, in order."""
    columns = [found for table in tables if (found := table.ledgers.get(ledger_id)) is not None]
    return sorted(span for column in columns for span in zip(column.firsts, column.lasts, strict=True))


def find_time(
    tables: tuple[Memtable, ...], ledger_id: int, time_ms: int, clock_of: Callable[[Buffer], int]
) -> int | None:
    """First entry of the first block whose clock is `time_ms` or later. A ledger's clock never goes back."""
    found = []
    for table in tables:
        column = table.ledgers.get(ledger_id)
        if column is not None:
            place = bisect_left(column.blocks, time_ms, key=clock_of)
            if place < len(column.firsts):
                found.append(column.firsts[place])
    return min(found, default=None)
