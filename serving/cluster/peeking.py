"""Entries looked at and left where they are, several at once: for people, who look at the last, the first, what waits.

A look costs `BYTES_MAX` of entries and `ENTRIES_MAX` reads at most, of blocks that are often cached. An entry that
cannot be read is told of in its place, so that those beside it are seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from pyroaring import BitMap

from quire.runtime.errors import CorruptionError, NotFound
from quire.serving.cluster.fan_out import FanOut
from quire.serving.cluster.registry import Registry
from quire.serving.cluster.topic_loader import subscriptions_of
from quire.serving.model.ports import Position, TopicPort
from quire.serving.names import TopicName
from quire.serving.subscription import seek
from quire.serving.subscription.cursor.cursor import Cursor
from quire.serving.subscription.peek import entry_at

BYTES_MAX: Final = 8 << 20
ENTRIES_MAX: Final = 100


class Entry(NamedTuple):
    position: Position
    raw: bytes
    problem: str = ""
    """Why it cannot be shown; then `raw` is empty."""


class Peeking:
    def __init__(self, registry: Registry, fan_out: FanOut) -> None:
        self._registry = registry
        self._fan_out = fan_out

    async def last(self, name: TopicName, count: int) -> list[Entry]:
        """The newest, oldest of them first."""
        log = await self._open(name)
        return (await _entries(log, islice(_backwards(log), count)))[::-1]

    async def since(self, name: TopicName, start: Position, count: int) -> list[Entry]:
        """From a position on."""
        log = await self._open(name)
        return await _entries(log, islice(_forwards(log, start), count))

    async def since_time(self, name: TopicName, time_ms: int, count: int) -> list[Entry]:
        """From the first that was published then or later."""
        log = await self._open(name)
        start = await seek.position_at_time(log, time_ms)
        return await _entries(log, islice(_forwards(log, start), count))

    async def unacknowledged(self, name: TopicName, subscription: str, count: int) -> list[Entry]:
        """The first that a subscription has to acknowledge. Raises `NotFound`."""
        log = await self._open(name)
        found = subscriptions_of(await self._registry.open(name)).get(subscription)
        if found is None:
            raise NotFound(f"topic {name} has no subscription {subscription}")
        return await _entries(log, islice(_left_of(log, found.cursor), count))

    async def _open(self, name: TopicName) -> TopicPort:
        await self._fan_out.refuse_parent(name, "a look at messages")
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


def _backwards(topic: TopicPort) -> Iterator[Position]:
    for view in reversed(topic.segments()):
        for entry_id in range(view.last_entry, -1, -1):
            yield Position(view.ledger_id, entry_id)


def _left_of(topic: TopicPort, cursor: Cursor) -> Iterator[Position]:
    first = topic.first_position()
    for view in topic.segments():
        if view.ledger_id >= max(first.ledger_id, cursor.mark_delete.ledger_id) and view.last_entry >= 0:
            for entry_id in cursor.unacknowledged(view.ledger_id, BitMap(range(view.last_entry + 1))):
                yield Position(view.ledger_id, entry_id)
