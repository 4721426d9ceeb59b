"""Where a seek goes: message ids and publish times as positions.

Time is looked for in two steps. The topic's index is by the broker's clock and says where to begin; from there
the messages' own publish times are compared, since that is what the client asked about.
"""

from __future__ import annotations

import asyncio

from quire.runtime.limits import METADATA_LOOKED_INTO_BYTES_MAX, READ_CHUNK_BYTES
from quire.serving.model.ports import Position, TopicPort
from quire.serving.model.positions import Segments, following
from quire.wire import block, commands, message
from quire.wire import pulsar_pb2 as pb
from quire.wire.block import Buffer


def position_of(id_data: pb.MessageIdData, segments: Segments) -> Position:
    """The next entry to read when a client seeks to, or a reader starts at, a message id: that entry itself.

    A reader leaves out by itself what it did not want: the message it named, unless it asked to include it, and the
    messages of a batch before it. Only the client knows which.
    """
    return segments.clamp(Position(*commands.position(id_data)))


async def position_at_time(topic: TopicPort, time_ms: int) -> Position:
    """The first entry that was published at `time_ms` or later; after the last one when there is none."""
    position = await topic.find_time(time_ms)
    while position <= topic.last_confirmed:
        found = await topic.read(position, READ_CHUNK_BYTES)
        for buffer in found:
            entry_id = _first_since(buffer, position, time_ms)
            if entry_id is not None:
                return Position(position.ledger_id, entry_id)
            await asyncio.sleep(0)  # a block takes some milliseconds
        if not found:
            break
        last = block.peek(found[-1])
        position = following(Position(last.ledger_id, last.last_entry), topic.segments())
    return position


def _first_since(buffer: Buffer, position: Position, time_ms: int) -> int | None:
    """The first entry of a block, from `position` on, that was published at `time_ms` or later."""
    header = block.peek(buffer)
    if block.is_blank(header):
        return None
    for entry_id, entry in enumerate(block.entries(buffer, header), header.first_entry):
        if entry_id >= position.entry_id and _publish_time_ms(entry) >= time_ms:
            return entry_id
    return None


def _publish_time_ms(entry: memoryview) -> int:
    """An entry that cannot be read belongs to any time: it is rather delivered than passed over."""
    try:
        return message.read_metadata(entry, METADATA_LOOKED_INTO_BYTES_MAX)[0].publish_time
    except message.Undecodable:
        return 1 << 63
