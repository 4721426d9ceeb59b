"""Snapshot of the entries between mark-delete and the read position, for the next dispatcher. Performs no I/O.

The mark-delete position of a subscription with delayed entries stays before the first of them, however far the
subscription has read. The message counts, delivery times and key slots of the entries after it never change. So the
snapshot stores them, segment by segment, while the dispatcher reads on. The next dispatcher (after a restart, on
another broker, or for the next consumer) restores it, and continues to read at the end of the snapshot. Pulsar's
snapshots of delayed messages serve the same purpose: https://github.com/apache/pulsar/issues/16763 (PIP-195)

A segment covers consecutive entries of one ledger; its times are bit slices, as in `delays`. Segments follow each other
without gaps; a segment that does not continue the snapshot begins a new snapshot. Data about entries that were
acknowledged since are dropped when the snapshot is written again (`prune`) or restored.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Final, NamedTuple

from pyroaring import BitMap

from quire.serving.model.ports import Position

SEGMENT_ENTRIES_MAX: Final = 1 << 16
"""Maximum number of entries in a segment; its record then has 25 slices of 8 KiB and the slots, about 300 KiB."""

SEGMENT_BYTES: Final = 1_000
"""Approximate memory of a segment, in bytes, without its tables."""

Unacknowledged = Callable[[int, BitMap], BitMap]
"""Type of `Cursor.unacknowledged`."""


class Times(NamedTuple):
    """Delivery times of `entries`, in ticks of `tick_ms` since tick `base`.

    Slice k contains the entries whose number of ticks has bit k set.
    """

    tick_ms: int
    base: int
    entries: BitMap
    slices: list[BitMap]

    def part(self, wanted: BitMap) -> Times:
        """Return the times of the entries in `wanted`, in new bitmaps."""
        return self._replace(entries=self.entries & wanted, slices=[one & wanted for one in self.slices])

    def joined(self, others: Times) -> Times | None:
        """Return the union of both; None if they differ in tick or base."""
        if not (self.entries and others.entries):
            return self if self.entries else others
        if self[:2] != others[:2]:
            return None
        pairs = zip_longest(self.slices, others.slices, fillvalue=BitMap())
        return self._replace(
            entries=self.entries | others.entries, slices=[mine | theirs for mine, theirs in pairs]
        )

    def ticks(self) -> dict[int, int]:
        """Return the tick of each entry."""
        found = dict.fromkeys(self.entries, self.base)
        for bit, entries in enumerate(self.slices):
            for entry_id in entries:
                found[entry_id] += 1 << bit
        return found


NO_TIMES: Final = Times(1, 0, BitMap(), [])


class SnapshotSegment(NamedTuple):
    """Entries `first` .. `stop`-1 of a ledger, with `each` messages per entry, or the numbers of messages in `counts`.

    `first_index` is the topic-wide index of the first message. `slots` contains one slot per entry (0 if it is not
    needed), if the dispatcher dispatches by key.
    """

    ledger_id: int
    first: int
    stop: int
    first_index: int
    each: int
    counts: array[int] | None
    times: Times = NO_TIMES
    slots: array[int] | None = None
    is_first: bool = False
    """True if the segment begins a new snapshot, which replaces the former one."""

    @property
    def next_index(self) -> int:
        """Topic-wide index of the message after the last one of the segment."""
        messages = (self.stop - self.first) * self.each if self.counts is None else sum(self.counts)
        return self.first_index + messages

    def since(self, first: int) -> SnapshotSegment:
        """Return the part of the segment from entry `first` on."""
        gone = first - self.first
        if gone <= 0:
            return self
        counts = None if self.counts is None else self.counts[gone:]
        skipped = gone * self.each if self.counts is None else sum(self.counts[:gone])
        return self._replace(
            first=first,
            first_index=self.first_index + skipped,
            counts=counts,
            times=self.times.part(BitMap(range(first, self.stop))),
            slots=None if self.slots is None else self.slots[gone:],
        )

    def between(self, first: int, stop: int) -> SnapshotSegment:
        """Return the entries `first` .. `stop`-1 of the segment, without times and slots."""
        part = self._replace(times=NO_TIMES, slots=None).since(first)
        counts = None if part.counts is None else part.counts[: stop - first]
        return part._replace(stop=stop, counts=counts)

    def pruned(self, unacknowledged: Unacknowledged) -> SnapshotSegment:
        """Return the segment without the times and slots of acknowledged entries."""
        left = unacknowledged(self.ledger_id, BitMap(range(self.first, self.stop)))
        return self._replace(times=self.times.part(left), slots=self.slots if left else None)

    def held_bytes(self) -> int:
        return (
            SEGMENT_BYTES
            + 4 * len(self.times.entries)
            + 4 * len(self.counts or ())
            + 2 * len(self.slots or ())
        )

    def continues(self, former: SnapshotSegment) -> bool:
        if self.ledger_id == former.ledger_id:
            return self.first == former.stop
        return self.first == 0 and self.ledger_id > former.ledger_id

    def joined(self, following: SnapshotSegment) -> SnapshotSegment | None:
        """Return both segments as one; None if it would exceed a limit, or they store different fields."""
        times = self.times.joined(following.times)
        if (
            times is None
            or following.ledger_id != self.ledger_id
            or following.stop - self.first > SEGMENT_ENTRIES_MAX
            or not self.each == following.each > 0
            or (self.slots is None) != (following.slots is None)
        ):
            return None
        slots = None if self.slots is None or following.slots is None else self.slots + following.slots
        return self._replace(stop=following.stop, times=times, slots=slots)


class DelayedSnapshot:
    """Segments of one cursor's snapshot, in the topic's order."""

    __slots__ = ("_segments",)

    def __init__(self) -> None:
        self._segments: list[SnapshotSegment] = []

    def __bool__(self) -> bool:
        return bool(self._segments)

    def __iter__(self) -> Iterator[SnapshotSegment]:
        return iter(self._segments)

    def extend(self, segment: SnapshotSegment) -> None:
        """Append a segment, or begin a new snapshot with it."""
        segments = self._segments
        if segments and (segment.is_first or not segment.continues(segments[-1])):
            segments.clear()
        joined = segments[-1].joined(segment) if segments else None
        if joined is not None:
            segments[-1] = joined
        else:
            segments.append(segment)

    def since(self, position: Position) -> list[SnapshotSegment]:
        """Return the segments from the entry at `position` on; an empty list if the snapshot does not contain it."""
        for at, segment in enumerate(self._segments):
            if segment.ledger_id == position.ledger_id and segment.first <= position.entry_id < segment.stop:
                return [segment.since(position.entry_id), *self._segments[at + 1 :]]
        return []

    def prune(self, mark_delete: Position, unacknowledged: Unacknowledged) -> None:
        """Drop segments before `mark_delete`, and the times of acknowledged entries."""
        left = [one for one in self._segments if (one.ledger_id, one.stop - 1) > mark_delete]
        self._segments = [one.pruned(unacknowledged) for one in left]

    def held_bytes(self) -> int:
        """Return the approximate memory of the snapshot, in bytes."""
        return sum(one.held_bytes() for one in self._segments)
