"""Backlog of a subscription in bytes and in time; `counting` computes it in messages.

    bytes      size of the stored blocks from the oldest unacknowledged entry on; includes acknowledged entries after
               it, because they cannot be trimmed before it
    time       publish time of the oldest unacknowledged message, by its producer's clock

Both are computed on request, for the entry after mark-delete. The time is read from one block; the caller (`stats`)
caches it until mark-delete moves. The bytes are computed from the nearest known point of `byte_index`, by reading at
most about `WALK_BYTES_MAX` of blocks. If that is not enough, or a read fails, the result is interpolated and marked as
inexact. The next request continues where this one stopped.
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
    """Number of bytes; `is_exact` is False if the number was interpolated."""

    size: int
    is_exact: bool


async def bytes_from(topic: TopicPort, index: ByteIndex, position: Position) -> Bytes:
    """Return the size of the topic's blocks from the entry at `position` on."""
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
    """Estimate `bytes_from` without a read, by interpolation between known points."""
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
    """Estimate the broker's clock (ms) at `position`, as if entries arrived at even intervals; 0 if unknown."""
    for segment in segments:
        if segment.ledger_id == position.ledger_id and 0 <= position.entry_id <= segment.last_entry:
            share = position.entry_id / max(1, segment.last_entry)
            return segment.first_clock_ms + round(share * (segment.last_clock_ms - segment.first_clock_ms))
        if segment.ledger_id > position.ledger_id:
            return segment.first_clock_ms
    return 0


async def _bytes_before(topic: TopicPort, index: ByteIndex, segment: SegmentView, entry_id: int) -> Bytes:
    """Return the number of bytes in a segment before one of its entries, exact or interpolated."""
    before, after = index.around(segment.ledger_id, entry_id, Point(segment.last_entry + 1, segment.bytes))
    if entry_id == before.entry_id:
        return Bytes(before.offset, True)
    share = (entry_id - before.entry_id) / (after.entry_id - before.entry_id)
    distance = after.offset - before.offset
    # An unfinished scan from `before` adds points for the next request; an unfinished scan up to `after` does not.
    is_up = share <= 0.5 or (1 - share) * distance > WALK_BYTES_MAX
    try:
        if is_up:
            found = await _walk_up(topic, index, segment.ledger_id, before, entry_id)
        else:
            found = await _walk_down(topic, index, segment.ledger_id, entry_id, after)
    except QuireError:
        # The statistics that contain this number also report the read error.
        found = None
    if found is not None:
        return Bytes(found, True)
    return Bytes(before.offset + round(share * distance), False)


async def _walk_up(
    topic: TopicPort, index: ByteIndex, ledger_id: int, point: Point, entry_id: int
) -> int | None:
    """Return the bytes before an entry, by reading from an earlier point up to it; None if that is too far."""
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
    """Return the bytes before an entry, by reading from it up to a later point; None if that is too far."""
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
    """Return blocks from the one that contains a confirmed position on."""
    found = topic.cached(position) or await topic.read(position, READ_CHUNK_BYTES)
    assert found, f"{topic.name} has no block at {position}"
    return list(found)


def _inside(buffer: Buffer, header: BlockHeader, entry_id: int) -> int:
    """Return the bytes of a block before one of its entries; the block's header and table belong to its first entry."""
    at = entry_id - header.first_entry
    return header.entries_offset + block.ends(buffer, header)[at - 1] if at else 0


async def published_ms(topic: TopicPort, position: Position) -> int:
    """Return the publish time of the entry at a confirmed position, in ms since 1970.

    If the entry cannot be decoded, return the broker's clock of its block.
    """
    found = topic.cached(position) or await topic.read(position, 1)
    assert found, f"{topic.name} has no block at {position}"
    header = block.peek(found[0])
    try:
        entry = block.entries(found[0], header)[position.entry_id - header.first_entry]
        return message.read_metadata(entry, METADATA_LOOKED_INTO_BYTES_MAX)[0].publish_time
    except message.Undecodable:
        return header.clock_ms
