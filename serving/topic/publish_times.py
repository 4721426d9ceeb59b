"""Publish times of the entries of one ledger that searches have read so far. Performs no I/O.

Publish times come from clients' clocks, so they may decrease along a ledger. Their *running maximum* never decreases:
it first reaches a time t at the first message published at t or later. There is one checkpoint of the running maximum
for each piece of `CHECKPOINT_BYTES` of blocks, so a search reads one piece. The minimum of each piece shows which is
the last piece with a message published before a given time.

    entries     0 ........ stop[0] ........ stop[1] ........ next_entry
    maximum              max[0]          max[1]           max_ms (all entries)
    minimum          min[0]          min[1]           _piece.min_ms (since the last checkpoint)
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import Final

from quire.runtime.limits import MIB
from quire.wire.block import BlockHeader, Buffer
from quire.wire.publish_time import PublishTimes

CHECKPOINT_BYTES: Final = MIB


class LedgerTimes:
    """Running maximum of publish times in one ledger, from its first entry up to `next_entry`."""

    __slots__ = ("_bytes_since", "_maxima", "_minima", "_piece", "_stops", "next_entry", "times")

    def __init__(self) -> None:
        self.next_entry = 0
        """First entry that no search has read yet."""
        self.times = PublishTimes()
        """Extremes of the publish times of all entries read so far."""
        self._stops = array("Q")
        self._maxima = array("Q")
        self._minima = array("Q")
        self._piece = PublishTimes()
        """Extremes of the publish times since the last checkpoint."""
        self._bytes_since = 0

    def add(self, buffer: Buffer, header: BlockHeader) -> None:
        """Add the next block of the ledger."""
        assert header.first_entry == self.next_entry
        added = PublishTimes()
        added.add(buffer, header)
        self.times.merge(added)
        self._piece.merge(added)
        self.next_entry = header.last_entry + 1
        self._bytes_since += header.length
        if self._bytes_since >= CHECKPOINT_BYTES:
            self._stops.append(self.next_entry)
            self._maxima.append(self.times.max_ms)
            self._minima.append(self._piece.min_ms)
            self._piece = PublishTimes()
            self._bytes_since = 0

    def find(self, time_ms: int) -> int | None:
        """Return the entry at the last checkpoint before the first entry published at `time_ms` or later.

        Return None if no such entry was read.
        """
        if not self.times or self.times.max_ms < time_ms:
            return None
        at = bisect_left(self._maxima, time_ms)
        return self._stops[at - 1] if at else 0

    def range(self, start_ms: int, end_ms: int) -> tuple[int, int]:
        """Return a range `[first, end)` with all entries read so far that were published in `[start_ms, end_ms)`."""
        first = self.find(start_ms)
        if first is None:
            return self.next_entry, self.next_entry
        return first, max(first, self._end(end_ms))

    def _end(self, time_ms: int) -> int:
        """Return the entry at the first checkpoint after the last entry published before `time_ms`.

        Return 0 if no such entry was read.
        """
        before_ms = max(time_ms, 2)  # a minimum of 1 also represents 0 and unknown times
        if self._piece.min_ms < before_ms:
            return self.next_entry
        for stop, min_ms in zip(reversed(self._stops), reversed(self._minima), strict=True):
            if min_ms < before_ms:
                return stop
        return 0
