"""Where blocks begin in a segment, in bytes: a few points of each, kept sorted. A core.

Blocks say which message they begin with, but not how many bytes lie before them; so the bytes of a backlog are
counted by walking over blocks from a place whose offset is known. A segment's two ends always are. What a walk
passes is remembered every `STEP_BYTES`, so that the next walk of any subscription of the topic is short.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container
from typing import NamedTuple

STEP_BYTES = 1 << 20
"""Points lie at least this far apart: 4 KiB of memory for a segment of 256 MiB."""


class Point(NamedTuple):
    """The bytes of a segment's blocks before the block that begins with `entry_id`."""

    entry_id: int
    offset: int


class ByteIndex:
    """The known points of a topic's segments."""

    __slots__ = ("_by_ledger",)

    def __init__(self) -> None:
        self._by_ledger: dict[int, list[Point]] = {}

    def learn(self, ledger_id: int, point: Point) -> None:
        """Remember `point`, unless a known one is near."""
        known = self._by_ledger.setdefault(ledger_id, [])
        at = bisect_right(known, point)
        beside = [0, *(one.offset for one in known[max(0, at - 1) : at + 1])]
        if all(abs(point.offset - offset) >= STEP_BYTES for offset in beside):
            known.insert(at, point)

    def around(self, ledger_id: int, entry_id: int, end: Point) -> tuple[Point, Point]:
        """The last known point up to `entry_id` and the first one after it; `end` is the segment's own."""
        known = self._by_ledger.get(ledger_id, [])
        at = bisect_right(known, entry_id, key=lambda one: one.entry_id)
        before = known[at - 1] if at else Point(0, 0)
        after = known[at] if at < len(known) and known[at].entry_id <= end.entry_id else end
        return before, after

    def keep(self, ledger_ids: Container[int]) -> None:
        """Forget all other segments."""
        for ledger_id in [one for one in self._by_ledger if one not in ledger_ids]:
            del self._by_ledger[ledger_id]
