"""Search over all messages of a topic, slice by slice, for operators.

A caller requests one slice after another, each from the place where the previous one ended. So a search needs no state
on the broker, shows its progress, and is cancelled by requesting no further slice. A slice reads at most about
`SLICE_BYTES_MAX`, within `SLICE_S`. Reads wait for the same slots as searches by time, and entries are decoded on
helper threads, which leave most of the interpreter's time to publishers and consumers.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final, NamedTuple

from quire.runtime.errors import CorruptionError, NotFound
from quire.runtime.limits import READ_CHUNK_BYTES
from quire.serving.model.ports import Position, TopicPort
from quire.serving.names import TopicName
from quire.serving.operations.fan_out import FanOut
from quire.serving.operations.matching import (
    DECODED_BYTES_MAX,
    Filter,
    Found,
    Place,
    Scan,
    Scanned,
    decoded_bytes,
)
from quire.serving.registry.registry import Registry
from quire.serving.topic.finding import position_of
from quire.serving.topic.services import Services

SLICE_BYTES_MAX: Final = 16 << 20
SLICE_S: Final = 1.0


class Slice(NamedTuple):
    """Result of one slice, and the place from which the next one continues."""

    found: list[Found]
    place: Place
    is_end: bool
    """True if the search has reached the end of the topic; later messages are found from `place` on."""
    next_index: int
    """Topic-wide index of the message at `place`; `first_index` and `end_index` are those of the topic."""
    first_index: int
    end_index: int


class Searching:
    def __init__(self, registry: Registry, services: Services, fan_out: FanOut) -> None:
        self._registry = registry
        self._services = services
        self._fan_out = fan_out

    async def place_of_index(self, name: TopicName, index: int) -> Place:
        """Return the place of the message with a topic-wide index; the nearest one if the topic lacks it."""
        log = await self._open(name)
        index = min(max(index, _first_index(log)), log.confirmed_index)
        position = await position_of(log, index)
        return Place(position, max(0, index - await log.index_of(position)))

    async def place_of_time(self, name: TopicName, time_ms: int) -> Place:
        """Return the place of the first entry published at `time_ms` or later."""
        return Place(await (await self._open(name)).find_time(time_ms))

    async def slice(self, name: TopicName, start: Place, wanted: Filter, count: int) -> Slice:
        """Search from a place on, until `count` messages are found or a limit is reached."""
        log = await self._open(name)
        loop = asyncio.get_running_loop()
        ends_s, read_bytes = loop.time() + SLICE_S, 0
        found: list[Found] = []
        place, index = start, -1
        while (
            len(found) < count
            and read_bytes < SLICE_BYTES_MAX
            and loop.time() < ends_s
            and decoded_bytes(found) <= DECODED_BYTES_MAX
        ):
            place = _clamp(log, place)
            if place.position > log.last_confirmed:
                break
            try:
                scanned, size = await self._scan(log, place, wanted, count - len(found))
            except CorruptionError as error:
                found.append(Found(place, problem=f"the rest of the segment cannot be read: {error}"))
                place = Place(Position(place.position.ledger_id + 1, 0))
                continue
            except NotFound:
                if _clamp(log, place) == place:
                    raise
                continue  # the segment was trimmed
            found += scanned.found
            place, index, read_bytes = scanned.place, scanned.next_index, read_bytes + size
        place = _clamp(log, place)
        is_end = place.position > log.last_confirmed
        if is_end or index < 0:
            index = await log.index_of(place.position)
        return Slice(found, place, is_end, index, _first_index(log), log.confirmed_index)

    async def shortened(self, name: TopicName, long: Slice, count: int) -> Slice:
        """Return a slice with only the first `count` messages of a longer one, which ends before the next message."""
        log, place = await self._open(name), long.found[count].place
        index = await log.index_of(place.position) + place.batch_index
        return long._replace(found=long.found[:count], place=place, is_end=False, next_index=index)

    async def _scan(self, log: TopicPort, place: Place, wanted: Filter, count: int) -> tuple[Scanned, int]:
        """Read and scan one chunk. Return the result, and the bytes that were read."""
        await self._services.slices.turn()  # reads of sealed segments also take the loop's time
        async with self._services.time_searches:
            some = log.cached(place.position) or await log.read(place.position, READ_CHUNK_BYTES)
            scanned: Scanned = await self._services.helpers.run(partial(Scan(wanted, count).of, some, place))
        return scanned, sum(map(len, some))

    async def _open(self, name: TopicName) -> TopicPort:
        await self._fan_out.refuse_parent(name, "searching")
        return (await self._registry.open_persistent(name)).log


def _first_index(log: TopicPort) -> int:
    views = log.segments()
    return views[0].first_index if views else 0


def _clamp(log: TopicPort, place: Place) -> Place:
    """Return the place itself, or the next one that exists or will be written next."""
    position = place.position
    for view in log.segments():
        if view.ledger_id == position.ledger_id and 0 <= position.entry_id <= view.last_entry:
            return place
        if view.ledger_id > position.ledger_id and view.last_entry >= 0:
            return Place(Position(view.ledger_id, 0))
    return Place(log.next_position(log.last_confirmed))
