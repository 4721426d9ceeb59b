"""Arithmetic on positions: what lies behind an entry, and which entries there are.

A position is (ledger, entry), and a topic's ledgers follow one another with gaps in their ids, so "the next
entry" needs the list of segments. A segment that ended empty is stepped over; the entry behind the last one
may not be written yet.

    position           segments 5: 0..9, 7: empty, 8: 0..3 (active)
    (5, 3)             -> (5, 4)
    (5, 9)             -> (8, 0)         7 ended empty
    (8, 3)             -> (8, 4)         not written yet
    (3, 7)             -> (5, 0)         3 was trimmed
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from operator import attrgetter

from quire.serving.model.ports import EARLIEST, Position, SegmentView

_ledger_id = attrgetter("ledger_id")


def following(position: Position, segments: Sequence[SegmentView]) -> Position:
    """The entry behind `position`; it may not be written yet. `segments` as in `TopicPort.segments`."""
    at = bisect_left(segments, position.ledger_id, key=_ledger_id)
    for segment in segments[at:]:
        first = position.entry_id + 1 if segment.ledger_id == position.ledger_id else 0
        if first <= segment.last_entry:
            return Position(segment.ledger_id, first)
    if at < len(segments) and segments[-1].ledger_id > position.ledger_id:
        return Position(segments[-1].ledger_id, 0)
    return Position(position.ledger_id, position.entry_id + 1)


def preceding(position: Position) -> Position:
    """What is the mark-delete position when `position` is the next to be read; its entry may be -1."""
    return Position(position.ledger_id, position.entry_id - 1)


class Segments:
    """A topic's segments as they are now; answers for cursors and dispatchers, which hold no topic."""

    __slots__ = ("_views",)

    def __init__(self, views: Callable[[], Sequence[SegmentView]]) -> None:
        self._views = views

    def freeze(self) -> None:
        """They stay as they are now: the topic is not asked any more."""
        views = self._views()
        self._views = lambda: views

    def following(self, position: Position) -> Position:
        return following(position, self._views())

    def last_entry(self, ledger_id: int) -> int:
        """The last confirmed entry of a segment; -1 when it is empty or not this topic's (any more)."""
        views = self._views()
        at = bisect_left(views, ledger_id, key=_ledger_id)
        found = at < len(views) and views[at].ledger_id == ledger_id
        return views[at].last_entry if found else -1

    def at_or_before(self, position: Position) -> Position:
        """The last entry that is there up to and with `position`; `EARLIEST` when none is.

        A ledger behind all of this topic's is none of it, and no entry of it or before it is meant.
        """
        views = self._views()
        if not views or views[-1].ledger_id < position.ledger_id:
            return EARLIEST
        for view in reversed(views):
            last = (
                min(position.entry_id, view.last_entry)
                if view.ledger_id == position.ledger_id
                else view.last_entry
            )
            if view.ledger_id <= position.ledger_id and last >= 0:
                return Position(view.ledger_id, last)
        return EARLIEST

    def clamp(self, position: Position) -> Position:
        """The next entry to read that is `position`, or the first behind it that is here, or the end."""
        views = self._views()
        if not views:
            return position
        last = views[-1]
        end = Position(last.ledger_id, last.last_entry + 1)
        return min(following(preceding(position), views), end)
