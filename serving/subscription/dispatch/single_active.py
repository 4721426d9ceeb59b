"""Exclusive and failover dispatcher: sends all entries, in order, to one active consumer. Performs no I/O.

    event                            active before    active after        result
    attach the first one             -                the new one         notice: active
    attach, exclusive                a                a                   ConsumerBusy
    attach, failover, ranks first    a                the new one         rewind; notices: a inactive, new one active
    attach, failover, ranks later    a                a                   notice: the new one inactive
    detach the active one            a                first in rank       rewind; notice: active
    detach another                   a                a (or see below)    nothing

An Exclusive subscription sends no notices: its only consumer is always active.

Consumers are ranked by priority level (0 first). On a partition, name and arrival follow; on any other topic, arrival
alone, so that a new consumer does not become active because of its name. The index of a partition's active consumer is
the partition's index modulo the number of consumers of the best level, so the partitions of a topic spread evenly. This
number changes when a consumer joins or leaves, and then the active consumer may change, too.

Only permits and the connection's write buffer limit the dispatch. A consumer that never acknowledges is sent all
messages, because in-order delivery cannot skip unacknowledged entries. Entries are not tracked by consumer: the active
one holds the whole window. A redelivery of a single entry would break the order, so the whole window is redelivered, as
in Pulsar. When the active consumer changes, everything after mark-delete is sent again (at-least-once delivery).
(Pulsar: `PersistentDispatcherSingleActiveConsumer`)
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from operator import attrgetter

from pyroaring import BitMap

from quire.serving.model.ports import ConsumerBusy, Position
from quire.serving.model.positions import Segments
from quire.serving.model.request import SubscriptionKind
from quire.serving.subscription.cursor.cursor import Cursor
from quire.serving.subscription.delivery.consumer import Consumer
from quire.serving.subscription.delivery.delivery import BlockView, Delivery
from quire.serving.subscription.dispatch.dispatcher import Dispatcher
from quire.serving.subscription.dispatch.runs import unacknowledged_runs

_priority_level = attrgetter("priority_level")


class SingleActive(Dispatcher):
    """Dispatcher with one active consumer. `partition` is -1 if the topic is not a partition."""

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
        insort(self.consumers, consumer, key=self._rank)
        if not self._elect():
            self._notice(consumer, is_active=False)

    def detach(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        if consumer is self.active:
            self.active = None
        self._elect()

    def detach_all(self) -> None:
        self.consumers.clear()
        self.active = None
        self._elect()

    def _rank(self, consumer: Consumer) -> tuple[int, str, int]:
        name = consumer.name if self._partition >= 0 else ""
        return consumer.priority_level, name, consumer.arrival

    def _chosen(self) -> Consumer | None:
        consumers = self.consumers
        if not consumers:
            return None
        if self._partition < 0:
            return consumers[0]
        best = bisect_right(consumers, consumers[0].priority_level, key=_priority_level)
        return consumers[self._partition % best]

    def _elect(self) -> bool:
        """Choose the active consumer. Return whether it changed."""
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
        """Acknowledge all existing entries up to and including `position`."""
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
