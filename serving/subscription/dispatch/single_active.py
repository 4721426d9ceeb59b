"""Exclusive and failover: one consumer, the active one, is dispatched all entries in order.

    event                            active before    active after        leaves
    attach, nobody there             none             the new one         notice: active
    attach, exclusive                a                a                   ConsumerBusy
    attach, failover, ranks first    a                the new one         rewind; notices: a inactive, it active
    attach, failover, ranks later    a                a                   notice: the new one inactive
    detach the active one            a                first in rank       rewind; notice: active
    detach another                   a                a (or see below)    nothing

An exclusive subscription gives no notices: its consumer is the active one.

Rank is priority level (0 first), then, on a partition, name and arrival; else arrival alone, so that a newcomer
does not take over a topic because of how it is called. The active one of a partition is the consumer number
(partition modulo the number of consumers of the best level), so the partitions of a topic spread evenly; its
count changes with every consumer that comes or goes, and then the active one may change with it.

Permits are the only brake beside the connection: a consumer that never acknowledges is sent everything, since
order forbids to go around what it holds. So entries are not tracked by consumer: the active one holds all the window.
Giving back a single entry would break the order, so it gives back all, as Pulsar does. A hand-over sends everything
after mark-delete again: what the former one held comes twice rather than never.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyroaring import BitMap

from quire.serving.model.ports import ConsumerBusy, Position
from quire.serving.model.positions import Segments
from quire.serving.model.request import SubscriptionKind
from quire.serving.subscription.cursor.cursor import Cursor
from quire.serving.subscription.delivery.consumer import Consumer
from quire.serving.subscription.delivery.delivery import BlockView, Delivery
from quire.serving.subscription.dispatch.dispatcher import Dispatcher
from quire.serving.subscription.dispatch.runs import unacknowledged_runs


class SingleActive(Dispatcher):
    """One active consumer; of a failover subscription others wait. `partition` is -1 for a topic that is none."""

    def __init__(
        self, kind: SubscriptionKind, cursor: Cursor, segments: Segments, partition: int = -1
    ) -> None:
        super().__init__(cursor, segments)
        self.kind = kind
        self.active: Consumer | None = None
        self._partition = partition

    # -- consumers -------------------------------------------------------------------------------------

    def attach(self, consumer: Consumer) -> None:
        if self.consumers and self.kind is SubscriptionKind.EXCLUSIVE:
            raise ConsumerBusy("Exclusive consumer is already connected")
        self.consumers.append(consumer)
        self.consumers.sort(key=self._rank)
        if not self._elect():
            self._notice(consumer, is_active=False)

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
                self.read.rewind()
            return False
        if former is not None:
            former.unacked = 0
            self._notice(former, is_active=False)
        self.active = chosen
        self._rewind()
        if chosen is not None:
            self._notice(chosen, is_active=True)
        return True

    def _notice(self, consumer: Consumer, *, is_active: bool) -> None:
        if self.kind is SubscriptionKind.FAILOVER:
            self.notices.append((consumer, is_active))

    # -- dispatching -----------------------------------------------------------------------------------

    def wanted(self) -> Position | None:
        active = self.active
        return self.read.position if active is not None and active.is_ready else None

    def offer(self, view: BlockView) -> list[Delivery]:
        read, active = self.read, self.active
        assert active is not None and view.holds(*read.position)
        start, stop = read.position.entry_id - view.first_entry, view.count
        deliveries: list[Delivery] = []
        messages = 0
        for run in unacknowledged_runs(self.cursor, view, start):
            if not active.is_ready:
                stop = run.start
                break
            delivery, rest = run.take(active, view, active.permits)
            active.permits -= delivery.messages
            messages += delivery.messages
            deliveries.append(delivery)
            if rest is not None:
                stop = rest.start
                break
        read.move_over(view, start, stop, messages)
        active.unacked += messages
        return deliveries

    # -- acknowledging ---------------------------------------------------------------------------------

    def acknowledge(self, ledger_id: int, entry_ids: Sequence[int] | BitMap) -> None:
        entries = self.cursor.unacknowledged(ledger_id, self.read.existing(ledger_id, entry_ids))
        if entries:
            self.read.acknowledge(ledger_id, entries)
            self._show_unacked()

    def acknowledge_up_to(self, position: Position) -> None:
        """Everything that is there up to and with `position`."""
        self.read.acknowledge_up_to(position)
        self._show_unacked()

    def _acknowledge_partly(self, position: Position, remaining: int, acked: int) -> None:
        self.read.acknowledge_partly(position, remaining, acked)
        self._show_unacked()

    def redeliver(self, consumer: Consumer, ids: dict[int, list[int]] | None) -> None:
        if consumer is not self.active:
            return
        for ledger_id, first, stop in list(self.read.window.spans()):
            entries = self.cursor.unacknowledged(ledger_id, BitMap(range(first, stop)))
            if entries:
                self.cursor.count_redelivery(ledger_id, entries)
        self._rewind()

    def begin(self) -> None:
        super().begin()
        self._show_unacked()

    def _rewind(self) -> None:
        self.read.rewind()
        self._show_unacked()

    def _show_unacked(self) -> None:
        if self.active is not None:
            self.active.unacked = self.read.unacked
