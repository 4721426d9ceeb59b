"""Result of a compaction, and the view of a topic for readers of compacted data.

The result is one ledger of ordinary blocks. It contains the retained entries in the topic's order, each with its
position in the topic as a prefix. So the entry id in the result's ledger is the rank among the retained entries. The
index follows: an entry for each of the topic's ledgers up to the *horizon*, the last entry that compaction has read.
Pulsar's equivalents are the compacted ledger and the compaction horizon of [PIP-14].

    entries 0 .. n-1     8 ledger, 8 entry (big-endian), 4 length m, m bytes with a bit set for each retained message of
                         a batch (m = 0: all are retained; little-endian), then the entry in the format of publishers
    entries n ..         8 ledger, 8 last entry (signed), then the roaring bitmap of the retained entries

In this ledger, a block's `first index` is the number of messages minus the number of entries before it in the result.

`CompactedView` is a `TopicPort`: up to the horizon it reads the result, after it the topic. Dispatchers expect
consecutive entries, so the view fills the gaps with empty entries. The subscription treats the entries that `gaps`
lists as acknowledged, and never dispatches them. An entry in a gap costs eight bytes in a block's table, and nothing
on the wire. The view includes ledgers that the topic has trimmed, because the last value of a key outlives retention.

[PIP-14]: https://github.com/apache/pulsar/wiki/PIP-14%3A-Topic-compaction
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from struct import Struct
from typing import Final

from pyroaring import BitMap

from quire.ledger.ledgers import Ledgers
from quire.ledger.reader import LedgerReader
from quire.metadata.records import CompactedRecord
from quire.runtime.errors import CorruptionError, NotFound
from quire.runtime.limits import READ_BYTES_MAX
from quire.serving.model.ports import Position, SegmentView, TopicPort
from quire.serving.policy.rate_limiter import DispatchLimits
from quire.serving.policy.resolved import TopicPolicies
from quire.wire import block as blocks
from quire.wire.block import Buffer

PLACE: Final = Struct(">QQI")
INDEX: Final = Struct(">Qq")
SPAN_ENTRIES: Final = 1 << 14
"""Maximum number of entries in a block of the view, gaps included."""

SPANS_PER_READ: Final = 16


@dataclass(frozen=True)
class Compacted:
    """Index of a compaction result in memory, as parallel lists with one item per ledger, in the topic's order."""

    record: CompactedRecord
    reader: LedgerReader
    ledger_ids: list[int]
    last_entries: list[int]
    retained: list[BitMap]
    ranks: list[int] = field(init=False)
    """Number of retained entries before each ledger; the last item is the total."""
    entries_before: list[int] = field(init=False)

    def __post_init__(self) -> None:
        ranks = accumulate(map(len, self.retained), initial=0)
        entries = accumulate((last + 1 for last in self.last_entries), initial=0)
        object.__setattr__(self, "ranks", list(ranks))
        object.__setattr__(self, "entries_before", list(entries))

    @property
    def horizon(self) -> Position:
        return Position(self.record.horizon_ledger, self.record.horizon_entry)

    def at(self, ledger_id: int) -> int:
        """Return the ledger's index in the parallel lists. Raises `NotFound`."""
        at = bisect_left(self.ledger_ids, ledger_id)
        if at == len(self.ledger_ids) or self.ledger_ids[at] != ledger_id:
            raise NotFound(f"ledger {ledger_id} is not in the compacted topic")
        return at

    def rank(self, position: Position) -> int:
        """Count the retained entries before `position`."""
        at = self.at(position.ledger_id)
        inside = self.retained[at].rank(position.entry_id - 1) if position.entry_id > 0 else 0
        return self.ranks[at] + inside

    def last_retained(self) -> Position:
        """Return the topic position of the last retained entry; (-1, -1) if the compaction retained nothing."""
        for ledger_id, retained in zip(reversed(self.ledger_ids), reversed(self.retained), strict=True):
            if retained:
                return Position(ledger_id, retained.max())
        return Position(-1, -1)


