"""Peek: reads of unacknowledged entries that leave the subscription unchanged."""

from __future__ import annotations

from pyroaring import BitMap

from quire.runtime.errors import NotFound
from quire.serving.model.ports import Position, TopicPort
from quire.serving.subscription.cursor.cursor import Cursor
from quire.wire import block


async def unacknowledged_entry(topic: TopicPort, cursor: Cursor, number: int) -> tuple[Position, bytes]:
    """Return the position and the bytes of the `number`th entry that is not completely acknowledged.

    Numbers begin at 1. Raises `NotFound`.
    """
    position = _position_of(topic, cursor, number)
    if position is None:
        raise NotFound(
            f"subscription {cursor.key.subscription} of {topic.name} has fewer entries than {number} in its backlog"
        )
    return position, await entry_at(topic, position)


async def entry_at(topic: TopicPort, position: Position) -> bytes:
    """Return the entry at a position. Raises `NotFound` if the entry does not exist, was trimmed, or was lost."""
    exists = any(
        view.ledger_id == position.ledger_id and 0 <= position.entry_id <= view.last_entry
        for view in topic.segments()
    )
    found = (topic.cached(position) or await topic.read(position, 1)) if exists else ()
    if not found:
        raise NotFound(f"topic {topic.name} has no entry {position.ledger_id}:{position.entry_id}")
    header = block.peek(found[0])
    if block.is_blank(header):
        raise NotFound(
            f"entry {position.ledger_id}:{position.entry_id} of {topic.name} was lost, and an operator gave it up"
        )
    return bytes(block.entries(found[0], header)[position.entry_id - header.first_entry])


def _position_of(topic: TopicPort, cursor: Cursor, number: int) -> Position | None:
    first = topic.first_position()
    for view in topic.segments():
        if view.ledger_id < max(first.ledger_id, cursor.mark_delete.ledger_id) or view.last_entry < 0:
            continue
        left = cursor.unacknowledged(view.ledger_id, BitMap(range(view.last_entry + 1)))
        if number <= len(left):
            return Position(view.ledger_id, left[number - 1])
        number -= len(left)
    return None
