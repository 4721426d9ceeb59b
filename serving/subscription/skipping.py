"""Selection of the first unacknowledged messages of a subscription, for an operator's skip.

Acknowledged messages do not count, and a batch may be skipped partly. For a segment without acknowledged messages, the
count in its record is used. In other segments blocks are read, up to the last message to skip.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from pyroaring import BitMap

from quire.runtime.limits import READ_CHUNK_BYTES
from quire.serving.model.ports import Position, SegmentView, TopicPort
from quire.serving.subscription.cursor.cursor import Cursor
from quire.serving.subscription.delivery.delivery import BlockView
from quire.wire import block
from quire.wire.block import Buffer


class Part(NamedTuple):
    """Batch that is skipped partly: `left` has a bit set for each message that is not skipped."""

    position: Position
    left: int
    batch_size: int


class Skipped(NamedTuple):
    """Entries to acknowledge, by ledger id, and the batch to acknowledge partly, if any."""

    entries: dict[int, BitMap]
    part: Part | None


async def first_messages(topic: TopicPort, cursor: Cursor, count: int) -> Skipped:
    """Select the first `count` unacknowledged messages; all of them if there are fewer."""
    found: dict[int, BitMap] = {}
    for segment in topic.segments():
        if count <= 0:
            break
        if segment.last_entry < 0 or segment.ledger_id < cursor.mark_delete.ledger_id:
            continue
        left = cursor.unacknowledged(segment.ledger_id, BitMap(range(segment.last_entry + 1)))
        if _is_untouched(cursor, segment, left) and segment.messages <= count:
            found[segment.ledger_id], count = left, count - segment.messages
            continue
        found[segment.ledger_id] = taken = BitMap()
        while left and count:
            for buffer in await _blocks(topic, Position(segment.ledger_id, left.min())):
                view = BlockView(buffer, block.peek(buffer))
                inside = left & BitMap(range(view.first_entry, view.stop_entry))
                left -= inside
                count, part = _take(cursor, view, inside, count, taken)
                if part is not None:
                    return Skipped(found, part)
            await asyncio.sleep(0)  # reads of cached blocks do not yield to the event loop
    return Skipped(found, None)


def _is_untouched(cursor: Cursor, segment: SegmentView, left: BitMap) -> bool:
    """Return whether no message of the segment is acknowledged."""
    return len(left) == segment.last_entry + 1 and not cursor.partial.within(segment.ledger_id, left)


async def _blocks(topic: TopicPort, position: Position) -> list[Buffer]:
    """Return blocks from the one that contains a confirmed position on."""
    found = topic.cached(position) or await topic.read(position, READ_CHUNK_BYTES)
    assert found, f"{topic.name} has no block at {position}"
    return list(found)


def _take(
    cursor: Cursor, view: BlockView, inside: BitMap, count: int, taken: BitMap
) -> tuple[int, Part | None]:
    """Add entries of a block to `taken`, up to `count` messages.

    Returns the number of messages still to be taken, and the batch that is taken partly, if any.
    """
    for entry_id in inside:
        if not count:
            break
        position, offset = Position(view.ledger_id, entry_id), entry_id - view.first_entry
        size = view.messages(offset, offset + 1)
        bits = cursor.remaining(position)
        messages = bits.bit_count() if bits else size
        if messages > count:
            return 0, Part(position, _without_lowest(bits or (1 << size) - 1, count), size)
        taken.add(entry_id)
        count -= messages
    return count, None


def _without_lowest(bits: int, count: int) -> int:
    """Return `bits` without the `count` lowest set bits."""
    for _ in range(count):
        bits &= bits - 1
    return bits
