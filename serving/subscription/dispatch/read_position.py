"""The read position of a subscription, and what lies before it, counted in messages. A core.

    position          the next entry to be read
    index             topic-wide index of the message there; None until a block there was seen
    window            what the entries between mark-delete and it hold, in messages
    unacked           messages of the window that are not acknowledged
    ahead             messages from the read position on that are acknowledged already (after a rewind, or by a
                      client that acknowledges what a broker before this one dispatched)

so that the backlog is (messages confirmed) - index + unacked - ahead, exactly.

    event             does
    move_over         reading goes on: what was read is in the window
    acknowledge…      counts, then hands it to the cursor; mark-delete may pass all that was read: it begins anew there
    rewind            everything after mark-delete that is not acknowledged is to be read again
    begin             the cursor was moved: reads from mark-delete on, knowing nothing
"""

from __future__ import annotations

from collections.abc import Sequence

from pyroaring import BitMap

from quire.runtime.limits import BATCH_MESSAGES_MAX
from quire.serving.model.ports import Position
from quire.serving.model.positions import Segments
from quire.serving.subscription.cursor.cursor import Cursor
from quire.serving.subscription.cursor.entry_set import ENTRY_ID_MAX
from quire.serving.subscription.delayed.survey import Piece
from quire.serving.subscription.delivery.delivery import BlockView
from quire.serving.subscription.dispatch.window import Window


