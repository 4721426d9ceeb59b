"""Shared: entries are dealt round robin to all consumers, each acknowledged by itself.

Where an entry is, and how it gets there, stands in `holding`. What waits in the queue is dealt before anything new.
Dealing goes by runs: a block is split among the ready consumers of the best priority level, each gets a run of about
its share, not single messages; a stream of small blocks goes round consumer by consumer. A lower level (a higher
number) is dealt something only while nobody of a better one is ready.
"""

from __future__ import annotations

from quire.serving.model.ports import Position
from quire.serving.model.positions import Segments
from quire.serving.model.request import SubscriptionKind
from quire.serving.subscription.cursor.cursor import Cursor
from quire.serving.subscription.delivery.consumer import Consumer
from quire.serving.subscription.delivery.delivery import BlockView, Delivery
from quire.serving.subscription.dispatch.holding import Holding

SHARE_MESSAGES_MIN = 16
"""A run is not split below this: dealing one by one costs a frame header call each."""


class Shared(Holding):
    """All consumers are dealt entries."""

    kind = SubscriptionKind.SHARED

    def __init__(self, cursor: Cursor, segments: Segments) -> None:
        self._turn = 0
        self._share = SHARE_MESSAGES_MIN
        super().__init__(cursor, segments)

    def _taker(self) -> Consumer | None:
        """The ready consumer of the best level that has any, from the one whose turn it is."""
        best, best_rank = None, (0, False, 0)
        for consumer in self.consumers:
            if self.has_room(consumer) and consumer.is_ready:
                rank = consumer.priority_level, consumer.arrival < self._turn, consumer.arrival
                if best is None or rank < best_rank:
                    best, best_rank = consumer, rank
        return best

    def _quota(self, consumer: Consumer) -> int:
        return min(consumer.permits, self._share)

    def _held(self, delivery: Delivery) -> None:
        consumer, view = delivery.consumer, delivery.view
        consumer.unacked += delivery.messages
        if delivery.offsets:
            consumer.holds.add(view.ledger_id, delivery.entries())
        else:
            first = view.first_entry
            consumer.holds.add_span(view.ledger_id, first + delivery.start, first + delivery.stop)
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
            self.queue.remove(view.ledger_id, delivery.entries())
        return deliveries
