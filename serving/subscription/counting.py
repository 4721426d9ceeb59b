"""Backlogs and cursors in numbers, for those who ask: exact, and counted when they are asked for (else `estimate`).

The read position counts as reading goes on and as acknowledgements come (see its arithmetic). Two things it may not
know: the index of the message there, before a block there was seen, and how many messages were acknowledged before they
were read (by a client that acknowledges what it got before a restart). Both are looked up here, by reading the blocks
concerned. What changes while that is awaited is looked up again, a few times.
"""

from __future__ import annotations

from typing import Any

from pyroaring import BitMap

from quire.serving.model.ports import Position, TopicPort
from quire.serving.subscription.cursor.cursor import Cursor
from quire.serving.subscription.cursor.entry_set import run_count, spans
from quire.serving.subscription.delivery.delivery import BlockView
from quire.serving.subscription.dispatch.read_position import ReadPosition
from quire.wire import block

TRIES = 4
SHOWN_ENTRIES_MAX = 10_000
"""Of a ledger, in `individuallyDeletedMessages`: a million holes would be 20 MB of text."""


async def backlog(topic: TopicPort, read: ReadPosition) -> int:
    """Messages that are confirmed and not acknowledged."""
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
    """The same where blocks cannot be read: as if the messages of a segment were spread evenly over its entries."""
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
    """Count the messages that were acknowledged before they were read."""
    ahead = read.acknowledged_ahead()
    messages = 0
    for ledger_id, entries, left in ahead:
        messages += await _messages(topic, ledger_id, entries) - left
    read.learn_ahead(ahead, messages)


async def _messages(topic: TopicPort, ledger_id: int, entries: BitMap) -> int:
    """Messages of `entries`, acknowledged or not."""
    messages = 0
    if any(one.ledger_id == ledger_id and one.messages == one.last_entry + 1 for one in topic.segments()):
        # Nothing of the segment is a batch, so nothing need be read.
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
    """Runs of acknowledged entries after mark-delete."""
    return sum(map(run_count, cursor.acked.by_ledger.values()))


def cursor_stats(cursor: Cursor, read: Position) -> dict[str, Any]:
    """As Pulsar's cursor stats, in `internalStats`; of the acknowledged entries the first runs only."""
    acked = (
        f"({ledger_id}:{start - 1}..{ledger_id}:{stop - 1}]"
        for ledger_id, entries in cursor.acked.items()
        for start, stop in spans(entries[:SHOWN_ENTRIES_MAX])
    )
    return {
        "markDeletePosition": "{}:{}".format(*cursor.mark_delete),
        "readPosition": "{}:{}".format(*read),
        "individuallyDeletedMessages": f"[{','.join(acked)}]",
        "totalNonContiguousDeletedMessagesRange": holes(cursor),
        "properties": cursor.properties,
        "state": "Open",
    }
