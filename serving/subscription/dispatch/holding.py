"""What the dispatchers of many active consumers have in common: who holds what, and what waits to be dealt again.

    place          comes there by                                    leaves by
    a consumer     being dealt                                       ack, redeliver, detach
    the queue      redeliver, detach of its consumer                 ack, being dealt
    acked          ack (cursor, from any place)                      mark-delete passing over it
    delays         being offered before its time                     ack; its time: into the queue
    aside          being offered while its consumer is not ready     ack, being dealt, or into the queue (see `shared`)
    (all)          the last consumer leaving rewinds: no place, it is behind the read position again

An entry of the window is in exactly one of these. A consumer that holds `UNACKED_MESSAGES_MAX` messages is dealt
nothing until it acknowledges. Giving back by request (negative acknowledgement, time-out) counts as a redelivery;
losing the consumer does not.
"""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple

from pyroaring import BitMap

from quire.runtime.limits import UNACKED_MESSAGES_MAX
from quire.serving.model.ports import Position
from quire.serving.model.positions import Segments
from quire.serving.subscription.cursor.cursor import Cursor
from quire.serving.subscription.cursor.entry_set import EntrySet
from quire.serving.subscription.delayed.delays import Delays
from quire.serving.subscription.delayed.survey import PIECE_ENTRIES_MAX, Piece, Survey
from quire.serving.subscription.delivery.consumer import Consumer
from quire.serving.subscription.delivery.delivery import BlockView
from quire.serving.subscription.dispatch.dispatcher import Dispatcher, Run
from quire.wire.block import is_blank
from quire.wire.deliver_at import delivery_times


class _Later(NamedTuple):
    """Of the block that is offered, what must wait for its time: entries, their offsets and times in ms."""

    entries: BitMap
    offsets: list[int]
    times_ms: list[int]


_NOTHING: Final = _Later(BitMap(), [], [])


