"""Base class of dispatchers with many active consumers. Performs no I/O.

An entry of the window is in exactly one of these places:

    place             enters by                                         leaves by
    a consumer        dispatch                                          ack, redeliver, detach
    the queue         redeliver, detach of its consumer                 ack, dispatch
    acked             ack (cursor, from any place)                      mark-delete passing over it
    delayed           an offer before its delivery time                 ack; into the queue when due
    aside (shared)    an offer while its consumer is not ready          ack, dispatch, or into the queue

When the last consumer is detached, the window is emptied (a rewind), and its entries are read again later. The
subclasses, `shared` and `key_shared`, choose the consumer of an entry. (Pulsar:
`PersistentDispatcherMultipleConsumers`)
"""

from __future__ import annotations

from collections.abc import Sequence

from pyroaring import BitMap

from quire.serving.model.ports import Position
from quire.serving.model.positions import Segments
from quire.serving.subscription.cursor.cursor import Cursor
from quire.serving.subscription.cursor.entry_set import EntrySet
from quire.serving.subscription.delayed.delayed_entries import DelayedEntries
from quire.serving.subscription.delivery.consumer import UNLIMITED, Consumer
from quire.serving.subscription.delivery.delivery import BlockView
from quire.serving.subscription.dispatch.dispatcher import Dispatcher
from quire.serving.subscription.dispatch.pending_acks import PendingAcks
from quire.serving.subscription.dispatch.replay_queue import ReplayQueue
from quire.serving.subscription.dispatch.slots import EntrySlots


class MultiConsumer(Dispatcher):
    """Dispatcher whose consumers each hold the entries sent to them, until acknowledgement or redelivery."""

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
            self._rewind_without(consumer)

    def detach_all(self) -> None:
        leaving = list(self.consumers)
        self.consumers.clear()
        self._rewind_without(*leaving)

    def _rewind_without(self, *leaving: Consumer) -> None:
        """Rewind, so that the unacknowledged messages of `leaving`, the last consumers, are read again."""
        for consumer in leaving:
            consumer.pending_acks, consumer.unacked = EntrySet(), 0
        self.pending.clear()
        self.read.rewind()
        self._clear()

    def fits(self, view: BlockView) -> bool:
        return self.pending.room >= view.messages(0, view.count)

    def cut(self, view: BlockView, wanted: Position) -> BlockView:
        stop, _ = view.cover(wanted.entry_id - view.first_entry, view.count, self.pending.room)
        return view if stop >= view.count else view.head(stop)

    def limit_unacked(self, most: int) -> bool:
        return self.pending.limit(most or UNLIMITED)

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
                self.room_was_made = True

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
        """Clear the queue and the delayed entries."""
        self.queue.clear()
        self.delayed.clear()
