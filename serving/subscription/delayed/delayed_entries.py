"""Which of the entries that a dispatcher reads are to be dispatched later, and what is known of all it read: a core.

What is not due is put away as the read position moves over it, and comes into the queue when its time has come. All
that was read since the last time can be told in pieces (`survey`), and another dispatcher goes on where these end
(`restore`), as if it had read everything up to there.
"""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple

from pyroaring import BitMap

from quire.serving.model.ports import Position
from quire.serving.subscription.delayed.delays import Delays
from quire.serving.subscription.delayed.survey import PIECE_ENTRIES_MAX, Piece, Survey
from quire.serving.subscription.delivery.delivery import BlockView
from quire.serving.subscription.dispatch.read_position import ReadPosition
from quire.serving.subscription.dispatch.replay_queue import ReplayQueue
from quire.serving.subscription.dispatch.runs import Run, messages_left, sorted_runs, unacknowledged_runs
from quire.serving.subscription.dispatch.slots import EntrySlots
from quire.wire.block import is_blank
from quire.wire.deliver_at import delivery_times


class _Found(NamedTuple):
    """Of the block that is offered, what must wait for its time: entries, their offsets and times in ms."""

    entries: BitMap
    offsets: list[int]
    times_ms: list[int]


_NOTHING: Final = _Found(BitMap(), [], [])


class DelayedEntries:
    """Of what lies before `read`. `slots` are those of the window, where keys matter."""

    def __init__(self, read: ReadPosition, queue: ReplayQueue, slots: EntrySlots | None) -> None:
        self._read = read
        self._queue = queue
        self._slots = slots
        self.delays: Delays | None = None
        """What of the window is to be dispatched later; None when times of delivery do not count."""
        self._found = _NOTHING
        self.found_count = 0
        self.bytes_read = 0
        """Delayed entries, and bytes, that were met since the last survey."""
        self._surveyed: Position | None = None
        """Where the last survey ended; None when a new one must begin at mark-delete."""
        self._is_blind = False
        """Something of the window was read while times did not count: a survey would not know them."""

    def runs(self, view: BlockView, start: int) -> list[Run]:
        """What of a block from offset `start` on is not acknowledged, and due; `move_over` puts the rest away."""
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
        """See `ReadPosition.move_over`; `unacked` is without what is delayed."""
        found, self._found = self._found, _NOTHING
        self.bytes_read += view.bytes
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
        """What is due by now may be dispatched."""
        if self.delays is not None:
            for ledger_id, entries in self.delays.take_due():
                self._queue.add(ledger_id, entries)

    def release_all(self) -> bool:
        """Times of delivery count no longer. Whether anything waited for its own."""
        delays, self.delays = self.delays, None
        self._is_blind |= bool(self._read.window)
        if not delays:
            return False
        for ledger_id, entries in delays.take_all():
            self._queue.add(ledger_id, entries)
        return True

    def clear(self) -> None:
        """Nothing is known: reading begins at mark-delete again."""
        if self.delays is not None:
            self.delays.clear()
        self._surveyed, self._is_blind = None, False

    # -- surveys ---------------------------------------------------------------------------------------

    def survey(self) -> list[Piece]:
        """What was found since the last survey, in pieces."""
        assert self.delays is not None
        found: list[Piece] = []
        if self._is_blind:
            return found
        for run in self._read.window.since(self._surveyed or Position(-1, -1)):
            for first in range(run.first, run.stop, PIECE_ENTRIES_MAX):
                stop = min(first + PIECE_ENTRIES_MAX, run.stop)
                piece = Piece(run.ledger_id, run.first, run.stop, run.first_index, run.each, run.counts)
                part = piece.between(first, stop)
                times = self.delays.part(run.ledger_id, BitMap(range(first, stop)))
                slots = None if self._slots is None else self._slots.between(run.ledger_id, first, stop)
                found.append(part._replace(times=times, slots=slots))
        if found:
            found[0] = found[0]._replace(is_first=self._surveyed is None)
            self._surveyed = self._read.position
        self.found_count = self.bytes_read = 0
        return found

    def restore(self, survey: Survey) -> None:
        """Go on where `survey` ends, as if everything up to there had been read. Nobody is connected."""
        assert self.delays is not None
        read = self._read
        self._queue.clear()
        self.clear()
        read.rewind()
        pieces = survey.since(read.segments.following(read.cursor.mark_delete))
        if not pieces or not all(map(self._knows, pieces)):
            return
        read.restore(pieces)
        for piece in pieces:
            self._take_in(piece, self.delays)
        self._surveyed = read.position
        self.release()

    def _knows(self, piece: Piece) -> bool:
        """Whether it says all that is needed here. With other ticks, times would be rounded twice."""
        assert self.delays is not None
        if piece.times.entries and piece.times.tick_ms != self.delays.tick_ms:
            return False
        return self._slots is None or piece.slots is not None or not self._unacknowledged(piece)

    def _take_in(self, piece: Piece, delays: Delays) -> None:
        ledger_id, first, stop = piece[:3]
        if self._slots is not None:
            nobody_asks = array("H", bytes(2 * (stop - first)))
            self._slots.push(ledger_id, first, piece.slots[:] if piece.slots else nobody_asks)
        left = self._unacknowledged(piece)
        later = piece.times.part(left)
        delays.take_in(ledger_id, later)
        now = left - later.entries
        if now:
            self._queue.add(ledger_id, now)

    def _unacknowledged(self, piece: Piece) -> BitMap:
        return self._read.cursor.unacknowledged(piece.ledger_id, BitMap(range(piece.first, piece.stop)))