class ReadPosition:
    """Between the cursor's mark-delete position and what is read next."""

    __slots__ = (
        "ahead",
        "ahead_known",
        "cursor",
        "index",
        "position",
        "segments",
        "unacked",
        "window",
    )

    def __init__(self, cursor: Cursor, segments: Segments) -> None:
        self.cursor = cursor
        self.segments = segments
        self.window = Window()
        self.begin()

    def begin(self) -> None:
        """Read from mark-delete on, knowing nothing."""
        self.position = self.segments.following(self.cursor.mark_delete)
        self.index: int | None = None
        self.unacked = 0
        self.ahead = 0
        self.ahead_known = not self.cursor.acked and not self.cursor.partial
        self.window.clear()

    # -- reading ---------------------------------------------------------------------------------------

    def move_over(self, view: BlockView, start: int, stop: int, unacked: int) -> None:
        """Over offsets `start` .. `stop`-1 of a block; `unacked` of their messages are not acknowledged."""
        index = view.index_at(start)
        self.index = index
        if stop == start:
            return
        first = view.first_entry
        counts = view.counts[start:stop] if view.counts is not None else None
        self.window.push(view.ledger_id, first + start, first + stop, index, view.each, counts)
        messages = view.messages(start, stop)
        self.position = Position(view.ledger_id, first + stop)
        self.index = index + messages
        self.unacked += unacked
        self.ahead -= messages - unacked

    def restore(self, pieces: list[Piece]) -> None:
        """As if all that a survey knows of, from mark-delete on, had been read."""
        for ledger_id, first, stop, first_index, each, counts, *_ in pieces:
            self.window.push(ledger_id, first, stop, first_index, each, counts and counts[:])
            left = self.cursor.unacknowledged(ledger_id, BitMap(range(first, stop)))
            if left:
                self.unacked += self.messages_left(ledger_id, left)
        self.position, self.index = Position(pieces[-1].ledger_id, pieces[-1].stop), pieces[-1].next_index
        self.ahead, self.ahead_known = 0, not self.acknowledged_ahead()

    def rewind(self) -> None:
        """Read everything after mark-delete again that is not acknowledged."""
        if not self.window:
            return
        assert self.index is not None
        index = self.window.first_index
        self.ahead += self.index - index - self.unacked
        self.position = self.segments.following(self.cursor.mark_delete)
        self.index = index
        self.unacked = 0
        self.window.clear()

    def normalise(self) -> bool:
        """Step into the next segment when the position's has ended. Whether it moved."""
        position = self.segments.clamp(self.position)
        moved = position != self.position
        self.position = position
        return moved

    # -- the backlog -----------------------------------------------------------------------------------

    def backlog(self, confirmed_index: int, index: int) -> int:
        """Messages that are not acknowledged of the first `confirmed_index`; `index` is of the one at the position."""
        return confirmed_index - index + self.unacked - self.ahead

    def learn_index(self, position: Position, index: int) -> None:
        """The message at `position` has this index."""
        if self.position == position:
            self.index = index

    def learn_ahead(self, ahead: list[tuple[int, BitMap, int]], messages: int) -> None:
        """What `acknowledged_ahead` said holds so many acknowledged messages."""
        if self.acknowledged_ahead() == ahead:
            self.ahead, self.ahead_known = messages, True

    def acknowledged_ahead(self) -> list[tuple[int, BitMap, int]]:
        """What is acknowledged, whole or in part, from the read position on.

        For each ledger: the entries of both kinds, and how many messages those of the second kind have left.
        """
        ledger_ids = {*self.cursor.acked.by_ledger, *self.cursor.partial.ledgers()}
        found = []
        for ledger_id in sorted(ledger_ids):
            if ledger_id < self.position.ledger_id:
                continue
            first = self.position.entry_id if ledger_id == self.position.ledger_id else 0
            halves = self.cursor.partial.between(ledger_id, first, ENTRY_ID_MAX)
            entries = self.cursor.acked.within(ledger_id, first, ENTRY_ID_MAX) | halves
            if entries:
                found.append((ledger_id, entries, self.cursor.partial.left(ledger_id, halves)))
        return found

    # -- acknowledging ---------------------------------------------------------------------------------

    def acknowledge(self, ledger_id: int, entries: BitMap) -> bool:
        """Entries that exist and are not acknowledged yet. Whether nothing that was read is left: it began anew."""
        read = entries
        if (ledger_id, entries.max()) >= self.position:
            self.ahead_known = False
            read = entries & BitMap(range(self.position.entry_id))
        if ledger_id <= self.position.ledger_id and read:
            self.unacked -= self.messages_left(ledger_id, read)
        self.cursor.acknowledge(ledger_id, entries, self.segments)
        return self._marked()

    def acknowledge_up_to(self, position: Position) -> bool:
        """Everything that is there up to and with `position`. As `acknowledge`."""
        position = self.segments.at_or_before(position)
        if position <= self.cursor.mark_delete:
            return False
        if position < self.position:
            self._count_up_to(position)
        self.cursor.acknowledge_up_to(position, self.segments)
        return self._marked()

    def left_of_batch(self, position: Position, ack_set: int, batch_size: int) -> tuple[int, int] | None:
        """The bits of a batch's messages that are left when only those of `ack_set` are, and how many go with it.

        None when nothing changes. `batch_size` is what the client says.
        """
        if not self._exists(position) or self.cursor.is_acknowledged(position):
            return None
        before = self.cursor.remaining(position)
        count = before.bit_count() if before else self._batch_messages(position, batch_size)
        # Bits that `ack_set` does not have are acknowledged, so nothing need be wider than it, whatever the batch.
        remaining = ack_set & (before or (1 << min(count, ack_set.bit_length())) - 1)
        acked = count - remaining.bit_count()
        return (remaining, acked) if acked else None

    def acknowledge_partly(self, position: Position, remaining: int, acked: int) -> None:
        """`acked` messages of an entry, as `left_of_batch` counts them; those with bits in `remaining` are left."""
        if position < self.position:
            self.unacked -= acked
        else:
            self.ahead_known = False
        self.cursor.acknowledge_partly(position, remaining)

    def existing(self, ledger_id: int, entry_ids: Sequence[int] | BitMap) -> BitMap:
        """Those that were ever confirmed: what was read was, the rest is looked up."""
        try:
            entries = BitMap(entry_ids)
        except OverflowError:
            entries = BitMap([entry_id for entry_id in entry_ids if 0 <= entry_id <= ENTRY_ID_MAX])
        if not entries:
            return entries
        last = self.position.entry_id - 1 if ledger_id == self.position.ledger_id else -1
        if entries.max() > last:
            last = self.segments.last_entry(ledger_id)
            if entries.max() > last:
                entries &= BitMap(range(last + 1))
        return entries

    def _exists(self, position: Position) -> bool:
        """As `existing`."""
        ledger_id, entry_id = position
        if ledger_id == self.position.ledger_id and 0 <= entry_id < self.position.entry_id:
            return True
        return bool(self.existing(ledger_id, [entry_id]))

    def _batch_messages(self, position: Position, batch_size: int) -> int:
        """Of an entry; what the block said, where it is known, else what the client says."""
        if position < self.position:
            batch_size = self.window.messages_of(position.ledger_id, BitMap((position.entry_id,)))
        return min(batch_size, BATCH_MESSAGES_MAX) if batch_size > 0 else BATCH_MESSAGES_MAX

    def _marked(self) -> bool:
        """Mark-delete may have moved. Whether it passed all that was read."""
        marked = self.cursor.mark_delete
        if marked >= self.position:
            self.begin()
            return True
        self.window.trim(marked)
        return False

    # -- counting --------------------------------------------------------------------------------------

    def messages_left(self, ledger_id: int, entries: BitMap) -> int:
        """Messages still to be acknowledged of `entries`, which are in the window and not acknowledged."""
        messages = self.window.messages_of(ledger_id, entries)
        return (
            messages - self._acknowledged_of_halves(ledger_id, entries) if self.cursor.partial else messages
        )

    def _acknowledged_of_halves(self, ledger_id: int, entries: BitMap) -> int:
        """Messages that are acknowledged of entries of the window that are acknowledged in part."""
        halves = self.cursor.partial.within(ledger_id, entries)
        if not halves:
            return 0
        return self.window.messages_of(ledger_id, halves) - self.cursor.partial.left(ledger_id, halves)

    def _count_up_to(self, position: Position) -> None:
        """`position` is in the window: what is left there afterwards is what comes after it and is not acked."""
        assert self.index is not None
        after = self.segments.following(position)
        if after >= self.position:
            self.unacked = 0
            return
        unacked = self.index - self.window.index_at(after)
        for ledger_id, entries in self.cursor.acked.items():
            inside = entries & BitMap(range(*self._range_between(ledger_id, position)))
            unacked -= self.window.messages_of(ledger_id, inside) if inside else 0
        for ledger_id in self.cursor.partial.ledgers():
            halves = self.cursor.partial.between(ledger_id, *self._range_between(ledger_id, position))
            unacked -= self._acknowledged_of_halves(ledger_id, halves)
        self.unacked = unacked

    def _range_between(self, ledger_id: int, position: Position) -> tuple[int, int]:
        """Entry ids of the ledger after `position` and before the read position: (first, stop)."""
        if ledger_id < position.ledger_id or ledger_id > self.position.ledger_id:
            return 0, 0
        first = position.entry_id + 1 if ledger_id == position.ledger_id else 0
        return first, self.position.entry_id if ledger_id == self.position.ledger_id else ENTRY_ID_MAX
