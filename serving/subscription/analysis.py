"""Analysis of a backlog: the numbers of unacknowledged entries and messages, by reading their blocks.

Unlike the backlog in statistics, which is counted as messages are published and acknowledged, it depends on stored
blocks only. So an operator can compare both. Limits on entries and time bound the cost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from pyroaring import BitMap

from quire.runtime.clock import Clock
from quire.runtime.errors import NotFound
from quire.runtime.limits import READ_CHUNK_BYTES
from quire.runtime.slices import Slices
from quire.serving.model.ports import Position, TopicPort
from quire.serving.model.statistics import BacklogAnalysis
from quire.serving.subscription.cursor.cursor import Cursor
from quire.serving.subscription.delivery.delivery import BlockView
from quire.wire import block

ENTRIES_MAX: Final = 10_000
"""Maximum number of entries per request, Pulsar's default."""

SCAN_S: Final = 20.0
"""Time limit, in seconds; shorter than the time-out of requests between brokers."""


class Slots(NamedTuple):
    """Limits on reads, which all searches of a broker share."""

    slices: Slices
    reads: asyncio.Semaphore


async def analyze(
    topic: TopicPort, cursor: Cursor, start: Position, clock: Clock, slots: Slots
) -> BacklogAnalysis:
    """Count the unacknowledged entries and messages from `start` on.

    Raises `NotFound` if an entry was trimmed meanwhile, `CorruptionError`, `Unavailable`.
    """
    entries = messages = 0
    first = last = ""
    end_s = clock.monotonic() + SCAN_S
    async for view, inside in _backlog(topic, cursor, start, slots):
        if clock.monotonic() >= end_s or (inside and entries == ENTRIES_MAX):
            return BacklogAnalysis.of(entries, messages, first, last, aborted=True)
        if not inside:
            continue
        taken = inside[: ENTRIES_MAX - entries]
        entries += len(taken)
        messages += sum(_messages(view, cursor, entry_id) for entry_id in taken)
        first = first or f"{view.ledger_id}:{taken.min()}"
        last = f"{view.ledger_id}:{taken.max()}"
        if len(taken) < len(inside):
            return BacklogAnalysis.of(entries, messages, first, last, aborted=True)
    return BacklogAnalysis.of(entries, messages, first, last, aborted=False)


async def _backlog(
    topic: TopicPort, cursor: Cursor, start: Position, slots: Slots
) -> AsyncIterator[tuple[BlockView, BitMap]]:
    """Yield each block that is read, and its unacknowledged entries: none of a blank block, whose entries are lost."""
    least = max(start.ledger_id, cursor.mark_delete.ledger_id)
    for segment in topic.segments():
        if segment.last_entry < 0 or segment.ledger_id < least:
            continue
        first = max(0, start.entry_id) if segment.ledger_id == start.ledger_id else 0
        left = cursor.unacknowledged(segment.ledger_id, BitMap(range(first, segment.last_entry + 1)))
        while left:
            position = Position(segment.ledger_id, left.min())
            await slots.slices.turn()  # reads of sealed segments also take the loop's time
            async with slots.reads:
                found = topic.cached(position) or await topic.read(position, READ_CHUNK_BYTES)
            if not found:
                raise NotFound(f"topic {topic.name} has no block at {position}, although it was confirmed")
            for buffer in found:
                view = BlockView(buffer, block.peek(buffer))
                inside = left & BitMap(range(view.first_entry, view.stop_entry))
                left -= inside
                yield view, BitMap() if block.is_blank(view.header) else inside


def _messages(view: BlockView, cursor: Cursor, entry_id: int) -> int:
    """Count the unacknowledged messages of an unacknowledged entry."""
    offset, bits = entry_id - view.first_entry, cursor.remaining(Position(view.ledger_id, entry_id))
    return bits.bit_count() if bits else view.messages(offset, offset + 1)
