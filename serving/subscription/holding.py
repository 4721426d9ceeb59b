"""What the dispatchers of many active consumers have in common: who holds what, and what waits to be dealt again.

    place          comes there by                                    leaves by
    a consumer     being dealt                                       ack, redeliver, detach
    the queue      redeliver, detach of its consumer                 ack, being dealt
    acked          ack (cursor, from any place)                      mark-delete passing over it
    (all queue)    the last consumer leaving rewinds: no place, it is behind the read position again

An entry of the window is in exactly one of these. A consumer that holds `UNACKED_MESSAGES_MAX` messages is dealt
nothing until it acknowledges. Giving back by request (negative acknowledgement, time-out) counts as a redelivery;
losing the consumer does not.
"""

from __future__ import annotations

from pyroaring import BitMap

from quire.runtime.limits import UNACKED_MESSAGES_MAX
from quire.serving.ports import Position
from quire.serving.subscription.consumer import Consumer
from quire.serving.subscription.cursor import Cursor
from quire.serving.subscription.dispatcher import Dispatcher
from quire.serving.subscription.entry_set import EntrySet
from quire.serving.subscription.positions import Segments


class Holding(Dispatcher):
    """Each consumer holds the entries that it was dealt, until it acknowledges them or gives them back."""

    def __init__(self, cursor: Cursor, segments: Segments) -> None:
        self.queue = EntrySet()
        """What of the window nobody holds and is not acknowledged."""
        super().__init__(cursor, segments)

    def attach(self, consumer: Consumer) -> None:
        self.consumers.append(consumer)

    def detach(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        held, consumer.holds, consumer.unacked = consumer.holds, EntrySet(), 0
        if not self.consumers:
            self._drop_queue()
            self.rewind()
            return
        for ledger_id, entries in held.items():
            self._left(ledger_id, entries)
            self._enqueue(ledger_id, entries)

    # -- what subclasses add to it -----------------------------------------------------------------------

    def _enqueue(self, ledger_id: int, entries: BitMap) -> None:
        """`entries`, which nobody holds, wait to be dealt."""
        self.queue.add(ledger_id, entries)

    def _dequeue(self, ledger_id: int, entries: BitMap) -> None:
        """Those of `entries` that wait do so no longer."""
        self.queue.remove(ledger_id, entries)

    def _drop_queue(self) -> None:
        """Nothing waits."""
        self.queue.clear()

    def _left(self, ledger_id: int, entries: BitMap) -> None:
        """`entries` have left the consumer that held them."""

    # -- acknowledging and redelivering ------------------------------------------------------------------

    @staticmethod
    def has_room(consumer: Consumer) -> bool:
        """Whether it may hold more than it does."""
        return consumer.unacked < UNACKED_MESSAGES_MAX

    def _released(self, ledger_id: int, entries: BitMap) -> None:
        if self.queue:
            self._dequeue(ledger_id, entries)
        for consumer in self.consumers:
            held = consumer.holds.by_ledger.get(ledger_id)
            if held is None:
                continue
            mine = held & entries
            if mine:
                self._relieve(consumer, self.messages_left(ledger_id, mine))
                consumer.holds.remove(ledger_id, mine)
                self._left(ledger_id, mine)
                if len(mine) == len(entries):
                    return

    def _released_partly(self, position: Position, messages: int) -> None:
        for consumer in self.consumers:
            if position in consumer.holds:
                self._relieve(consumer, messages)

    def _relieve(self, consumer: Consumer, messages: int) -> None:
        was_full = not self.has_room(consumer)
        consumer.unacked -= messages
        if was_full and self.has_room(consumer):
            self.may_go_on = True

    def redeliver(self, consumer: Consumer, ids: dict[int, list[int]] | None) -> None:
        for ledger_id, held in list(consumer.holds.items()):
            back = held.copy() if ids is None else held & self._existing(ledger_id, ids.get(ledger_id, []))
            if back:
                consumer.unacked -= self.messages_left(ledger_id, back)
                consumer.holds.remove(ledger_id, back)
                self._left(ledger_id, back)
                self._enqueue(ledger_id, back)
                self.cursor.count_redelivery(ledger_id, back)

    def _begin(self) -> None:
        super()._begin()
        self._drop_queue()
        for consumer in self.consumers:
            consumer.holds.clear()
            consumer.unacked = 0
