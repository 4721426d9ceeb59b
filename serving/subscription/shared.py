"""Shared: entries are dealt round robin to all consumers, each acknowledged by itself.

An entry of the window is in exactly one of four places:

    place          comes there by                                    leaves by
    a consumer     being dealt                                       ack, redeliver, detach
    the queue      redeliver, detach of its consumer                 ack, being dealt
    acked          ack (cursor, from any place)                      mark-delete passing over it
    (all queue)    the last consumer leaving rewinds: no place, it is behind the read position again

The queue is dealt before anything new. Dealing goes by runs: a block is split among the ready consumers of the
best priority level, each gets a run of about its share, not single messages; a stream of small blocks goes
round consumer by consumer. A consumer that holds `UNACKED_MESSAGES_MAX` is passed over until it acknowledges.
Giving back by request (negative acknowledgement, time-out) counts as a redelivery; losing the consumer does not.
"""

from __future__ import annotations

from pyroaring import BitMap

from quire.runtime.limits import UNACKED_MESSAGES_MAX
from quire.serving.ports import Position
from quire.serving.subscription.consumer import Consumer
from quire.serving.subscription.cursor import Cursor
from quire.serving.subscription.delivery import BlockView, Delivery
from quire.serving.subscription.dispatcher import Dispatcher
from quire.serving.subscription.entry_set import EntrySet
from quire.serving.subscription.positions import Segments
from quire.serving.subscription.request import SubscriptionKind

SHARE_MESSAGES_MIN = 16
"""A run is not split below this: dealing one by one costs a frame header call each."""


class Shared(Dispatcher):
    """All consumers are dealt entries."""

    kind = SubscriptionKind.SHARED

    def __init__(self, cursor: Cursor, segments: Segments) -> None:
        self.queue = EntrySet()
        """What was given back and waits to be dealt again."""
        self._turn = 0
        self._share = SHARE_MESSAGES_MIN
        super().__init__(cursor, segments)

    # -- consumers -------------------------------------------------------------------------------------

    def attach(self, consumer: Consumer) -> None:
        self.consumers.append(consumer)

    def detach(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        for ledger_id, entries in consumer.holds.items():
            self.queue.add(ledger_id, entries)
        consumer.holds.clear()
        consumer.unacked = 0
        if not self.consumers:
            self.queue.clear()
            self.rewind()

    def _taker(self) -> Consumer | None:
        """The ready consumer of the best level that has any, from the one whose turn it is."""
        best, best_rank = None, (0, False, 0)
        for consumer in self.consumers:
            if consumer.unacked < UNACKED_MESSAGES_MAX and consumer.is_ready:
                rank = consumer.priority_level, consumer.arrival < self._turn, consumer.arrival
                if best is None or rank < best_rank:
                    best, best_rank = consumer, rank
        return best

    def _quota(self, consumer: Consumer) -> int:
        return min(consumer.permits, self._share)

    def _held(self, delivery: Delivery) -> None:
        consumer, view, start, stop, messages, _, _ = delivery
        consumer.unacked += messages
        consumer.holds.add_span(view.ledger_id, view.first_entry + start, view.first_entry + stop)
        self._turn = consumer.arrival + 1

    # -- dealing ---------------------------------------------------------------------------------------

    def wanted(self) -> Position | None:
        if self._taker() is None:
            return None
        return self.queue.min() if self.queue else self.read

    def offer(self, view: BlockView) -> list[Delivery]:
        self._share = self._share_of(view)
        if self.queue:
            return self._offer_again(view)
        return super().offer(view)

    def _share_of(self, view: BlockView) -> int:
        """How many messages of `view` each ready consumer should get."""
        messages = view.messages(0, view.count)
        if messages <= SHARE_MESSAGES_MIN:
            return SHARE_MESSAGES_MIN
        levels = [c.priority_level for c in self.consumers if c.is_ready]
        return max(SHARE_MESSAGES_MIN, -(-messages // max(1, levels.count(min(levels, default=0)))))

    def _offer_again(self, view: BlockView) -> list[Delivery]:
        """Deal what of the queue is in `view`."""
        assert view.holds(*self.queue.min())
        again = self.queue.within(view.ledger_id, view.first_entry, view.stop_entry)
        deliveries, _ = self._deal(view, self.sorted_runs(view, again))
        for delivery in deliveries:
            first = view.first_entry + delivery.start
            self.queue.remove(view.ledger_id, BitMap(range(first, view.first_entry + delivery.stop)))
        return deliveries

    # -- acknowledging and redelivering ----------------------------------------------------------------

    def _released(self, ledger_id: int, entries: BitMap) -> None:
        if self.queue:
            self.queue.remove(ledger_id, entries)
        for consumer in self.consumers:
            held = consumer.holds.by_ledger.get(ledger_id)
            if held is None:
                continue
            mine = held & entries
            if mine:
                consumer.unacked -= self.messages_left(ledger_id, mine)
                consumer.holds.remove(ledger_id, mine)
                if len(mine) == len(entries):
                    return

    def _released_partly(self, position: Position, messages: int) -> None:
        for consumer in self.consumers:
            if position in consumer.holds:
                consumer.unacked -= messages

    def redeliver(self, consumer: Consumer, ids: dict[int, list[int]] | None) -> None:
        for ledger_id, held in list(consumer.holds.items()):
            back = held.copy() if ids is None else held & self._existing(ledger_id, ids.get(ledger_id, []))
            if back:
                consumer.unacked -= self.messages_left(ledger_id, back)
                consumer.holds.remove(ledger_id, back)
                self.queue.add(ledger_id, back)
                self.cursor.count_redelivery(ledger_id, back)

    def _begin(self) -> None:
        super()._begin()
        self.queue.clear()
        for consumer in self.consumers:
            consumer.holds.clear()
            consumer.unacked = 0
