"""Arithmetic on positions: the entry after a position, and the nearest existing entry.

A position is (ledger id, entry id). The ids of a topic's ledgers have gaps, so "the next entry" requires the list of
segments. A segment that was sealed empty is skipped. The entry after the last one may not be written yet.

    position           segments 5: 0..9, 7: empty, 8: 0..3 (active)
    (5, 3)             -> (5, 4)
    (5, 9)             -> (8, 0)         7 was sealed empty
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
    """Return the position after `position`, whose entry may not be written yet.

    `segments` is a result of `TopicPort.segments`.
    """
    at = bisect_left(segments, position.ledger_id, key=_ledger_id)
    for segment in segments[at:]:
        first = position.entry_id + 1 if segment.ledger_id == position.ledger_id else 0
        if first <= segment.last_entry:
            return Position(segment.ledger_id, first)
    if at < len(segments) and segments[-1].ledger_id > position.ledger_id:
        return Position(segments[-1].ledger_id, 0)
    return Position(position.ledger_id, position.entry_id + 1)


def preceding(position: Position) -> Position:
    """Return the mark-delete position of a cursor that reads `position` next; its entry id may be -1."""
    return Position(position.ledger_id, position.entry_id - 1)


class Segments:
    """Current segments of a topic, for cursors and dispatchers, which do not reference the topic."""

    __slots__ = ("_views",)

    def __init__(self, views: Callable[[], Sequence[SegmentView]]) -> None:
        self._views = views

    def freeze(self) -> None:
        """Keep the current segments from now on, and drop the reference to the topic."""
        views = self._views()
        self._views = lambda: views

    def following(self, position: Position) -> Position:
        return following(position, self._views())

    def last_entry(self, ledger_id: int) -> int:
        """Return the id of the last confirmed entry of a segment; -1 if it is empty, trimmed, or not of this topic."""
        views = self._views()
        at = bisect_left(views, ledger_id, key=_ledger_id)
        found = at < len(views) and views[at].ledger_id == ledger_id
        return views[at].last_entry if found else -1

    def at_or_before(self, position: Position) -> Position:
        """Return the last existing entry up to and including `position`; `EARLIEST` if there is none.

        A position whose ledger id is greater than all ledger ids of this topic belongs to another topic; the result is
        then `EARLIEST`.
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
        """Return `position` if the entry exists; otherwise the first existing entry after it, or the end."""
        views = self._views()
        if not views:
            return position
        last = views[-1]
        end = Position(last.ledger_id, last.last_entry + 1)
        return min(following(preceding(position), views), end)
