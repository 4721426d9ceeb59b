"""Search by time: find the first message with a given publish time or a later one, even if clients' clocks differ.

Publish times come from clients' clocks, but block headers contain the broker's clock; the two may differ by any amount.
So a search uses publish times only, over the segments from the oldest on:

| recorded for the segment | action of the search |
|---|---|
| greatest publish time, earlier than the wanted time | skip the segment |
| greatest publish time, equal or later | start where the broker's clock is the wanted time minus the *greatest lead* |
| no publish times (being written, or not archived) | read all entries, once: `LedgerTimes` keeps the result |

The greatest lead is the largest difference between a publish time and the broker's clock in the segment.

So a search reads entries that no earlier search has read, and one more piece of a megabyte. A search records the
publish times of a sealed segment in the segment's record. The archive records them for each segment that it uploads.

Spark calls `ranges` to plan which entries of unarchived segments a query by time must read. It never uses the
broker's clock without the greatest lead, so that a query returns the same messages before and after archiving.

Sealed segments written by older versions of Quire have no recorded publish times. Some of these segments seem too old,
by the broker's clock with an allowance of `CLOCK_SKEW_MS`. Of them a search reads the newest ones, up to
`OLDER_BYTES_MAX` in total, and skips the others. It also skips damaged segments that seem too old. Each search records
its results, so the next search reaches further back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import Final

from quire.metadata.records import SegmentRecord
from quire.runtime.errors import CorruptionError, NotFound, QuireError
from quire.runtime.limits import MIB, READ_CHUNK_BYTES
from quire.serving.model.ports import Position
from quire.serving.topic.meta_store import MetaStore
from quire.serving.topic.publish_times import LedgerTimes
from quire.serving.topic.reading import TopicReader
from quire.serving.topic.services import Services
from quire.wire import block as blocks
from quire.wire.block import BlockHeader, Buffer
from quire.wire.publish_time import publish_times

CLOCK_SKEW_MS: Final = 10_000
"""Assumed lead of clients' clocks over the broker's, in ms, for segments without publish times."""

OLDER_BYTES_MAX: Final = 256 * MIB
"""Maximum number of bytes that one search reads of segments that have no publish times and seem too old.