async def load(ledgers: Ledgers, record: CompactedRecord) -> Compacted:
    """Read the index of a compaction result from its ledger. Raises `NotFound`, `Unavailable`, `CorruptionError`."""
    reader = await ledgers.open(record.ledger_id)
    found = Compacted(record, reader, [], [], [])
    next_entry, last = record.entries, record.entries + record.index_entries - 1
    while next_entry <= last:
        read = await reader.read(next_entry, READ_BYTES_MAX)
        if not read:
            raise CorruptionError(f"compacted ledger {record.ledger_id} has no entry {next_entry}")
        for buffer in read:
            header = blocks.peek(buffer)
            if blocks.is_blank(header):
                raise CorruptionError(f"the index of compacted ledger {record.ledger_id} was lost")
            for entry in blocks.entries(buffer, header)[next_entry - header.first_entry :]:
                ledger_id, last_entry = INDEX.unpack_from(entry)
                found.ledger_ids.append(ledger_id)
                found.last_entries.append(last_entry)
                found.retained.append(BitMap.deserialize(bytes(entry[INDEX.size :])))
            next_entry = header.last_entry + 1
    return Compacted(record, reader, found.ledger_ids, found.last_entries, found.retained)


class CompactedView:
    """View of a topic for readers of compacted data; a `TopicPort`."""

    def __init__(self, topic: TopicPort, compacted: Compacted) -> None:
        self._topic = topic
        self._compacted = compacted
        self.name = topic.name
        self.tracing = topic.tracing
        record = compacted.record
        # Each gap counts as one message in the view's indexes, so that the indexes continue with the topic's own after
        # the horizon.
        self._masks: dict[Position, tuple[int, int]] = {}
        self._first_index = record.horizon_index - compacted.entries_before[-1] - record.extra_messages

    @property
    def policies(self) -> TopicPolicies:
        return self._topic.policies

    @property
    def dispatch_limits(self) -> DispatchLimits | None:
        return self._topic.dispatch_limits

    @property
    def is_terminated(self) -> bool:
        return self._topic.is_terminated

    @property
    def last_confirmed(self) -> Position:
        return self._topic.last_confirmed

    @property
    def confirmed_index(self) -> int:
        return self._topic.confirmed_index

    def segments(self) -> Sequence[SegmentView]:
        compacted = self._compacted
        live = [view for view in self._topic.segments() if view.ledger_id >= compacted.horizon.ledger_id]
        first_live = live[0].ledger_id if live else compacted.horizon.ledger_id + 1
        before = [
            SegmentView(ledger_id, last, 0, last + 1, 0)
            for ledger_id, last in zip(compacted.ledger_ids, compacted.last_entries, strict=True)
            if ledger_id < first_live
        ]
        return before + live

    def first_position(self) -> Position:
        return Position(self.segments()[0].ledger_id, 0)

    def next_position(self, position: Position) -> Position:
        following = Position(position.ledger_id, position.entry_id + 1)
        for view in self.segments():
            if view.ledger_id == position.ledger_id and position.entry_id < view.last_entry:
                return following
            if view.ledger_id > position.ledger_id:
                return Position(view.ledger_id, 0)
        return following

    def cached(self, position: Position) -> Sequence[Buffer]:
        return () if position <= self._compacted.horizon else self._topic.cached(position)

    async def compacted_view(self) -> CompactedView:
        return self

    async def find_time(self, time_ms: int) -> Position:
        return await self._topic.find_time(time_ms)

    def gaps(self) -> list[tuple[int, BitMap]]:
        """List the entries that are not retained: (ledger id, entries), in the topic's order."""
        compacted = self._compacted
        found = []
        for at, ledger_id in enumerate(compacted.ledger_ids):
            entries = BitMap(range(compacted.last_entries[at] + 1)) - compacted.retained[at]
            if entries:
                found.append((ledger_id, entries))
        return found

    def left_of(self, ledger_id: int, first: int, stop: int) -> list[tuple[Position, int, int]]:
        """List the batches among entries `first` to `stop`-1 that lost messages.

        Each item is (position, bit mask of the retained messages, number of messages).
        """
        masks = self._masks
        for passed in [one for one in masks if one < (ledger_id, first)]:
            del masks[passed]
        found = [one for one in masks if one < (ledger_id, stop)]
        return [(one, *masks[one]) for one in found]

    async def last_message(self) -> tuple[Position, int]:
        compacted = self._compacted
        confirmed = self._topic.last_confirmed
        # Otherwise the topic has no entries after the horizon, or they were trimmed.
        if confirmed > compacted.horizon and confirmed.entry_id >= 0:
            return await self._topic.last_message()
        last = compacted.last_retained()
        if last.ledger_id < 0:
            return last, -1
        entries = await self._entries(compacted.record.entries - 1, 1)
        (entry,) = entries
        if entry.left:
            return last, entry.left.bit_length() - 1
        return last, entry.messages - 1 if entry.messages > 1 else -1

    async def index_of(self, position: Position) -> int:
        if position > self._compacted.horizon:
            return await self._topic.index_of(position)
        entries = await self._entries(self._compacted.rank(position), 1)
        return self._index(position, entries)

    async def read(self, position: Position, bytes_max: int) -> Sequence[Buffer]:
        """Read blocks as `TopicPort.read` does; up to the horizon, they are built from the compaction result."""
        compacted = self._compacted
        if position > compacted.horizon:
            return await self._topic.read(position, bytes_max)
        at = compacted.at(position.ledger_id)
        rank = compacted.rank(position)
        entries = await self._entries(rank, bytes_max)
        inside = [one for one in entries if one.place.ledger_id == position.ledger_id]
        whole = rank + len(inside) >= compacted.ranks[at + 1]
        stop = compacted.last_entries[at] + 1 if whole else inside[-1].place.entry_id + 1
        index = self._index(position, entries)
        self._masks |= {one.place: (one.left, one.messages) for one in inside if one.left}
        return _spans(position, stop, inside, index)

    def _index(self, position: Position, behind: Sequence[_Retained]) -> int:
        """Return the message index at `position`; `behind[0]` is the first retained entry at or after it, if any."""
        compacted = self._compacted
        extra = behind[0].extra_before if behind else compacted.record.extra_messages
        before = compacted.entries_before[compacted.at(position.ledger_id)]
        return self._first_index + before + position.entry_id + extra

    async def _entries(self, rank: int, bytes_max: int) -> list[_Retained]:
        """Read retained entries from rank `rank` on, up to about `bytes_max` bytes.

        Return an empty list after the last retained entry.
        """
        compacted = self._compacted
        if rank >= compacted.record.entries:
            return []
        return read_entries(await compacted.reader.read(rank, bytes_max), rank, compacted.record.entries)


