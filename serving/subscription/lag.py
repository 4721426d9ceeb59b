"""How far a subscription is behind, in bytes and in time; `counting` has it in messages.

    bytes      what the topic keeps from the oldest unacknowledged entry on, as it is stored. What was acknowledged
               after that entry counts in: it cannot be trimmed before it.
    time       when the oldest unacknowledged message was published, by its own publish time

Both are of one position, the entry after mark-delete, and looked up when they are asked for: the time in one block,
which is remembered until mark-delete moves; the bytes by the nearer known point of `byte_index`. A walk reads
`WALK_BYTES_MAX` at most for one question; where that does not do, or reading fails, the answer is interpolated and said
not to be exact, and the next question goes on from where this one came to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from quire.runtime.errors import QuireError
from quire.runtime.limits import METADATA_LOOKED_INTO_BYTES_MAX, READ_CHUNK_BYTES
from quire.serving.model.ports import Position, SegmentView, TopicPort
from quire.serving.subscription.byte_index import ByteIndex, Point
from quire.wire import block, message
from quire.wire.block import BlockHeader, Buffer

WALK_BYTES_MAX = 16 * READ_CHUNK_BYTES


class Bytes(NamedTuple):
    """Bytes, and whether they were counted rather than interpolated."""

    size: int
    is_exact: bool


async def bytes_from(topic: TopicPort, index: ByteIndex, position: Position) -> Bytes:
    """What the topic keeps from the entry at `position` on."""
    segments = topic.segments()
    index.keep({one.ledger_id for one in segments})
    after = sum(one.bytes for one in segments if one.ledger_id > position.ledger_id)
    for segment in segments:
        if segment.ledger_id == position.ledger_id and 0 <= position.entry_id <= segment.last_entry:
            before = await _bytes_before(topic, index, segment, position.entry_id)
            return Bytes(after + segment.bytes - before.size, before.is_exact)
        if segment.ledger_id == position.ledger_id and position.entry_id < 0:
            after += segment.bytes
    return Bytes(after, True)


def estimated_bytes_from(segments: Sequence[SegmentView], index: ByteIndex, position: Position) -> int:
    """The same as `bytes_from` without reading anything: interpolated where blocks would have to be."""
    found = 0
    for segment in segments:
        if segment.ledger_id > position.ledger_id:
            found += segment.bytes
        elif segment.ledger_id == position.ledger_id and position.entry_id <= segment.last_entry:
            end = Point(segment.last_entry + 1, segment.bytes)
            before, after = index.around(segment.ledger_id, max(0, position.entry_id), end)
            share = (position.entry_id - before.entry_id) / (after.entry_id - before.entry_id)
            found += segment.bytes - before.offset - round(max(0.0, share) * (after.offset - before.offset))
    return found


def estimated_clock_ms(segments: Sequence[SegmentView], position: Position) -> int:
    """When the broker took the entry at `position`, as if a segment's came at even intervals; 0: nothing tells."""
    for segment in segments:
        if segment.ledger_id == position.ledger_id and 0 <= position.entry_id <= segment.last_entry:
            share = position.entry_id / max(1, segment.last_entry)
            return segment.first_clock_ms + round(share * (segment.last_clock_ms - segment.first_clock_ms))
        if segment.ledger_id > position.ledger_id:
            return segment.first_clock_ms
    return 0


async def _bytes_before(topic: TopicPort, index: ByteIndex, segment: SegmentView, entry_id: int) -> Bytes:
    """The bytes of a segment before one of its entries."""
    before, after = index.around(segment.ledger_id, entry_id, Point(segment.last_entry + 1, segment.bytes))
    if entry_id == before.entry_id:
        return Bytes(before.offset, True)
    share = (entry_id - before.entry_id) / (after.entry_id - before.entry_id)
    distance = after.offset - before.offset
    # Only a walk up leaves points after it when it is not finished.
    is_up = share <= 0.5 or (1 - share) * distance > WALK_BYTES_MAX
    try:
        if is_up:
            found = await _walk_up(topic, index, segment.ledger_id, before, entry_id)
        else:
            found = await _walk_down(topic, index, segment.ledger_id, entry_id, after)
    except QuireError:
        # Who asks wants to know, among other things, that reading fails.
        found = None
    if found is not None:
        return Bytes(found, True)
    return Bytes(before.offset + round(share * distance), False)


async def _walk_up(
    topic: TopicPort, index: ByteIndex, ledger_id: int, point: Point, entry_id: int
) -> int | None:
    """From a known point to the entry; None when it is too far."""
    walked, offset, at = 0, point.offset, point.entry_id
    while walked < WALK_BYTES_MAX:
        for buffer in await _blocks(topic, Position(ledger_id, at)):
            header = block.peek(buffer)
            if entry_id <= header.last_entry:
                return offset + _inside(buffer, header, entry_id)
            walked, offset, at = walked + header.length, offset + header.length, header.last_entry + 1
            index.learn(ledger_id, Point(at, offset))
    return None


async def _walk_down(
    topic: TopicPort, index: ByteIndex, ledger_id: int, entry_id: int, point: Point
) -> int | None:
    """From the entry to a known point after it, counted backwards; None when it is too far."""
    walked, inside, at = 0, -1, entry_id
    while walked < WALK_BYTES_MAX:
        for buffer in await _blocks(topic, Position(ledger_id, at)):
            header = block.peek(buffer)
            if inside < 0:
                inside, first = _inside(buffer, header, entry_id), header.first_entry
            walked, at = walked + header.length, header.last_entry + 1
            if at >= point.entry_id:
                index.learn(ledger_id, Point(first, point.offset - walked))
                return point.offset - walked + inside
    return None


async def _blocks(topic: TopicPort, position: Position) -> list[Buffer]:
    """Blocks from the one that holds a confirmed position."""
    found = topic.cached(position) or await topic.read(position, READ_CHUNK_BYTES)
    assert found, f"{topic.name} has no block at {position}"
    return list(found)


def _inside(buffer: Buffer, header: BlockHeader, entry_id: int) -> int:
    """The bytes of a block before one of its entries; header and table belong to the first."""
    at = entry_id - header.first_entry
    return header.entries_offset + block.ends(buffer, header)[at - 1] if at else 0


async def published_ms(topic: TopicPort, position: Position) -> int:
    """When the entry at a confirmed position was published, in ms since 1970."""
    found = topic.cached(position) or await topic.read(position, 1)
    assert found, f"{topic.name} has no block at {position}"
    header = block.peek(found[0])
    try:
        entry = block.entries(found[0], header)[position.entry_id - header.first_entry]
        return message.read_metadata(entry, METADATA_LOOKED_INTO_BYTES_MAX)[0].publish_time
    except message.Undecodable:
        return header.clock_ms
