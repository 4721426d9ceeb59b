"""Blank blocks in place of permanently lost entries that an operator gave up. Performs no I/O.

A *hole* is a range of such entries in a closed ledger's record. Blank blocks are made from the record alone:

    record      one hole: entries 4 to 9, with at least six messages
    reader      … block 0-3 │ blank 4-9 │ block 10-… : no gap in entries, message indexes or clocks

So all readers of a ledger's blocks (subscriptions, cursors, the archive, Spark, state logs) read a hole like any other
blocks, and recognize blank blocks by `block.is_blank`. Bookies are never asked for entries in a hole, even if a disk
could return their blocks again, because all reads of an entry must return the same block.

A hole is divided into blocks of `BLANK_ENTRIES` from its first entry on, so all readers see the same bytes. Each lost
entry counts as one message; the first entry also counts for all remaining messages of the hole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from quire.metadata.records import Hole, LedgerRecord
from quire.wire import block
from quire.wire.block import Buffer

BLANK_ENTRIES: Final = 4096
"""Maximum number of entries in one blank block, so that even a long hole needs few blocks."""


def hole_at(record: LedgerRecord, entry: int) -> Hole | None:
    """Return the hole of a closed ledger that contains `entry`, if any."""
    found = (hole for hole in record.holes if hole.first_entry <= entry <= hole.last_entry)
    return next(found, None) if entry <= record.last_entry else None


def whole_up_to(record: LedgerRecord, entry: int, end: int) -> int:
    """Return the last entry, at most `end`, before the next hole after `entry`; `entry` must not be in a hole."""
    return min((hole.first_entry - 1 for hole in record.holes if hole.first_entry > entry), default=end)


def blank_at(ledger_id: int, hole: Hole, entry: int) -> Buffer:
    """Return the blank block that contains `entry` of a hole."""
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
    """Yield the parts of the range from `first_entry` to `last_entry` that are outside holes, in order."""
    for hole in sorted(record.holes, key=lambda each: each.first_entry):
        if hole.first_entry > last_entry:
            break
        if first_entry < hole.first_entry:
            yield first_entry, hole.first_entry - 1
        first_entry = max(first_entry, hole.last_entry + 1)
    if first_entry <= last_entry:
        yield first_entry, last_entry


def lost_messages(record: LedgerRecord) -> int:
    """Return the number of messages that were given up; one per entry where the exact number is unknown."""
    return sum(max(hole.messages, hole.last_entry + 1 - hole.first_entry) for hole in record.holes)
