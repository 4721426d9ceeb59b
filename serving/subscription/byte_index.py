"""Sparse index of the byte offsets of blocks in a topic's segments. Performs no I/O.

A block's header contains the index of its first message, but not the number of bytes before it. So the size of a
backlog in bytes is computed by reading block headers from an entry whose offset is known. The offsets of a segment's
two ends are always known. Such a scan adds a point every `STEP_BYTES`, so that later scans of all subscriptions of the
topic are short.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container
from typing import NamedTuple

STEP_BYTES = 1 << 20
"""Minimum distance of two known points, in bytes; a segment of 256 MiB has at most 256 points."""


class Point(NamedTuple):
    """Known offset: the number of bytes in a segment before the block whose first entry is `entry_id`."""

    entry_id: int
    offset: int


class ByteIndex:
    """Known points (byte offsets of blocks) of a topic's segments."""

    __slots__ = ("_by_ledger",)

    def __init__(self) -> None:
        self._by_ledger: dict[int, list[Point]] = {}

    def learn(self, ledger_id: int, point: Point) -> None:
        """Add `point`, unless a known point is within `STEP_BYTES`."""
        known = self._by_ledger.setdefault(ledger_id, [])
        at = bisect_right(known, point)
        beside = [0, *(one.offset for one in known[max(0, at - 1) : at + 1])]
        if all(abs(point.offset - offset) >= STEP_BYTES for offset in beside):
            known.insert(at, point)

    def around(self, ledger_id: int, entry_id: int, end: Point) -> tuple[Point, Point]:
        """Return the last known point at or before `entry_id`, and the first known point after it.

        `end` is the segment's end.
        """
        known = self._by_ledger.get(ledger_id, [])
        at = bisect_right(known, entry_id, key=lambda one: one.entry_id)
        before = known[at - 1] if at else Point(0, 0)
        after = known[at] if at < len(known) and known[at].entry_id <= end.entry_id else end
        return before, after

    def keep(self, ledger_ids: Container[int]) -> None:
        """Forget all segments except `ledger_ids`."""
        for ledger_id in [one for one in self._by_ledger if one not in ledger_ids]:
            del self._by_ledger[ledger_id]
