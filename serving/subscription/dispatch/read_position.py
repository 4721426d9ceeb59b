"""Read position of a subscription, and the window of entries before it, counted in messages. Performs no I/O.

    position          the next entry to be read
    index             topic-wide index of that entry's first message; None until a block there was read
    window            the entries between mark-delete and the read position, with their message counts
    unacked           number of unacknowledged messages in the window
    ahead             number of acknowledged messages from the read position on (after a rewind, or if a client
                      acknowledges messages that a former broker dispatched)

The backlog is exactly (confirmed messages) - index + unacked - ahead.

    event             action
    move_over         add entries that were read to the window
    acknowledge…      update the counts, then the cursor; begin again if mark-delete passes the read position
    rewind            read all unacknowledged entries after mark-delete again
    begin             discard all state, and read from mark-delete on, because the cursor was moved
"""

from __future__ import annotations

from collections.abc import Sequence

from pyroaring import BitMap

from quire.runtime.limits import BATCH_MESSAGES_MAX
from quire.serving.model.ports import Position
from quire.serving.model.positions import Segments
from quire.serving.subscription.cursor.cursor import Cursor
from quire.serving.subscription.cursor.entry_set import ENTRY_ID_MAX
from quire.serving.subscription.delayed.delayed_snapshot import SnapshotSegment
from quire.serving.subscription.delivery.delivery import BlockView
from quire.serving.subscription.dispatch.window import Window