class Holding(Dispatcher):
    """Each consumer holds the entries that it was dealt, until it acknowledges them or gives them back."""

    def __init__(self, cursor: Cursor, segments: Segments) -> None:
        self.queue = EntrySet()
        """What of the window nobody holds, is not acknowledged, and may be dealt."""
        self.delays: Delays | None = None
        """What of the window is to be dealt later; None when times of delivery do not count."""
        self._later = _NOTHING
        self.later_found = 0
        self.bytes_passed = 0
        """Delayed entries and bytes that were met since the last survey."""
        self._surveyed: Position | None = None
        """Where the last survey ended; None when a new one must begin at mark-delete."""
        self._is_blind = False
        """Something of the window was read while times did not count: a survey would not know them."""
        super().__init__(cursor, segments)

    def attach(self, consumer: Consumer) -> None:
        self.consumers.append(consumer)

    def detach(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        held, consumer.holds, consumer.unacked = consumer.holds, EntrySet(), 0
        if not self.consumers:
            self._drop_queue()
            self.rewind()
            return
        for ledger_id, entries in held.items():
            self._left(ledger_id, entries)
            self._enqueue(ledger_id, entries)

    @property
    def has_waiting(self) -> bool:
        """Whether anything was read that nobody holds and may be dealt."""
        return bool(self.queue)

    # -- what subclasses add to it -----------------------------------------------------------------------

    def _enqueue(self, ledger_id: int, entries: BitMap) -> None:
        """`entries`, which nobody holds, wait to be dealt."""
        self.queue.add(ledger_id, entries)

    def _dequeue(self, ledger_id: int, entries: BitMap) -> None:
        """Those of `entries` that wait do so no longer."""
        self.queue.remove(ledger_id, entries)

    def _drop_queue(self) -> None:
        """Nothing waits."""
        self.queue.clear()
        if self.delays is not None:
            self.delays.clear()

    def _left(self, ledger_id: int, entries: BitMap) -> None:
        """`entries` have left the consumer that held them."""

    # -- later -------------------------------------------------------------------------------------------

    def _runs(self, view: BlockView, start: int) -> list[Run]:
        """Without what is to be dealt later; `_pass` puts that away, as far as the read position moves over it."""
        self._later = _NOTHING
        if self.delays is None or is_blank(view.header):
            return super()._runs(view, start)
        offsets, times_ms = delivery_times(view.buffer, view.header, start, self.delays.now_ms)
        if not offsets:
            return super()._runs(view, start)
        first = view.first_entry
        left = self.cursor.unacknowledged(view.ledger_id, BitMap(range(first + start, view.stop_entry)))
        later = left & BitMap([first + offset for offset in offsets])
        self._later = _Later(later, offsets, times_ms)
        return self.sorted_runs(view, left - later)

    def _pass(self, view: BlockView, start: int, stop: int, unacked: int) -> None:
        later, self._later = self._later, _NOTHING
        self.bytes_passed += view.bytes
        self._is_blind |= self.delays is None
        if not later.entries:
            super()._pass(view, start, stop, unacked)
            return
        first = view.first_entry
        passed = [
            (first + offset, time_ms)
            for offset, time_ms in zip(later.offsets, later.times_ms, strict=True)
            if offset < stop and first + offset in later.entries
        ]
        entries = BitMap([entry_id for entry_id, _ in passed])
        super()._pass(view, start, stop, unacked + self._messages_of(view, entries))
        if passed:
            assert self.delays is not None
            self.delays.add(view.ledger_id, list(entries), [time_ms for _, time_ms in passed])
            self.later_found += len(passed)

    def release(self) -> None:
        """What is due by now may be dealt."""
        if self.delays is not None:
            for ledger_id, entries in self.delays.take_due():
                self._enqueue(ledger_id, entries)

    def release_all(self) -> bool:
        """Times of delivery count no longer. Whether anything waited for its own."""
        delays, self.delays = self.delays, None
        self._is_blind |= bool(self.window)
        if not delays:
            return False
        for ledger_id, entries in delays.take_all():
            self._enqueue(ledger_id, entries)
        return True

    # -- surveys -----------------------------------------------------------------------------------------

    def survey(self) -> list[Piece]:
        """What was found since the last survey, in pieces."""
        assert self.delays is not None
        found: list[Piece] = []
        if self._is_blind:
            return found
        for run in self.window.behind(self._surveyed or Position(-1, -1)):
            for first in range(run.first, run.stop, PIECE_ENTRIES_MAX):
                stop = min(first + PIECE_ENTRIES_MAX, run.stop)
                piece = Piece(run.ledger_id, run.first, run.stop, run.first_index, run.each, run.counts)
                part = piece.between(first, stop)
                times = self.delays.part(run.ledger_id, BitMap(range(first, stop)))
                slots = self._slots_of(run.ledger_id, first, stop)
                found.append(part._replace(times=times, slots=slots))
        if found:
            found[0] = found[0]._replace(is_first=self._surveyed is None)
            self._surveyed = self.read
        self.later_found = self.bytes_passed = 0
        return found

    def restore(self, survey: Survey) -> None:
        """Go on where `survey` ends, as if everything up to there had been read, and nobody held any of it."""
        assert self.delays is not None and not self.consumers
        self._drop_queue()
        self.rewind()
        pieces = survey.behind(self.segments.following(self.cursor.mark_delete))
        if not pieces or not self._takes(pieces):
            return
        for piece in pieces:
            self._take_in(piece, self.delays)
        last = pieces[-1]
        self.read, self.read_index = Position(last.ledger_id, last.stop), last.next_index
        self.ahead, self.ahead_known = 0, not self.acknowledged_ahead()
        self._surveyed = self.read
        self.release()

    def _take_in(self, piece: Piece, delays: Delays) -> None:
        ledger_id, first, stop = piece[:3]
        counts = None if piece.counts is None else piece.counts[:]
        self.window.push(ledger_id, first, stop, piece.first_index, piece.each, counts)
        left = self.cursor.unacknowledged(ledger_id, BitMap(range(first, stop)))
        later = piece.times.part(left)
        delays.take_in(ledger_id, later)
        if left:
            self.unacked += self.messages_left(ledger_id, left)
        now = left - later.entries
        if now:
            self._enqueue(ledger_id, now)

    def _takes(self, pieces: list[Piece]) -> bool:
        """Whether they say all that is needed here. With other ticks, times would be rounded twice."""
        assert self.delays is not None
        return all(one.times.tick_ms == self.delays.tick_ms for one in pieces if one.times.entries)

    def _slots_of(self, ledger_id: int, first: int, stop: int) -> array[int] | None:
        """Of those that deal by key: the slots of these entries."""
        return None

    def _messages_of(self, view: BlockView, entries: BitMap) -> int:
        """Messages that are not acknowledged of `entries` of `view`."""
        messages: int = view.messages_of(entries)
        halves = self.cursor.partial.within(view.ledger_id, entries)
        if halves:
            messages -= view.messages_of(halves) - self.cursor.partial.left(view.ledger_id, halves)
        return messages

    # -- acknowledging and redelivering ------------------------------------------------------------------

    @staticmethod
    def has_room(consumer: Consumer) -> bool:
        """Whether it may hold more than it does."""
        return consumer.unacked < UNACKED_MESSAGES_MAX

    @staticmethod
    def room(consumer: Consumer) -> int:
        """How many messages it may be dealt; the last batch may exceed it."""
        return min(consumer.permits, UNACKED_MESSAGES_MAX - consumer.unacked)

    def _released(self, ledger_id: int, entries: BitMap) -> None:
        if self.queue:
            self._dequeue(ledger_id, entries)
        if self.delays:
            self.delays.remove(ledger_id, entries)
        for consumer in self.consumers:
            held = consumer.holds.by_ledger.get(ledger_id)
            if held is None or not held.intersect(entries):
                continue
            # Most acknowledgements are one consumer's, and asking costs a tenth of what a new bitmap does.
            is_all = entries.issubset(held)
            mine = entries if is_all else held & entries
            self._relieve(consumer, self.messages_left(ledger_id, mine))
            consumer.holds.remove(ledger_id, mine)
            self._left(ledger_id, mine)
            if is_all:
                return

    def _released_partly(self, position: Position, messages: int) -> None:
        for consumer in self.consumers:
            if position in consumer.holds:
                self._relieve(consumer, messages)

    def _relieve(self, consumer: Consumer, messages: int) -> None:
        was_full = not self.has_room(consumer)
        consumer.unacked -= messages
        if was_full and self.has_room(consumer):
            self.may_go_on = True

    def redeliver(self, consumer: Consumer, ids: dict[int, list[int]] | None) -> None:
        for ledger_id, held in list(consumer.holds.items()):
            back = held.copy() if ids is None else held & self._existing(ledger_id, ids.get(ledger_id, []))
            if back:
                consumer.unacked -= self.messages_left(ledger_id, back)
                consumer.holds.remove(ledger_id, back)
                self._left(ledger_id, back)
                self._enqueue(ledger_id, back)
                self.cursor.count_redelivery(ledger_id, back)

    def rewind(self) -> None:
        super().rewind()
        self._surveyed, self._is_blind = None, False

    def _begin(self) -> None:
        super()._begin()
        self._surveyed, self._is_blind = None, False
        self._drop_queue()
        for consumer in self.consumers:
            consumer.holds.clear()
            consumer.unacked = 0
