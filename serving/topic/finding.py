"""Search for an entry of a topic by message index or by time.

| key | method |
|---|---|
| message index | the segments' records, then a binary search by the indexes in block headers |
| broker's clock | the segments' records, then the time index of the segment on the bookies or in the archive |
| publish time (client's clock) | `time_search` |

If segments are trimmed during a search, the search starts again (`unless_trimmed`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from quire.runtime.errors import NotFound
from quire.runtime.limits import METADATA_LOOKED_INTO_BYTES_MAX
from quire.serving.model.ports import EARLIEST, Position, TopicPort
from quire.serving.topic.reading import TopicReader
from quire.serving.topic.segments import Segments
from quire.serving.topic.time_search import TimeSearch as TimeSearch
from quire.wire import block as blocks
from quire.wire.block import Buffer
from quire.wire.message import Undecodable, is_batch, read_metadata

T = TypeVar("T")


async def unless_trimmed(topic: TopicPort, ask: Callable[[], Awaitable[T]]) -> T:
    """Return the result of `ask`; call it again if it raises `NotFound` because the topic was trimmed."""
    while True:
        first = topic.first_position()
        try:
            return await ask()
        except NotFound:
            if topic.first_position() == first:
                raise


async def index_of(topic: TopicPort, position: Position) -> int:
    """Return the topic-wide index of the first message at `position`.

    For a position after the last entry, return the index of the next message to be published.
    """
    return await unless_trimmed(topic, lambda: _index_of(topic, position))


async def position_of(topic: TopicPort, index: int) -> Position:
    """Return the position of the entry that contains message `index`.

    For an index after the last message, return the position of the next entry to be published.
    """
    return await unless_trimmed(topic, lambda: _position_of(topic, index))


async def last_message(topic: TopicPort) -> tuple[Position, int]:
    """See `TopicPort.last_message`."""
    return await unless_trimmed(topic, lambda: _last_message(topic))


async def _index_of(topic: TopicPort, position: Position) -> int:
    if position > topic.last_confirmed:
        return topic.confirmed_index
    position = max(position, topic.first_position())
    found = topic.cached(position) or await topic.read(position, 1)
    if not found:
        return topic.confirmed_index
    header = blocks.peek(found[0])
    before = blocks.message_counts(found[0], header)[: position.entry_id - header.first_entry]
    return header.first_index + sum(before)


async def _position_of(topic: TopicPort, index: int) -> Position:
    views = [view for view in topic.segments() if view.first_index <= index and view.messages]
    if not views or index >= topic.confirmed_index:
        return topic.next_position(topic.last_confirmed)
    low, high = 0, views[-1].last_entry
    while low < high:
        middle = (low + high + 1) // 2
        if await _index_of(topic, Position(views[-1].ledger_id, middle)) <= index:
            low = middle
        else:
            high = middle - 1
    return Position(views[-1].ledger_id, low)


async def find_clock(segments: Segments, reader: TopicReader, wanted_ms: int) -> Position:
    """Return the position from which a read includes all blocks cut at `wanted_ms` (broker's clock) or later."""
    for segment in segments.sealed:
        if segment.last_clock_ms >= wanted_ms:
            return Position(segment.ledger_id, await reader.find_time(segment.ledger_id, wanted_ms))
    active = segments.active
    if active is None or active.last_entry < 0 or active.last_clock_ms < wanted_ms:
        return segments.next_position(segments.last_position())
    if active.first_clock_ms >= wanted_ms:
        return Position(active.ledger_id, 0)
    return Position(active.ledger_id, await reader.find_time(active.ledger_id, wanted_ms))


async def _last_message(topic: TopicPort) -> tuple[Position, int]:
    position = topic.last_confirmed
    if position.entry_id < 0:
        return EARLIEST, -1
    found = topic.cached(position) or await topic.read(position, 1)
    return position, _last_batch_index(found[0], position) if found else -1


def _last_batch_index(block: Buffer, position: Position) -> int:
    header = blocks.peek(block)
    if blocks.is_blank(header):
        return -1
    at = position.entry_id - header.first_entry
    try:
        metadata, _ = read_metadata(blocks.entries(block, header)[at], METADATA_LOOKED_INTO_BYTES_MAX)
    except Undecodable:
        return -1
    return metadata.num_messages_in_batch - 1 if is_batch(metadata) else -1
