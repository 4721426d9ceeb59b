"""Delayed entries of one dispatcher, and snapshots of the entries that it read. Performs no I/O.

An entry that is not due is put aside when the read position passes it, and queued when it is due. A snapshot covers
the entries read since the former one (`delayed_snapshot`); a new dispatcher continues at its end (`restore`), as
if it had read everything before.
"""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple

from pyroaring import BitMap

from quire.serving.model.ports import Position
from quire.serving.subscription.delayed.delayed_snapshot import (
    SEGMENT_ENTRIES_MAX,
    DelayedSnapshot,
    SnapshotSegment,
)
from quire.serving.subscription.delayed.delays import Delays
from quire.serving.subscription.delivery.delivery import BlockView
from quire.serving.subscription.dispatch.read_position import ReadPosition
from quire.serving.subscription.dispatch.replay_queue import ReplayQueue
from quire.serving.subscription.dispatch.runs import Run, messages_left, sorted_runs, unacknowledged_runs
from quire.serving.subscription.dispatch.slots import EntrySlots
from quire.wire.block import is_blank
from quire.wire.deliver_at import delivery_times


class _Found(NamedTuple):
    """Delayed entries of the block being dispatched, with their offsets in the block and delivery times in ms."""

    entries: BitMap
    offsets: list[int]
    times_ms: list[int]


_NOTHING: Final = _Found(BitMap(), [], [])


class DelayedEntries:
    """Delayed entries before the read position.

    `slots` are the slots of entries in the window; None unless the dispatcher dispatches by key.
    """

    def __init__(self, read: ReadPosition, queue: ReplayQueue, slots: EntrySlots | None) -> None:
        self._read = read
        self._queue = queue
        self._slots = slots
        self.delays: Delays | None = None
        """Delayed entries of the window; None while delivery times are ignored."""
        self._found = _NOTHING
        self.found_count = 0
        self.bytes_read = 0
        """Number of bytes read since the last snapshot; `found_count` is the number of delayed entries among them."""
        self._surveyed: Position | None = None
        """End of the last snapshot; None if a new snapshot must begin at the mark-delete position."""
        self._is_blind = False
        """True if entries of the window were read while delivery times were ignored.

        A snapshot would lack their times.
        """

    def runs(self, view: BlockView, start: int) -> list[Run]:
        """Return the runs of unacknowledged, due entries from offset `start` on; `move_over` puts the others aside."""
        self._found = _NOTHING
        cursor = self._read.cursor
        if self.delays is None or is_blank(view.header):
            return unacknowledged_runs(cursor, view, start)
        offsets, times_ms = delivery_times(view.buffer, view.header, start, self.delays.now_ms)
        if not offsets:
            return unacknowledged_runs(cursor, view, start)
        first = view.first_entry
        left = cursor.unacknowledged(view.ledger_id, BitMap(range(first + start, view.stop_entry)))
        later = left & BitMap([first + offset for offset in offsets])
        self._found = _Found(later, offsets, times_ms)
        return sorted_runs(cursor, view, left - later)

    def move_over(self, view: BlockView, start: int, stop: int, unacked: int) -> None:
        """Move the read position; see `ReadPosition.move_over`. `unacked` excludes delayed entries."""
        found, self._found = self._found, _NOTHING
        self.bytes_read += view.header.length
        self._is_blind |= self.delays is None
        if not found.entries:
            self._read.move_over(view, start, stop, unacked)
            return
        first = view.first_entry
        passed = [
            (first + offset, time_ms)
            for offset, time_ms in zip(found.offsets, found.times_ms, strict=True)
            if offset < stop and first + offset in found.entries
        ]
        entries = BitMap([entry_id for entry_id, _ in passed])
        unacked += messages_left(self._read.cursor, view, entries)
        self._read.move_over(view, start, stop, unacked)
        if passed:
            assert self.delays is not None
            self.delays.add(view.ledger_id, list(entries), [time_ms for _, time_ms in passed])
            self.found_count += len(passed)

    def release(self) -> None:
        """Queue the delayed entries that are due by now."""
        if self.delays is not None:
            for ledger_id, entries in self.delays.take_due():
                self._queue.add(ledger_id, entries)

    def release_all(self) -> bool:
        """Queue all delayed entries, because delivery times are ignored from now on. Return whether there were any."""
        delays, self.delays = self.delays, None
        self._is_blind |= bool(self._read.window)
        if not delays:
            return False
        for ledger_id, entries in delays.take_all():
            self._queue.add(ledger_id, entries)
        return True

    def clear(self) -> None:
        """Forget all delayed entries, because reading restarts at the mark-delete position."""
        if self.delays is not None:
            self.delays.clear()
        self._surveyed, self._is_blind = None, False

    # -- snapshots ---------------------------------------------------------------------------------------

    def delayed_snapshot(self) -> list[SnapshotSegment]:
        """Return the entries that were read since the last snapshot, as segments of a snapshot."""
        assert self.delays is not None
        found: list[SnapshotSegment] = []
        if self._is_blind:
            return found
        for run in self._read.window.since(self._surveyed or Position(-1, -1)):
            for first in range(run.first, run.stop, SEGMENT_ENTRIES_MAX):
                stop = min(first + SEGMENT_ENTRIES_MAX, run.stop)
                segment = SnapshotSegment(
                    run.ledger_id, run.first, run.stop, run.first_index, run.each, run.counts
                )
                part = segment.between(first, stop)
                times = self.delays.part(run.ledger_id, BitMap(range(first, stop)))
                slots = None if self._slots is None else self._slots.between(run.ledger_id, first, stop)
                found.append(part._replace(times=times, slots=slots))
        if found:
            found[0] = found[0]._replace(is_first=self._surveyed is None)
            self._surveyed = self._read.position
        self.found_count = self.bytes_read = 0
        return found

    def restore(self, snapshot: DelayedSnapshot) -> None:
        """Restore a snapshot, so that reading continues at its end. Precondition: no consumer is attached."""
        assert self.delays is not None
        read = self._read
        self._queue.clear()
        self.clear()
        read.rewind()
        segments = snapshot.since(read.segments.following(read.cursor.mark_delete))
        if not segments or not all(map(self._knows, segments)):
            return
        read.restore(segments)
        for segment in segments:
            self._take_in(segment, self.delays)
        self._surveyed = read.position
        self.release()

    def _knows(self, segment: SnapshotSegment) -> bool:
        """Return whether a segment has all data that this dispatcher needs, with the same tick.

        Times of a different tick would be rounded twice.
        """
        assert self.delays is not None
        if segment.times.entries and segment.times.tick_ms != self.delays.tick_ms:
            return False
        return self._slots is None or segment.slots is not None or not self._unacknowledged(segment)

    def _take_in(self, segment: SnapshotSegment, delays: Delays) -> None:
        ledger_id, first, stop = segment[:3]
        if self._slots is not None:
            # A segment without slots has no unacknowledged entries (`_knows`), so the zeros are never read.
            unused = array("H", bytes(2 * (stop - first)))
            self._slots.push(ledger_id, first, segment.slots[:] if segment.slots else unused)
        left = self._unacknowledged(segment)
        later = segment.times.part(left)
        delays.take_in(ledger_id, later)
        now = left - later.entries
        if now:
            self._queue.add(ledger_id, now)

    def _unacknowledged(self, segment: SnapshotSegment) -> BitMap:
        return self._read.cursor.unacknowledged(segment.ledger_id, BitMap(range(segment.first, segment.stop)))