@dataclass(frozen=True, slots=True)
class _Retained:
    """Retained entry of a result. `extra_before`: number of messages minus number of entries before this entry."""

    place: Position
    data: memoryview
    messages: int
    left: int
    """Bit mask of a batch's retained messages; 0 if all are retained."""
    extra_before: int


def read_entries(read: Sequence[Buffer], first: int, stop: int) -> list[_Retained]:
    """Return the retained entries with ranks `first` to `stop`-1 that the given blocks of a result contain."""
    found = []
    for buffer in read:
        header = blocks.peek(buffer)
        if blocks.is_blank(header):
            raise CorruptionError(
                f"retained entries of compacted ledger {header.ledger_id} were lost; read the topic without compaction"
            )
        extra = header.first_index
        counts = blocks.message_counts(buffer, header)
        for number, (entry, count) in enumerate(
            zip(blocks.entries(buffer, header), counts, strict=True), header.first_entry
        ):
            if first <= number < stop:
                ledger_id, entry_id, mask_bytes = PLACE.unpack_from(entry)
                begin = PLACE.size + mask_bytes
                left = int.from_bytes(entry[PLACE.size : begin], "little")
                place = Position(ledger_id, entry_id)
                found.append(_Retained(place, entry[begin:], count, left, extra))
            extra += count - 1
    return found


def _spans(position: Position, stop: int, inside: Sequence[_Retained], index: int) -> list[Buffer]:
    """Build at most `SPANS_PER_READ` blocks of the entries from `position` to `stop`-1.

    Entries that were not retained are empty.
    """
    made: list[Buffer] = []
    start, at = position.entry_id, 0
    while start < stop and len(made) < SPANS_PER_READ:
        end = min(stop, start + SPAN_ENTRIES)
        entries: list[Buffer] = [b""] * (end - start)
        counts = [1] * (end - start)
        while at < len(inside) and inside[at].place.entry_id < end:
            one = inside[at]
            entries[one.place.entry_id - start] = one.data
            counts[one.place.entry_id - start] = one.messages
            at += 1
        made.append(blocks.cut(position.ledger_id, start, -1, 0, index, entries, counts))
        index += sum(counts)
        start = end
    return made
