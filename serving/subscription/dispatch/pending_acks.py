"""Pending acknowledgements: the entries that each consumer received and has not acknowledged. Performs no I/O.

A consumer with `Consumer.unacked_max` unacknowledged messages is sent nothing until it acknowledges some. If all
consumers together have `PendingAcks.unacked_max`, the subscription is *blocked*: it sends nothing until they have at
most half as many. A redelivery request (negative acknowledgement, ack time-out) increments the redelivery count; the
detach of a consumer does not.
"""

from __future__ import annotations

from pyroaring import BitMap

from quire.serving.model.ports import Position
from quire.serving.subscription.cursor.entry_set import EntrySet
from quire.serving.subscription.delivery.consumer import UNLIMITED, Consumer
from quire.serving.subscription.delivery.delivery import Delivery
from quire.serving.subscription.dispatch.read_position import ReadPosition
from quire.serving.subscription.dispatch.replay_queue import ReplayQueue


def has_room(consumer: Consumer) -> bool:
    """Return whether a consumer may have more unacknowledged messages."""
    return consumer.unacked < consumer.unacked_max


def room(consumer: Consumer) -> int:
    """Return how many messages may be sent to a consumer; the last batch may exceed this number."""
    return min(consumer.permits, consumer.unacked_max - consumer.unacked)


def can_take(consumer: Consumer) -> bool:
    """Return whether a message can be sent to a consumer now."""
    return consumer.unacked < consumer.unacked_max and consumer.is_ready


class PendingAcks:
    """Pending acknowledgements of all `consumers`; entries to be redelivered are put into `queue`."""

    def __init__(self, read: ReadPosition, consumers: list[Consumer], queue: ReplayQueue) -> None:
        self._read = read
        self._consumers = consumers
        self._queue = queue
        self.unacked = 0
        """Number of messages that all consumers together have not acknowledged."""
        self.unacked_max = UNLIMITED
        self.is_blocked = False
        """True from `unacked_max` unacknowledged messages on, until at most half as many are left."""

    @property
    def room(self) -> int:
        """Number of messages that may be dispatched now; the last batch may exceed this number."""
        return 0 if self.is_blocked else self.unacked_max - self.unacked

    def limit(self, unacked_max: int) -> bool:
        """Set the limit of unacknowledged messages. Return whether messages can be dispatched that could not before."""
        if unacked_max == self.unacked_max:
            return False
        was_blocked = self.is_blocked
        self.unacked_max = unacked_max
        self.is_blocked = self.unacked >= unacked_max
        return was_blocked and not self.is_blocked

    def _took(self, consumer: Consumer, messages: int) -> None:
        """Count messages that were sent to a consumer."""
        consumer.unacked += messages
        self.unacked += messages
        if self.unacked >= self.unacked_max:
            self.is_blocked = True

    def _gave(self, consumer: Consumer, messages: int) -> bool:
        """Count messages that a consumer acknowledged or gave back. Return whether this ends the blocking."""
        was_blocked = self.is_blocked
        consumer.unacked -= messages
        self.unacked -= messages
        if 2 * self.unacked <= self.unacked_max:
            self.is_blocked = False
        return was_blocked and not self.is_blocked

    def add(self, delivery: Delivery) -> None:
        """Record a dispatched delivery as unacknowledged by its consumer."""
        consumer, view = delivery.consumer, delivery.view
        consumer.permits -= delivery.messages
        self._took(consumer, delivery.messages)
        if delivery.offsets:
            consumer.pending_acks.add(view.ledger_id, delivery.entries())
        else:
            first = view.first_entry
            consumer.pending_acks.add_span(view.ledger_id, first + delivery.start, first + delivery.stop)

    def acknowledged(self, ledger_id: int, entries: BitMap) -> bool:
        """Release acknowledged entries, before the cursor is updated.

        Return whether more messages can be dispatched.
        """
        makes_room = False
        for consumer in self._consumers:
            held = consumer.pending_acks.by_ledger.get(ledger_id)
            if held is None or not held.intersect(entries):
                continue
            # Most acknowledgements are from one consumer; `issubset` takes a tenth of the time of a new bitmap.
            is_all = entries.issubset(held)
            mine = entries if is_all else held & entries
            makes_room |= self._relieve(consumer, self._read.messages_left(ledger_id, mine))
            consumer.pending_acks.remove(ledger_id, mine)
            makes_room |= self._queue.released(ledger_id, mine)
            if is_all:
                break
        return makes_room

    def acknowledged_partly(self, position: Position, messages: int) -> bool:
        """Release `messages` acknowledged messages of an entry. Return whether more messages can be dispatched."""
        makes_room = False
        for consumer in self._consumers:
            if position in consumer.pending_acks:
                makes_room |= self._relieve(consumer, messages)
        return makes_room

    def _relieve(self, consumer: Consumer, messages: int) -> bool:
        was_full = consumer.unacked >= consumer.unacked_max
        is_free_again = self._gave(consumer, messages)
        return is_free_again or (was_full and has_room(consumer))

    def redeliver(self, consumer: Consumer, ids: dict[int, list[int]] | None) -> None:
        """Put `ids` (entry ids by ledger) or, if None, all unacknowledged entries of `consumer` back into the queue."""
        for ledger_id, held in list(consumer.pending_acks.items()):
            back = held.copy()
            if ids is not None:
                back &= self._read.existing(ledger_id, ids.get(ledger_id, []))
            if back:
                self._gave(consumer, self._read.messages_left(ledger_id, back))
                consumer.pending_acks.remove(ledger_id, back)
                self._give_back(ledger_id, back)
                self._read.cursor.count_redelivery(ledger_id, back)

    def release(self, consumer: Consumer) -> None:
        """Put all unacknowledged entries of a detached consumer back into the queue."""
        self._gave(consumer, consumer.unacked)
        held, consumer.pending_acks = consumer.pending_acks, EntrySet()
        for ledger_id, entries in held.items():
            self._give_back(ledger_id, entries)

    def _give_back(self, ledger_id: int, entries: BitMap) -> None:
        self._queue.released(ledger_id, entries)
        self._queue.add(ledger_id, entries)

    def clear(self) -> None:
        """Forget the unacknowledged entries of all consumers."""
        for consumer in self._consumers:
            consumer.pending_acks.clear()
            consumer.unacked = 0
        self.unacked, self.is_blocked = 0, False
