"""Backlogs and cursor statistics, computed on request. A backlog is exact, or an `estimate` that needs no read.

The read position counts messages as they are read and acknowledged (see `dispatch/read_position`). It may lack two
numbers:

- the topic-wide index of the next message, until a block at this position was read;
- the number of messages that were acknowledged before they were read, by a client that received them before a restart.

Both are computed here by reading the blocks. If they change during the reads, they are computed again, at most `TRIES`
times.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyroaring import BitMap

from quire.serving.model.ports import Position, TopicPort
from quire.serving.model.statistics import CursorStats
from quire.serving.subscription.cursor.cursor import Cursor
from quire.serving.subscription.cursor.entry_set import run_count, spans
from quire.serving.subscription.delivery.delivery import BlockView
from quire.serving.subscription.dispatch.read_position import ReadPosition
from quire.wire import block

TRIES = 4
SHOWN_ENTRIES_MAX = 10_000
"""Maximum entries per ledger in `individuallyDeletedMessages`, because a million ranges would be 20 MB of text."""


async def backlog(topic: TopicPort, read: ReadPosition) -> int:
    """Count the confirmed messages that are not acknowledged."""
    for _ in range(TRIES):
        read.normalise()
        if read.index is None:
            position = read.position
            read.learn_index(position, await topic.index_of(position))
        if not read.ahead_known:
            await _count_ahead(topic, read)
        if read.index is not None and read.ahead_known:
            break
    index = read.index if read.index is not None else topic.confirmed_index
    return read.backlog(topic.confirmed_index, index)


def estimate(topic: TopicPort, read: ReadPosition) -> int:
    """Estimate the backlog without a read, assuming that each segment's messages are spread evenly over its entries."""
    index = read.index
    if index is None:
        ledger_id, entry_id = read.position
        index = topic.confirmed_index
        for segment in reversed(topic.segments()):
            if segment.ledger_id >= ledger_id:
                index = segment.first_index
            if segment.ledger_id == ledger_id:
                index += (
                    segment.messages * min(entry_id, segment.last_entry + 1) // max(1, segment.last_entry + 1)
                )
    return max(0, read.backlog(topic.confirmed_index, index))


async def _count_ahead(topic: TopicPort, read: ReadPosition) -> None:
    """Count the messages that were acknowledged before they were read, and record the number in `read`."""
    ahead = read.acknowledged_ahead()
    messages = 0
    for ledger_id, entries, left in ahead:
        messages += await _messages(topic, ledger_id, entries) - left
    read.learn_ahead(ahead, messages)


async def _messages(topic: TopicPort, ledger_id: int, entries: BitMap) -> int:
    """Count the messages of `entries`, acknowledged or not."""
    messages = 0
    if any(one.ledger_id == ledger_id and one.messages == one.last_entry + 1 for one in topic.segments()):
        # The segment has no batches, so no block need be read.
        return len(entries)
    left = entries.copy()
    while left:
        position = Position(ledger_id, left.min())
        found = topic.cached(position) or await topic.read(position, 1)
        view = BlockView(found[0], block.peek(found[0]))
        inside = left & BitMap(range(view.first_entry, view.stop_entry))
        messages += view.messages_of(inside)
        left -= inside
    return messages


def holes(cursor: Cursor) -> int:
    """Count the runs of acknowledged entries after the mark-delete position."""
    return sum(map(run_count, cursor.acked.by_ledger.values()))


def runs_of(cursor: Cursor) -> Iterator[tuple[int, int, int]]:
    """Yield the first runs of acknowledged entries after mark-delete: (ledger id, first entry, entry after the run)."""
    for ledger_id, entries in cursor.acked.items():
        for start, stop in spans(entries[:SHOWN_ENTRIES_MAX]):
            yield ledger_id, start, stop


def cursor_stats(cursor: Cursor, read: Position) -> CursorStats:
    """Describe a cursor, with only the first runs of acknowledged entries."""
    acked = (
        f"({ledger_id}:{start - 1}..{ledger_id}:{stop - 1}]" for ledger_id, start, stop in runs_of(cursor)
    )
    return CursorStats(
        mark_delete_position="{}:{}".format(*cursor.mark_delete),
        read_position="{}:{}".format(*read),
        individually_deleted_messages=f"[{','.join(acked)}]",
        total_non_contiguous_deleted_messages_range=holes(cursor),
        subscription_properties=cursor.properties,
    )
