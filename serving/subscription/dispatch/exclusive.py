"""Exclusive: one consumer, all entries in order.

    state      attach            offer                    redeliver           detach
    free       -> taken          nothing is wanted        -                   -
    taken      ConsumerBusy      the whole block, as far  rewind              rewind, -> free
                                 as permits reach

Permits are the only brake beside the connection: a consumer that never acknowledges is dealt everything, since
order forbids to deal around what it holds. So entries are not tracked by consumer: it holds all the window.
Giving back a single entry would break the order, so it gives back all, as Pulsar does.
"""

from __future__ import annotations

from pyroaring import BitMap

from quire.serving.model.ports import ConsumerBusy, Position
from quire.serving.model.request import SubscriptionKind
from quire.serving.subscription.delivery.consumer import Consumer
from quire.serving.subscription.delivery.delivery import Delivery
from quire.serving.subscription.dispatch.dispatcher import Dispatcher


class SingleActive(Dispatcher):
    """At most one consumer, the active one, is dealt anything."""

    active: Consumer | None = None

    def _taker(self) -> Consumer | None:
        active = self.active
        return active if active is not None and active.is_ready else None

    def _held(self, delivery: Delivery) -> None:
        delivery.consumer.unacked += delivery.messages

    def _released(self, ledger_id: int, entries: BitMap) -> None:
        self._show_unacked()

    def _released_partly(self, position: Position, messages: int) -> None:
        self._show_unacked()

    def _marked(self) -> None:
        super()._marked()
        self._show_unacked()

    def _show_unacked(self) -> None:
        if self.active is not None:
            self.active.unacked = self.unacked

    def rewind(self) -> None:
        super().rewind()
        self._show_unacked()

    def redeliver(self, consumer: Consumer, ids: dict[int, list[int]] | None) -> None:
        if consumer is not self.active:
            return
        for ledger_id, entries in self.dealt_unacknowledged():
            self.cursor.count_redelivery(ledger_id, entries)
        self.rewind()


class Exclusive(SingleActive):
    """One consumer; a second one is refused."""

    kind = SubscriptionKind.EXCLUSIVE

    def attach(self, consumer: Consumer) -> None:
        if self.consumers:
            raise ConsumerBusy("Exclusive consumer is already connected")
        self.consumers.append(consumer)
        self.active = consumer

    def detach(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        self.active = None
        self.rewind()