Reading them takes about a second.
"""

LEDGERS_MAX: Final = 4
"""Number of ledgers of a topic whose `LedgerTimes` are kept: the active one, and those sealed last."""

ENTRIES_A_SLICE: Final = 1_000
"""Number of entries processed in one iteration of the event loop; they take about a millisecond."""

UNLIMITED_MS: Final = 1 << 63

_log = logging.getLogger(__name__)


class TimeSearch:
    """Searches of one topic. They run one after another, so that each uses the results of the previous ones."""

    __slots__ = ("_ledgers", "_looked_at", "_meta_store", "_reader", "_segments", "_services", "_turn")

    def __init__(self, meta_store: MetaStore, reader: TopicReader, services: Services) -> None:
        self._meta_store = meta_store
        self._segments = meta_store.segments
        self._reader = reader
        self._services = services
        self._ledgers: dict[int, LedgerTimes] = {}
        self._turn = asyncio.Lock()
        self._looked_at = 0
        """Entries read since the search last yielded to the event loop (`slices`)."""

    async def find(self, time_ms: int) -> Position:
        """Return the first entry published at `time_ms` or later; if there is none, the position after the last entry.

        Raises `NotFound` if a segment was trimmed during the search, `CorruptionError`, `Unavailable`.
        """
        async with self._turn:
            return await self._find(time_ms)

    async def ranges(self, start_ms: int, end_ms: int) -> dict[int, tuple[int, int]]:
        """Map ledger ids to the entries `[first, end)` that may have been published in `[start_ms, end_ms)`.

        Only unarchived segments are included. All entries outside the returned ranges were published outside the time
        range. The result lacks a segment whose publish times are unknown, because it is damaged or exceeds
        `OLDER_BYTES_MAX`.

        Raises `NotFound` if a segment was trimmed during the search, `Unavailable`.
        """
        async with self._turn:
            found = {}
            for segment in self._readable():
                try:
                    entries = await self._range_in(segment, start_ms, end_ms)
                except CorruptionError as error:
                    _log.warning(
                        "cannot read a segment's publish times: ledger=%d error=%s", segment.ledger_id, error
                    )
                    continue
                if entries is not None:
                    found[segment.ledger_id] = entries
            return found

    def _readable(self) -> list[SegmentRecord]:
        """Return the unarchived segments to search, oldest first.

        Of the sealed segments with unknown publish times, only the newest are returned, up to `OLDER_BYTES_MAX` in
        total.
        """
        chosen = []
        left = OLDER_BYTES_MAX
        for segment in reversed(self._segments.totals()):
            if segment.archive is not None or segment.last_entry < 0:
                continue
            if segment.is_sealed and not self._is_known(segment):
                left -= segment.bytes
                if left < 0:
                    continue
            chosen.append(segment)
        return chosen[::-1]

    async def _range_in(self, segment: SegmentRecord, start_ms: int, end_ms: int) -> tuple[int, int] | None:
        """Return the entries of a segment that may be in the time range.

        Return None if the segment's publish times cannot be determined.
        """
        if segment.publish_max_ms and segment.ledger_id not in self._ledgers:
            start = await self._start_in(segment, start_ms)
            return (0, 0) if start is None else (start, segment.last_entry + 1)
        if not segment.publish_max_ms:
            await self._read_on(segment, UNLIMITED_MS)
        times = self._ledgers[segment.ledger_id]
        return times.range(start_ms, end_ms) if times.next_entry > segment.last_entry else None

    async def _find(self, time_ms: int) -> Position:
        segments = [one for one in self._segments.totals() if one.last_entry >= 0]
        last: Position | None = None
        for segment in self._worth_a_look(segments, time_ms):
            start = await self._start_in(segment, time_ms)
            if start is not None:
                found = await self._first_since(segment.ledger_id, start, time_ms)
                if found is not None:
                    return found
            last = Position(segment.ledger_id, self._last_entry(segment))
        return self._segments.next_position(last or self._segments.last_position())

    def _worth_a_look(self, segments: Sequence[SegmentRecord], time_ms: int) -> Iterator[SegmentRecord]:
        """Yield the segments to search.

        Of the segments without publish times that seem too old, yield only the newest ones, up to `OLDER_BYTES_MAX`.
        """
        old = [one for one in segments if one.is_sealed and one.last_clock_ms < time_ms - CLOCK_SKEW_MS]
        left = OLDER_BYTES_MAX
        passed: set[int] = set()
        for segment in reversed(old):
            if not self._is_known(segment):
                left -= segment.bytes
                if left < 0:
                    passed.add(segment.ledger_id)
        if passed:
            _log.info(
                "search by publish time skips old segments by the broker's clock, because their publish times "
                "are unknown: topic=%s time_ms=%d segments=%d",
                self._segments.record.name,
                time_ms,
                len(passed),
            )
        return (one for one in segments if one.ledger_id not in passed)

    def _is_known(self, segment: SegmentRecord) -> bool:
        times = self._ledgers.get(segment.ledger_id)
        return segment.publish_max_ms > 0 or (times is not None and times.next_entry > segment.last_entry)

    def _last_entry(self, segment: SegmentRecord) -> int:
        """Return the last entry of a completely searched segment; of the active one, the last entry that was read."""
        if segment.is_sealed:
            return segment.last_entry
        times = self._ledgers.get(segment.ledger_id)
        return segment.last_entry if times is None else max(segment.last_entry, times.next_entry - 1)

    # -- one segment -----------------------------------------------------------------------------------

    async def _start_in(self, segment: SegmentRecord, time_ms: int) -> int | None:
        """Return an entry at or before the first one published at `time_ms` or later.

        Return None if the segment has no such entry.
        """
        if 0 < segment.publish_max_ms < time_ms:
            return None
        known = self._ledgers.get(segment.ledger_id)
        start = known.find(time_ms) if known is not None else None
        if start is not None:
            return start
        if segment.publish_max_ms:
            return await self._start_by_clock(segment, time_ms - _ahead(segment))
        try:
            return await self._read_on(segment, time_ms)
        except CorruptionError as error:
            if segment.is_sealed and segment.last_clock_ms < time_ms - CLOCK_SKEW_MS:
                _log.warning(
                    "search by publish time skips a damaged segment, which is too old by the "
                    "broker's clock: topic=%s ledger=%d time_ms=%d error=%s",
                    self._segments.record.name,
                    segment.ledger_id,
                    time_ms,
                    error,
                )
                return None
        return await self._start_by_clock(segment, time_ms - CLOCK_SKEW_MS)

    async def _start_by_clock(self, segment: SegmentRecord, clock_ms: int) -> int:
        """Return the entry from which a read includes all blocks with a clock of `clock_ms` or later."""
        if segment.first_clock_ms >= clock_ms:
            return 0
        return await self._reader.find_time(segment.ledger_id, clock_ms)

    async def _read_on(self, segment: SegmentRecord, time_ms: int) -> int | None:
        """Perform `_start_in` for a segment without recorded publish times.

        Continue reading where the last search ended.
        """
        ledger_id, times = segment.ledger_id, self._times_of(segment.ledger_id)
        while (start := times.find(time_ms)) is None and times.next_entry <= segment.last_entry:
            async with self._services.time_searches:
                found = await self._read(ledger_id, times.next_entry)
                if not found:
                    break
                for buffer, header in found:
                    times.add(buffer, header)
                    await self._looked(header)
        if segment.is_sealed and times.next_entry > segment.last_entry and times.times:
            try:
                await self._meta_store.measured(ledger_id, times.times)
            except QuireError as error:  # A later search reads the segment again.
                _log.info("cannot record a segment's publish times: ledger=%d error=%s", ledger_id, error)
        return start

    def _times_of(self, ledger_id: int) -> LedgerTimes:
        times = self._ledgers.pop(ledger_id, None) or LedgerTimes()
        self._ledgers[ledger_id] = times
        if len(self._ledgers) > LEDGERS_MAX:
            del self._ledgers[next(iter(self._ledgers))]
        return times

    async def _first_since(self, ledger_id: int, start: int, time_ms: int) -> Position | None:
        """Return the first entry of a ledger, from `start` on, published at `time_ms` or later.

        Return None if there is no such entry.
        """
        while True:
            async with self._services.time_searches:
                found = await self._read(ledger_id, start)
                if not found:
                    return None
                for buffer, header in found:
                    for entry_id, published_ms in enumerate(
                        publish_times(buffer, header), header.first_entry
                    ):
                        if entry_id >= start and published_ms >= time_ms:
                            return Position(ledger_id, entry_id)
                    await self._looked(header)
            start = found[-1][1].last_entry + 1

    async def _read(self, ledger_id: int, entry_id: int) -> list[tuple[Buffer, BlockHeader]]:
        """Return confirmed blocks from the one that contains `entry_id` on; an empty list after the last one."""
        segment = self._segments.find(ledger_id) or self._segments.active
        if segment is None or segment.ledger_id != ledger_id:
            raise NotFound(f"segment {ledger_id} of {self._segments.record.name} was trimmed")
        if entry_id > segment.last_entry:
            return []
        found = await self._reader.read(Position(ledger_id, entry_id), READ_CHUNK_BYTES)
        return [(one, blocks.peek(one)) for one in found]

    async def _looked(self, header: BlockHeader) -> None:
        self._looked_at += header.entry_count
        if self._looked_at >= ENTRIES_A_SLICE:
            self._looked_at = 0
            await self._services.slices.turn()


def _ahead(segment: SegmentRecord) -> int:
    """Return the recorded lead of publish times over the broker's clock, in ms; unlimited if it is unknown."""
    return UNLIMITED_MS if segment.publish_ahead_ms is None else segment.publish_ahead_ms
