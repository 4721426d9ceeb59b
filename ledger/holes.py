"""What stands for entries that were lost and given up: blank blocks, made from the ledger's record alone. A core.

    record      holes: entries 4 to 9, six messages and more
    reader      … block 0-3 │ blank 4-9 │ block 10-… : no gap in entries, message indexes or clocks

So whoever reads a ledger's blocks in order (subscriptions, cursors, the archive, Spark, state logs) goes on over a hole
as over any block, and sees that there is nothing in it (`block.is_blank`). A bookie is never asked about a hole, also
when a disk gives its blocks back later: who read a blank block once reads it again.

A hole is cut into blocks of `BLANK_ENTRIES` from its first entry on, so two readers see the same bytes. Each lost entry
counts as one message, and the first one as all that is left over.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from quire.metadata.records import Hole, LedgerRecord
from quire.wire import block
from quire.wire.block import Buffer

BLANK_ENTRIES: Final = 4096


def hole_at(record: LedgerRecord, entry: int) -> Hole | None:
    """The hole of a closed ledger that `entry` lies in."""
    found = (hole for hole in record.holes if hole.first_entry <= entry <= hole.last_entry)
    return next(found, None) if entry <= record.last_entry else None


def whole_up_to(record: LedgerRecord, entry: int, end: int) -> int:
    """The last entry up to `end` before the next hole after `entry`, which is in none."""
    return min((hole.first_entry - 1 for hole in record.holes if hole.first_entry > entry), default=end)


def blank_at(ledger_id: int, hole: Hole, entry: int) -> Buffer:
    """The blank block that holds `entry` of a hole."""
    part = (entry - hole.first_entry) // BLANK_ENTRIES
    first = hole.first_entry + part * BLANK_ENTRIES
    count = min(BLANK_ENTRIES, hole.last_entry + 1 - first)
    extra = max(0, hole.messages - (hole.last_entry + 1 - hole.first_entry))
    counts = [1] * count
    index = hole.first_index + first - hole.first_entry
    if part == 0:
        counts[0] += extra
    else:
        index += extra
    return block.blank(ledger_id, first, hole.clock_ms, index, counts)


def parts(record: LedgerRecord, first_entry: int, last_entry: int) -> Iterator[tuple[int, int]]:
    """What of a range of entries lies in no hole, in order."""
    for hole in sorted(record.holes, key=lambda each: each.first_entry):
        if hole.first_entry > last_entry:
            break
        if first_entry < hole.first_entry:
            yield first_entry, hole.first_entry - 1
        first_entry = max(first_entry, hole.last_entry + 1)
    if first_entry <= last_entry:
        yield first_entry, last_entry


def lost_messages(record: LedgerRecord) -> int:
    """Messages that were given up, as far as is known: at least one an entry."""
    return sum(max(hole.messages, hole.last_entry + 1 - hole.first_entry) for hole in record.holes)
