"""Pending acknowledgements: which consumer holds which entries until it acknowledges them, or gives them back. A core.

A consumer that holds `Consumer.unacked_max` messages is sent nothing until it acknowledges. Giving back by
request (negative acknowledgement, time-out) counts as a redelivery; losing the consumer does not.
"""

from __future__ import annotations

from pyroaring import BitMap

from quire.serving.model.ports import Position
from quire.serving.subscription.cursor.entry_set import EntrySet
from quire.serving.subscription.delivery.consumer import Consumer
from quire.serving.subscription.delivery.delivery import Delivery
from quire.serving.subscription.dispatch.read_position import ReadPosition
from quire.serving.subscription.dispatch.replay_queue import ReplayQueue


def has_room(consumer: Consumer) -> bool:
    """Whether it may hold more than it does."""
    return consumer.unacked < consumer.unacked_max


def room(consumer: Consumer) -> int:
    """How many messages it may be dispatched; the last batch may exceed it."""
    return min(consumer.permits, consumer.unacked_max - consumer.unacked)


def can_take(consumer: Consumer) -> bool:
    """Whether it can be dispatched something now."""
    return consumer.unacked < consumer.unacked_max and consumer.is_ready


class PendingAcks:
    """Those of all `consumers`; what is given back goes to `queue`."""

    def __init__(self, read: ReadPosition, consumers: list[Consumer], queue: ReplayQueue) -> None:
        self._read = read
        self._consumers = consumers
        self._queue = queue

    def add(self, delivery: Delivery) -> None:
        """It is dispatched: its consumer holds its entries."""
        consumer, view = delivery.consumer, delivery.view
        consumer.permits -= delivery.messages
        consumer.unacked += delivery.messages
        if delivery.offsets:
            consumer.pending_acks.add(view.ledger_id, delivery.entries())
        else:
            first = view.first_entry
            consumer.pending_acks.add_span(view.ledger_id, first + delivery.start, first + delivery.stop)

    def acknowledged(self, ledger_id: int, entries: BitMap) -> bool:
        """`entries`, which the cursor does not know yet, are acknowledged. Whether that makes room for more."""
        makes_room = False
        for consumer in self._consumers:
            held = consumer.pending_acks.by_ledger.get(ledger_id)
            if held is None or not held.intersect(entries):
                continue
            # Most acknowledgements are one consumer's, and asking costs a tenth of what a new bitmap does.
            is_all = entries.issubset(held)
            mine = entries if is_all else held & entries
            makes_room |= self._relieve(consumer, self._read.messages_left(ledger_id, mine))
            consumer.pending_acks.remove(ledger_id, mine)
            makes_room |= self._queue.released(ledger_id, mine)
            if is_all:
                break
        return makes_room

    def acknowledged_partly(self, position: Position, messages: int) -> bool:
        """`messages` of an entry are acknowledged. Whether that makes room for more."""
        makes_room = False
        for consumer in self._consumers:
            if position in consumer.pending_acks:
                makes_room |= self._relieve(consumer, messages)
        return makes_room

    def _relieve(self, consumer: Consumer, messages: int) -> bool:
        was_full = consumer.unacked >= consumer.unacked_max
        consumer.unacked -= messages
        return was_full and has_room(consumer)

    def redeliver(self, consumer: Consumer, ids: dict[int, list[int]] | None) -> None:
        """`consumer` gives back `ids` (entry ids by ledger), or (None) all that it holds."""
        for ledger_id, held in list(consumer.pending_acks.items()):
            back = held.copy()
            if ids is not None:
                back &= self._read.existing(ledger_id, ids.get(ledger_id, []))
            if back:
                consumer.unacked -= self._read.messages_left(ledger_id, back)
                consumer.pending_acks.remove(ledger_id, back)
                self._give_back(ledger_id, back)
                self._read.cursor.count_redelivery(ledger_id, back)

    def release(self, consumer: Consumer) -> None:
        """`consumer` is gone: all that it holds is given back."""
        held, consumer.pending_acks, consumer.unacked = consumer.pending_acks, EntrySet(), 0
        for ledger_id, entries in held.items():
            self._give_back(ledger_id, entries)

    def _give_back(self, ledger_id: int, entries: BitMap) -> None:
        self._queue.released(ledger_id, entries)
        self._queue.add(ledger_id, entries)

    def clear(self) -> None:
        """Nobody holds anything."""
        for consumer in self._consumers:
            consumer.pending_acks.clear()
            consumer.unacked = 0
