"""Failover: several consumers, one of them active; another takes over when it leaves.

    event                     active before    active after        leaves
    attach, nobody there      none             the new one         notice: active
    attach, ranks before      a                the new one         rewind; notices: a inactive, the new one active
    attach, ranks behind      a                a                   notice: the new one inactive
    detach the active one     a                first in rank       rewind; notice: active
    detach another            a                a (or see below)    nothing

Rank is priority level (0 first), then, on a partition, name and arrival; else arrival alone, so that a newcomer
does not take over a topic because of how it is called. The active one of a partition is the consumer number
(partition modulo the number of consumers of the best level), so the partitions of a topic spread evenly; its
count changes with every consumer that comes or goes, and then the active one may change with it.

A hand-over deals everything behind mark-delete again: what the former one held comes twice rather than never.
"""

from __future__ import annotations

from quire.serving.model.positions import Segments
from quire.serving.model.request import SubscriptionKind
from quire.serving.subscription.cursor.cursor import Cursor
from quire.serving.subscription.delivery.consumer import Consumer
from quire.serving.subscription.dispatch.exclusive import SingleActive


class Failover(SingleActive):
    """One active consumer of several. `partition` is -1 for a topic that is none."""

    kind = SubscriptionKind.FAILOVER

    def __init__(self, cursor: Cursor, segments: Segments, partition: int = -1) -> None:
        super().__init__(cursor, segments)
        self._partition = partition

    def attach(self, consumer: Consumer) -> None:
        self.consumers.append(consumer)
        self.consumers.sort(key=self._rank)
        if not self._elect():
            self.notices.append((consumer, False))

    def detach(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        if consumer is self.active:
            self.active = None
        self._elect()

    def _rank(self, consumer: Consumer) -> tuple[int, str, int]:
        name = consumer.name if self._partition >= 0 else ""
        return consumer.priority_level, name, consumer.arrival

    def _chosen(self) -> Consumer | None:
        if not self.consumers:
            return None
        best = [c for c in self.consumers if c.priority_level == self.consumers[0].priority_level]
        return best[self._partition % len(best) if self._partition >= 0 else 0]

    def _elect(self) -> bool:
        """Choose the active one anew; whether it is another one now."""
        chosen, former = self._chosen(), self.active
        if chosen is former:
            if chosen is None:
                self.rewind()
            return False
        if former is not None:
            former.unacked = 0
            self.notices.append((former, False))
        self.active = chosen
        self.rewind()
        if chosen is not None:
            self.notices.append((chosen, True))
        return True
