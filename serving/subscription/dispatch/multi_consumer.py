"""What the dispatchers of many active consumers have in common: who holds what, and what waits to be dispatched.

    place             comes there by                                    leaves by
    a consumer        being dispatched                                  ack, redeliver, detach
    the queue         redeliver, detach of its consumer                 ack, being dispatched
    acked             ack (cursor, from any place)                      mark-delete passing over it
    delayed           being offered before its time                     ack; its time: into the queue
    aside (shared)    being offered while its consumer is not ready     ack, being dispatched, or into the queue
    (all)             the last consumer leaving rewinds: no place, it is to be read again

An entry of the window is in exactly one of these. The kinds, `shared` and `key_shared`, say who takes what.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyroaring import BitMap

from quire.serving.model.ports import Position
from quire.serving.model.positions import Segments
from quire.serving.subscription.cursor.cursor import Cursor
from quire.serving.subscription.cursor.entry_set import EntrySet
from quire.serving.subscription.delayed.delayed_entries import DelayedEntries
from quire.serving.subscription.delivery.consumer import Consumer
from quire.serving.subscription.dispatch.dispatcher import Dispatcher
from quire.serving.subscription.dispatch.pending_acks import PendingAcks
from quire.serving.subscription.dispatch.replay_queue import ReplayQueue
from quire.serving.subscription.dispatch.slots import EntrySlots


class MultiConsumer(Dispatcher):
    """Each consumer holds the entries that it was sent, until it acknowledges them or gives them back."""

    def __init__(
        self, cursor: Cursor, segments: Segments, queue: ReplayQueue, slots: EntrySlots | None = None
    ) -> None:
        super().__init__(cursor, segments)
        self.queue = queue
        self.pending = PendingAcks(self.read, self.consumers, queue)
        self.delayed = DelayedEntries(self.read, queue, slots)

    def attach(self, consumer: Consumer) -> None:
        self.consumers.append(consumer)

    def detach(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        if self.consumers:
            self.pending.release(consumer)
        else:
            consumer.pending_acks, consumer.unacked = EntrySet(), 0
            self.read.rewind()
            self._clear()

    def acknowledge(self, ledger_id: int, entry_ids: Sequence[int] | BitMap) -> None:
        read, delays = self.read, self.delayed.delays
        entries = self.cursor.unacknowledged(ledger_id, read.existing(ledger_id, entry_ids))
        if entries:
            self.queue.remove(ledger_id, entries)
            if delays:
                delays.remove(ledger_id, entries)
            self.room_was_made |= self.pending.acknowledged(ledger_id, entries)
            if read.acknowledge(ledger_id, entries):
                self._clear()
                self.pending.clear()

    def _acknowledge_partly(self, position: Position, remaining: int, acked: int) -> None:
        self.room_was_made |= self.pending.acknowledged_partly(position, acked)
        self.read.acknowledge_partly(position, remaining, acked)

    def redeliver(self, consumer: Consumer, ids: dict[int, list[int]] | None) -> None:
        self.pending.redeliver(consumer, ids)

    def begin(self) -> None:
        super().begin()
        self._clear()
        self.pending.clear()

    def _clear(self) -> None:
        """Nothing waits."""
        self.queue.clear()
        self.delayed.clear()
