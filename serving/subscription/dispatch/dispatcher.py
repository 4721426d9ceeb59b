"""What every dispatcher does: it is offered blocks and deals their entries to consumers. A core.

    read position     the next entry to be offered
    window            what the entries between mark-delete and it hold, in messages
    unacked           messages of the window that are not acknowledged
    ahead             messages behind the read position that are acknowledged already (after a rewind, or by a
                      client that acknowledges what a broker before this one dealt)

so that the backlog is (messages confirmed) - (index of the read position) + unacked - ahead, exactly.

    event                    does                                             leaves
    attach, detach           consumers; may change who is active              notices; a rewind
    offer(block)             deals from the read position on while consumers  deliveries; the read position
                             are ready; skips what is acknowledged            has moved over what was dealt
    acknowledge…             counts, then hands it to the cursor              unacked, mark-delete
    redeliver                counts the redelivery; a rewind (one active      the read position is behind
                             consumer) or back into the queue (shared)        mark-delete again
    reset                    the cursor was moved

Subclasses say who takes the next run (`_taker`), how much of it (`_quota`), and what becomes of what a consumer
holds. A rewind deals everything behind mark-delete again that is not acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, NamedTuple

from pyroaring import BitMap

from quire.runtime.limits import BATCH_MESSAGES_MAX
from quire.serving.model.ports import Position
from quire.serving.model.positions import Segments, preceding
from quire.serving.model.request import SubscriptionKind
from quire.serving.subscription.cursor.cursor import Cursor
from quire.serving.subscription.cursor.entry_set import ENTRY_ID_MAX, run_count, spans
from quire.serving.subscription.delivery.consumer import Consumer
from quire.serving.subscription.delivery.delivery import BlockView, Delivery
from quire.serving.subscription.dispatch.window import Window

SPAN_ENTRIES_MIN = 8
"""Runs that are shorter than this on average are dealt together: each by itself costs as much as ten entries do."""


class Run(NamedTuple):
    """Entries at offsets `start` .. `stop`-1 of a block that are dealt alike; only those at `offsets`, if given."""

    start: int
    stop: int
    redelivery_count: int = 0
    remaining: int = 0
    offsets: Sequence[int] = ()

    def take(self, consumer: Consumer, view: BlockView, limit: int) -> tuple[Delivery, Run | None]:
        """About `limit` > 0 messages of it for `consumer`, and what is left."""
        start, stop, count, remaining, offsets = self
        if remaining:
            return Delivery(consumer, view, start, stop, remaining.bit_count(), count, remaining), None
        if not offsets:
            end, messages = view.cover(start, stop, limit)
            rest = Run(end, stop, count) if end < stop else None
            return Delivery(consumer, view, start, end, messages, count, 0), rest
        taken, messages = view.cover_some(offsets, limit)
        some, others = offsets[:taken], offsets[taken:]
        rest = Run(others[0], stop, count, 0, others) if others else None
        return Delivery(consumer, view, start, some[-1] + 1, messages, count, 0, some), rest


class Dispatcher:
    """Deals the entries of one topic to the consumers of one subscription."""

    kind: ClassVar[SubscriptionKind]

    def __init__(self, cursor: Cursor, segments: Segments) -> None:
        self.cursor = cursor
        self.segments = segments
        self.consumers: list[Consumer] = []
        """In no order that matters, but for failover: there by rank."""
        self.window = Window()
        self.notices: list[tuple[Consumer, bool]] = []
        """Consumers to be told that they became, or ceased to be, the active one; the shell empties it."""
        self.may_go_on = False
        """An acknowledgement made room for more: the shell looks again, and resets it."""
        self._begin()

    def _begin(self) -> None:
        """Read from behind mark-delete, knowing nothing."""
        self.read = self.segments.following(self.cursor.mark_delete)
        self.read_index: int | None = None
        """Topic-wide index of the message at the read position; None until a block there was seen."""
        self.unacked = 0
        self.ahead = 0
        self.ahead_known = not self.cursor.acked and not self.cursor.partial
        self.window.clear()

    # -- consumers -------------------------------------------------------------------------------------

    def attach(self, consumer: Consumer) -> None:
        """A consumer connected. Raises `ConsumerBusy`."""
        raise NotImplementedError

    def detach(self, consumer: Consumer) -> None:
        """A consumer is gone; what it holds will be dealt again."""
        raise NotImplementedError

    def _taker(self) -> Consumer | None:
        """Who is dealt the next run; None when nobody is ready."""
        raise NotImplementedError

    def _quota(self, consumer: Consumer) -> int:
        """At most about this many messages of the block to `consumer` in one run."""
        return consumer.permits

    def _held(self, delivery: Delivery) -> None:
        """`delivery` was dealt."""

    def _released(self, ledger_id: int, entries: BitMap) -> None:
        """`entries`, which the cursor does not know yet, are acknowledged: nobody holds them any more."""

    def _released_partly(self, position: Position, messages: int) -> None:
        """`messages` of an entry are acknowledged."""

    # -- dealing ---------------------------------------------------------------------------------------

    def wanted(self) -> Position | None:
        """The entry to be offered next; None when nobody could take it."""
        return self.read if self._taker() is not None else None

    def offer(self, view: BlockView) -> list[Delivery]:
        """Deal from `view`, a block that holds `wanted()`, as much as consumers are ready to take."""
        assert view.holds(*self.read)
        start = self.read.entry_id - view.first_entry
        runs = self._runs(view, start)
        deliveries, stop = self._deal(view, runs)
        self._pass(view, start, stop, sum([delivery.messages for delivery in deliveries]))
        return deliveries

    def _runs(self, view: BlockView, start: int) -> list[Run]:
        """What of a block from offset `start` on is not acknowledged."""
        ledger_id, first = view.ledger_id, view.first_entry
        if self.cursor.is_plain(ledger_id, first + start, view.stop_entry):
            return [Run(start, view.count)]
        entries = BitMap(range(first + start, view.stop_entry))
        return self.sorted_runs(view, self.cursor.unacknowledged(ledger_id, entries))

    def sorted_runs(self, view: BlockView, entries: BitMap) -> list[Run]:
        """`entries` of a block, as runs of equal redelivery count; a partly acknowledged one is a run by itself."""
        first = view.first_entry
        partial = self.cursor.partial
        runs = []
        groups = self.cursor.redeliveries.split(view.ledger_id, entries)
        for count, group in groups:
            halves = partial.within(view.ledger_id, group) if partial else BitMap()
            runs += [Run(e - first, e - first + 1, count, partial.get(view.ledger_id, e)) for e in halves]
            group = group - halves if halves else group
            pieces = run_count(group)
            if len(groups) == 1 and not halves and len(group) < SPAN_ENTRIES_MIN * pieces > SPAN_ENTRIES_MIN:
                offsets = [entry - first for entry in group]
                return [Run(offsets[0], offsets[-1] + 1, count, 0, offsets)]
            runs += [Run(start - first, stop - first, count) for start, stop in spans(group)]
        runs.sort()
        return runs

    def _deal(self, view: BlockView, runs: Iterable[Run]) -> tuple[list[Delivery], int]:
        """Deal `runs` in order; the offset where it had to stop, the block's end when all were dealt."""
        deliveries: list[Delivery] = []
        for run in runs:
            rest: Run | None = run
            while rest is not None:
                consumer = self._taker()
                if consumer is None:
                    return deliveries, rest.start
                delivery, rest = rest.take(consumer, view, self._quota(consumer))
                consumer.permits -= delivery.messages
                self._held(delivery)
                deliveries.append(delivery)
        return deliveries, view.count

    def _pass(self, view: BlockView, start: int, stop: int, unacked: int) -> None:
        """Move the read position over offsets `start` .. `stop`-1; `unacked` of their messages are not acknowledged."""
        index = view.index_at(start)
        self.read_index = index
        if stop == start:
            return
        first = view.first_entry
        counts = view.counts[start:stop] if view.counts is not None else None
        self.window.push(view.ledger_id, first + start, first + stop, index, view.each, counts)
        messages = view.messages(start, stop)
        self.read = Position(view.ledger_id, first + stop)
        self.read_index = index + messages
        self.unacked += unacked
        self.ahead -= messages - unacked

    def rewind(self) -> None:
        """Deal everything behind mark-delete again that is not acknowledged."""
        if not self.window:
            return
        assert self.read_index is not None
        index = self.window.first_index
        self.ahead += self.read_index - index - self.unacked
        self.read = self.segments.following(self.cursor.mark_delete)
        self.read_index = index
        self.unacked = 0
        self.window.clear()

    def reset(self) -> None:
        """The cursor was moved by somebody else: begin again behind its mark-delete."""
        assert not self.consumers
        self._begin()

    def normalise(self) -> bool:
        """Step into the next segment when the read position's has ended. Whether it moved."""
        position = self.segments.clamp(self.read)
        moved = position != self.read
        self.read = position
        return moved

    def skip_to(self, first: Position) -> None:
        """What lies before `first` is gone from the topic."""
        if self.cursor.mark_delete < preceding(first):
            self.cursor.acknowledge_up_to(preceding(first), self.segments)
            self._begin()

    def acknowledged_ahead(self) -> list[tuple[int, BitMap, int]]:
        """What is acknowledged, whole or in part, from the read position on.

        For each ledger: the entries of both kinds, and how many messages those of the second kind have left.
        """
        ledger_ids = {*self.cursor.acked.by_ledger, *self.cursor.partial.ledgers()}
        found = []
        for ledger_id in sorted(ledger_ids):
            if ledger_id < self.read.ledger_id:
                continue
            first = self.read.entry_id if ledger_id == self.read.ledger_id else 0
            halves = self.cursor.partial.between(ledger_id, first, ENTRY_ID_MAX)
            entries = self.cursor.acked.within(ledger_id, first, ENTRY_ID_MAX) | halves
            if entries:
                found.append((ledger_id, entries, self.cursor.partial.left(ledger_id, halves)))
        return found

    # -- acknowledging ---------------------------------------------------------------------------------

    def acknowledge(self, ledger_id: int, entry_ids: Sequence[int] | BitMap) -> None:
        """Entries of one ledger. Ids that do not exist, or are acknowledged already, are passed over."""
        entries = self.cursor.unacknowledged(ledger_id, self._existing(ledger_id, entry_ids))
        if entries:
            self._count(ledger_id, entries)
            self._released(ledger_id, entries)
            self.cursor.acknowledge(ledger_id, entries, self.segments)
            self._marked()

    def acknowledge_partly(self, position: Position, ack_set: int, batch_size: int) -> None:
        """Messages of one batch: those whose bits are not in `ack_set`. `batch_size` is what the client says."""
        if not self._exists(position) or self.cursor.is_acknowledged(position):
            return
        before = self.cursor.remaining(position)
        count = before.bit_count() if before else self._batch_messages(position, batch_size)
        # Bits that `ack_set` does not have are acknowledged, so nothing need be wider than it, whatever the batch.
        remaining = ack_set & (before or (1 << min(count, ack_set.bit_length())) - 1)
        left = remaining.bit_count()
        if left == 0:
            self.acknowledge(position.ledger_id, [position.entry_id])
        elif left != count:
            if position < self.read:
                self.unacked -= count - left
                self._released_partly(position, count - left)
            else:
                self.ahead_known = False
            self.cursor.acknowledge_partly(position, remaining)

    def _batch_messages(self, position: Position, batch_size: int) -> int:
        """Of an entry; what the block said, where it is known, else what the client says."""
        if position < self.read:
            batch_size = self.window.messages_of(position.ledger_id, BitMap((position.entry_id,)))
        return min(batch_size, BATCH_MESSAGES_MAX) if batch_size > 0 else BATCH_MESSAGES_MAX

    def acknowledge_up_to(self, position: Position) -> None:
        """Everything that is there up to and with `position`."""
        position = self.segments.at_or_before(position)
        if position <= self.cursor.mark_delete:
            return
        if position < self.read:
            self._count_up_to(position)
        self.cursor.acknowledge_up_to(position, self.segments)
        self._marked()

    def _exists(self, position: Position) -> bool:
        """As `_existing`."""
        ledger_id, entry_id = position
        if ledger_id == self.read.ledger_id and 0 <= entry_id < self.read.entry_id:
            return True
        return bool(self._existing(ledger_id, [entry_id]))

    def _existing(self, ledger_id: int, entry_ids: Sequence[int] | BitMap) -> BitMap:
        """Those that were ever confirmed: what was dealt was, the rest is looked up."""
        try:
            entries = BitMap(entry_ids)
        except OverflowError:
            entries = BitMap([entry_id for entry_id in entry_ids if 0 <= entry_id <= ENTRY_ID_MAX])
        if not entries:
            return entries
        last = self.read.entry_id - 1 if ledger_id == self.read.ledger_id else -1
        if entries.max() > last:
            last = self.segments.last_entry(ledger_id)
            if entries.max() > last:
                entries &= BitMap(range(last + 1))
        return entries

    def _count(self, ledger_id: int, entries: BitMap) -> None:
        """Take `entries`, newly acknowledged, out of the counts."""
        if (ledger_id, entries.max()) >= self.read:
            self.ahead_known = False
            if ledger_id > self.read.ledger_id or entries.min() >= self.read.entry_id:
                return
            entries = entries & BitMap(range(self.read.entry_id))
        self.unacked -= self.messages_left(ledger_id, entries)

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
        """`position` is in the window: what is left there afterwards is what lies behind it and is not acked."""
        assert self.read_index is not None
        behind = self.segments.following(position)
        if behind >= self.read:
            self.unacked = 0
            return
        unacked = self.read_index - self.window.index_at(behind)
        for ledger_id, entries in self.cursor.acked.items():
            unacked -= self._messages_between(ledger_id, entries, position)
        for ledger_id in self.cursor.partial.ledgers():
            halves = self.cursor.partial.between(ledger_id, *self._range_between(ledger_id, position))
            unacked -= self._acknowledged_of_halves(ledger_id, halves)
        self.unacked = unacked

    def _messages_between(self, ledger_id: int, entries: BitMap, position: Position) -> int:
        """Messages of `entries` behind `position` and before the read position."""
        inside = entries & BitMap(range(*self._range_between(ledger_id, position)))
        return self.window.messages_of(ledger_id, inside) if inside else 0

    def _range_between(self, ledger_id: int, position: Position) -> tuple[int, int]:
        """Entry ids of the ledger behind `position` and before the read position: (first, stop)."""
        if ledger_id < position.ledger_id or ledger_id > self.read.ledger_id:
            return 0, 0
        first = position.entry_id + 1 if ledger_id == position.ledger_id else 0
        return first, self.read.entry_id if ledger_id == self.read.ledger_id else ENTRY_ID_MAX

    def _marked(self) -> None:
        """Mark-delete may have moved."""
        marked = self.cursor.mark_delete
        if marked >= self.read:
            self._begin()
        else:
            self.window.trim(marked)

    # -- redelivering ----------------------------------------------------------------------------------

    def redeliver(self, consumer: Consumer, ids: dict[int, list[int]] | None) -> None:
        """Deliver again `ids` (entry ids by ledger), or (None) everything that `consumer` holds."""
        raise NotImplementedError

    def dealt_unacknowledged(self) -> list[tuple[int, BitMap]]:
        """What was dealt and is not acknowledged: (ledger id, entries)."""
        found = []
        for ledger_id, first, stop in list(self.window.spans()):
            entries = self.cursor.unacknowledged(ledger_id, BitMap(range(first, stop)))
            if entries:
                found.append((ledger_id, entries))
        return found