class ReadPosition:
    """Read position of a subscription, and the window of entries between mark-delete and the read position."""

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
        """Discard all state, and read from the mark-delete position on."""
        self.position = self.segments.following(self.cursor.mark_delete)
        self.index: int | None = None
        self.unacked = 0
        self.ahead = 0
        self.ahead_known = not self.cursor.acked and not self.cursor.partial
        self.window.clear()

    # -- reading ---------------------------------------------------------------------------------------

    def move_over(self, view: BlockView, start: int, stop: int, unacked: int) -> None:
        """Move the read position over a part of a block, and add this part to the window.

        The entries at offsets `start` .. `stop`-1 contain `unacked` unacknowledged messages.
        """
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

    def restore(self, pieces: list[SnapshotSegment]) -> None:
        """Restore a delayed snapshot, as if its entries, from the mark-delete position on, had been read."""
        for ledger_id, first, stop, first_index, each, counts, *_ in pieces:
            self.window.push(ledger_id, first, stop, first_index, each, counts and counts[:])
            left = self.cursor.unacknowledged(ledger_id, BitMap(range(first, stop)))
            if left:
                self.unacked += self.messages_left(ledger_id, left)
        self.position, self.index = Position(pieces[-1].ledger_id, pieces[-1].stop), pieces[-1].next_index
        self.ahead, self.ahead_known = 0, not self.acknowledged_ahead()

    def rewind(self) -> None:
        """Read all unacknowledged entries after the mark-delete position again."""
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
        """Move the position to the next segment if it is at the end of a segment.

        Return whether the position changed.
        """
        position = self.segments.clamp(self.position)
        moved = position != self.position
        self.position = position
        return moved

    # -- the backlog -----------------------------------------------------------------------------------

    def backlog(self, confirmed_index: int, index: int) -> int:
        """Count the unacknowledged messages before `confirmed_index`; `index` is the index at the read position."""
        return confirmed_index - index + self.unacked - self.ahead

    def learn_index(self, position: Position, index: int) -> None:
        """Set the index of the read position, if the read position is still `position`."""
        if self.position == position:
            self.index = index

    def learn_ahead(self, ahead: list[tuple[int, BitMap, int]], messages: int) -> None:
        """Set `ahead` to `messages`, if `acknowledged_ahead()` still returns `ahead`."""
        if self.acknowledged_ahead() == ahead:
            self.ahead, self.ahead_known = messages, True

    def acknowledged_ahead(self) -> list[tuple[int, BitMap, int]]:
        """Return the completely or partly acknowledged entries from the read position on.

        For each ledger: (ledger id, entries of both kinds, remaining messages of the partly acknowledged ones).
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
        """Acknowledge existing, unacknowledged entries. Return whether mark-delete passed the read position."""
        read = entries
        if (ledger_id, entries.max()) >= self.position:
            self.ahead_known = False
            read = entries & BitMap(range(self.position.entry_id))
        if ledger_id <= self.position.ledger_id and read:
            self.unacked -= self.messages_left(ledger_id, read)
        self.cursor.acknowledge(ledger_id, entries, self.segments)
        return self._follow_mark_delete()

    def acknowledge_up_to(self, position: Position) -> bool:
        """Acknowledge all existing entries up to and including `position`.

        Return whether mark-delete passed the read position.
        """
        position = self.segments.at_or_before(position)
        if position <= self.cursor.mark_delete:
            return False
        if position < self.position:
            self._count_up_to(position)
        self.cursor.acknowledge_up_to(position, self.segments)
        return self._follow_mark_delete()

    def left_of_batch(self, position: Position, ack_set: int, batch_size: int) -> tuple[int, int] | None:
        """Return the effect of an `ack_set` on a batch: (bits of remaining messages, newly acknowledged messages).

        Returns None if nothing changes. `batch_size` is the number of messages that the client claims.
        """
        if not self._exists(position) or self.cursor.is_acknowledged(position):
            return None
        before = self.cursor.remaining(position)
        count = before.bit_count() if before else self._batch_messages(position, batch_size)
        # Messages beyond the highest bit of `ack_set` are acknowledged, so the mask need not be wider than `ack_set`.
        remaining = ack_set & (before or (1 << min(count, ack_set.bit_length())) - 1)
        acked = count - remaining.bit_count()
        return (remaining, acked) if acked else None

    def acknowledge_partly(self, position: Position, remaining: int, acked: int) -> None:
        """Acknowledge `acked` messages of an entry; `left_of_batch` returned both `remaining` and `acked`."""
        if position < self.position:
            self.unacked -= acked
        else:
            self.ahead_known = False
        self.cursor.acknowledge_partly(position, remaining)

    def existing(self, ledger_id: int, entry_ids: Sequence[int] | BitMap) -> BitMap:
        """Return those of `entry_ids` that exist: entries that were read, or that the topic's segments contain."""
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
        """Return whether the entry was ever confirmed; see `existing`."""
        ledger_id, entry_id = position
        if ledger_id == self.position.ledger_id and 0 <= entry_id < self.position.entry_id:
            return True
        return bool(self.existing(ledger_id, [entry_id]))

    def _batch_messages(self, position: Position, batch_size: int) -> int:
        """Return the number of messages of a batch: from its block if that was read, otherwise as the client claims."""
        if position < self.position:
            batch_size = self.window.messages_of(position.ledger_id, BitMap((position.entry_id,)))
        return min(batch_size, BATCH_MESSAGES_MAX) if batch_size > 0 else BATCH_MESSAGES_MAX

    def _follow_mark_delete(self) -> bool:
        """Trim the window up to mark-delete; if that passed the read position, begin again and return True."""
        marked = self.cursor.mark_delete
        if marked >= self.position:
            self.begin()
            return True
        self.window.trim(marked)
        return False

    # -- counting --------------------------------------------------------------------------------------

    def messages_left(self, ledger_id: int, entries: BitMap) -> int:
        """Count the remaining messages of `entries`, which are in the window and not completely acknowledged."""
        messages = self.window.messages_of(ledger_id, entries)
        return (
            messages - self._acknowledged_of_partial(ledger_id, entries) if self.cursor.partial else messages
        )

    def _acknowledged_of_partial(self, ledger_id: int, entries: BitMap) -> int:
        """Count the acknowledged messages of the partly acknowledged `entries`, which are in the window."""
        halves = self.cursor.partial.within(ledger_id, entries)
        if not halves:
            return 0
        return self.window.messages_of(ledger_id, halves) - self.cursor.partial.left(ledger_id, halves)

    def _count_up_to(self, position: Position) -> None:
        """Recompute `unacked` for the part of the window after `position`, which is in the window."""
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
            unacked -= self._acknowledged_of_partial(ledger_id, halves)
        self.unacked = unacked

    def _range_between(self, ledger_id: int, position: Position) -> tuple[int, int]:
        """Return the entry ids (first, stop) of a ledger that are after `position` and before the read position."""
        if ledger_id < position.ledger_id or ledger_id > self.position.ledger_id:
            return 0, 0
        first = position.entry_id + 1 if ledger_id == position.ledger_id else 0
        return first, self.position.entry_id if ledger_id == self.position.ledger_id else ENTRY_ID_MAX
