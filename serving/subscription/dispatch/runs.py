"""Runs: entries of a block that are dispatched together. Performs no I/O.

Nearly every block is one run. Acknowledged entries and different redelivery counts split it; a partly acknowledged
entry is a separate run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyroaring import BitMap

from quire.serving.subscription.cursor.cursor import Cursor
from quire.serving.subscription.cursor.entry_set import run_count, spans
from quire.serving.subscription.delivery.consumer import Consumer
from quire.serving.subscription.delivery.delivery import BlockView, Delivery

SPAN_ENTRIES_MIN = 8
"""Minimum average length, in entries, of separate runs.

Shorter runs are dispatched as one run with `offsets`, because a run costs as much as ten entries.
"""


class Run(NamedTuple):
    """Entries at offsets `start` .. `stop`-1 of a block, or at `offsets` if given, that are dispatched together."""

    start: int
    stop: int
    redelivery_count: int = 0
    remaining: int = 0
    offsets: Sequence[int] = ()

    def take(self, consumer: Consumer, view: BlockView, limit: int) -> tuple[Delivery, Run | None]:
        """Return a delivery of about `limit` (> 0) messages to `consumer`, and the rest of the run, if any."""
        start, stop, count, remaining, offsets = self
        if remaining:
            return Delivery(consumer, view, start, stop, remaining.bit_count(), count, remaining), None
        if not offsets:
            end, messages = view.cover(start, stop, limit)
            rest = Run(end, stop, count) if end < stop else None
            return Delivery(consumer, view, start, end, messages, count, 0), rest
        taken, messages = view.cover_some(offsets, limit)
        some, others = offsets[:taken], offsets[taken:]
        rest = Run(others[0], stop, count, 0, others) if others else None
        return Delivery(consumer, view, start, some[-1] + 1, messages, count, 0, some), rest


def unacknowledged_runs(cursor: Cursor, view: BlockView, start: int) -> list[Run]:
    """Return the runs of unacknowledged entries of a block from offset `start` on."""
    ledger_id, first = view.ledger_id, view.first_entry
    if cursor.is_plain(ledger_id, first + start, view.stop_entry):
        return [Run(start, view.count)]
    entries = BitMap(range(first + start, view.stop_entry))
    return sorted_runs(cursor, view, cursor.unacknowledged(ledger_id, entries))


def sorted_runs(cursor: Cursor, view: BlockView, entries: BitMap) -> list[Run]:
    """Return `entries` of a block as runs of equal redelivery count; a partly acknowledged entry is a separate run."""
    first = view.first_entry
    partial = cursor.partial
    runs = []
    groups = cursor.redeliveries.split(view.ledger_id, entries)
    for count, group in groups:
        halves = partial.within(view.ledger_id, group) if partial else BitMap()
        runs += [Run(e - first, e - first + 1, count, partial.get(view.ledger_id, e)) for e in halves]
        group = group - halves if halves else group
        pieces = run_count(group)
        if len(groups) == 1 and not halves and len(group) < SPAN_ENTRIES_MIN * pieces > SPAN_ENTRIES_MIN:
            offsets = [entry - first for entry in group]
            return [Run(offsets[0], offsets[-1] + 1, count, 0, offsets)]
        runs += [Run(start - first, stop - first, count) for start, stop in spans(group)]
    runs.sort()
    return runs


def messages_left(cursor: Cursor, view: BlockView, entries: BitMap) -> int:
    """Count the remaining messages of `entries` of a block, which are not completely acknowledged."""
    messages: int = view.messages_of(entries)
    halves = cursor.partial.within(view.ledger_id, entries)
    if halves:
        messages -= view.messages_of(halves) - cursor.partial.left(view.ledger_id, halves)
    return messages
