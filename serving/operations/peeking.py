"""Peeking at entries, for operators: the last entries, those from a position on, or a subscription's unacknowledged.

A request reads at most about `BYTES_MAX` of entries and `ENTRIES_MAX` entries, whose blocks are often cached. The
result has a placeholder for an unreadable entry, so that the other entries are still returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from pyroaring import BitMap

from quire.runtime.errors import CorruptionError, NotFound
from quire.serving.model.ports import LATEST, Position, TopicPort
from quire.serving.names import TopicName
from quire.serving.operations.fan_out import FanOut
from quire.serving.registry.registry import Registry
from quire.serving.registry.topic_loader import subscriptions_of
from quire.serving.subscription.cursor.cursor import Cursor
from quire.serving.subscription.peek import entry_at

BYTES_MAX: Final = 8 << 20
ENTRIES_MAX: Final = 100


class Entry(NamedTuple):
    position: Position
    raw: bytes
    problem: str = ""
    """Reason why the entry cannot be read; then `raw` is empty."""
    left: int = 0
    """Bit mask of the unacknowledged messages of a partly acknowledged batch; 0 if no message is acknowledged."""


class Peeking:
    def __init__(self, registry: Registry, fan_out: FanOut) -> None:
        self._registry = registry
        self._fan_out = fan_out

    async def last(self, name: TopicName, count: int) -> list[Entry]:
        """Return the newest entries, in the topic's order."""
        log = await self._open(name)
        return (await _entries(log, islice(_backwards(log), count)))[::-1]

    async def before(self, name: TopicName, end: Position, is_included: bool, count: int) -> list[Entry]:
        """Return the last entries before `end` or, if `is_included`, up to it."""
        log = await self._open(name)
        last = end if is_included else end._replace(entry_id=end.entry_id - 1)
        return (await _entries(log, islice(_backwards(log, last), count)))[::-1]

    async def since(self, name: TopicName, start: Position, count: int) -> list[Entry]:
        """Return the entries from a position on."""
        log = await self._open(name)
        return await _entries(log, islice(_forwards(log, start), count))

    async def since_time(self, name: TopicName, time_ms: int, count: int) -> list[Entry]:
        """Return the entries from the first one published at `time_ms` or later."""
        log = await self._open(name)
        start = await log.find_time(time_ms)
        return await _entries(log, islice(_forwards(log, start), count))

    async def unacknowledged(self, name: TopicName, subscription: str, count: int) -> list[Entry]:
        """Return the first unacknowledged entries of a subscription. Raises `NotFound`."""
        log = await self._open(name)
        found = subscriptions_of(await self._registry.open(name)).get(subscription)
        if found is None:
            raise NotFound(f"topic {name} has no subscription {subscription}")
        entries = await _entries(log, islice(_left_of(log, found.cursor), count))
        return [one._replace(left=found.cursor.remaining(one.position)) for one in entries]

    async def _open(self, name: TopicName) -> TopicPort:
        await self._fan_out.refuse_parent(name, "peeking")
        return (await self._registry.open_persistent(name)).log


async def _entries(topic: TopicPort, positions: Iterable[Position]) -> list[Entry]:
    found: list[Entry] = []
    looked_at = 0
    for position in islice(positions, ENTRIES_MAX):
        try:
            entry = Entry(position, await entry_at(topic, position))
        except (NotFound, CorruptionError) as error:
            entry = Entry(position, b"", str(error))
        looked_at += len(entry.raw)
        found.append(entry)
        if looked_at > BYTES_MAX:
            break
    return found


def _forwards(topic: TopicPort, start: Position) -> Iterator[Position]:
    for view in topic.segments():
        if view.ledger_id >= start.ledger_id:
            first = max(0, start.entry_id) if view.ledger_id == start.ledger_id else 0
            for entry_id in range(first, view.last_entry + 1):
                yield Position(view.ledger_id, entry_id)


def _backwards(topic: TopicPort, last: Position = LATEST) -> Iterator[Position]:
    for view in reversed(topic.segments()):
        if view.ledger_id <= last.ledger_id:
            end = min(view.last_entry, last.entry_id) if view.ledger_id == last.ledger_id else view.last_entry
            for entry_id in range(end, -1, -1):
                yield Position(view.ledger_id, entry_id)


def _left_of(topic: TopicPort, cursor: Cursor) -> Iterator[Position]:
    first = topic.first_position()
    for view in topic.segments():
        if view.ledger_id >= max(first.ledger_id, cursor.mark_delete.ledger_id) and view.last_entry >= 0:
            for entry_id in cursor.unacknowledged(view.ledger_id, BitMap(range(view.last_entry + 1))):
                yield Position(view.ledger_id, entry_id)
