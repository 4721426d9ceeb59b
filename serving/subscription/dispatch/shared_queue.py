"""Replay queue of a Shared subscription, and the consumers that hold chunked messages. Performs no I/O.

All chunks of a message ([PIP-37](https://github.com/apache/pulsar/blob/master/pip/pip-37.md)) are sent to the consumer
that received the first one (its *holder*), because a client can assemble a message only from all of its chunks.

    an offered chunk                              is sent to
    the first of its message                      the next consumer, round-robin
    another, of a message with a holder           the holder; it is put aside while the holder is not ready
    another, of a message without a holder        the next consumer: the first chunk was acknowledged or
                                                  trimmed, so no consumer can assemble the message

    a message gets a holder     when its first chunk is dispatched
    and loses it                when its last chunk is dispatched; when the first one is acknowledged or redelivered, or
                                its holder is detached; or when `CHUNKED_MESSAGES_MAX` later messages have a holder

Chunks that were put aside for a consumer are dispatched as soon as it is ready, before new entries, so chunks stay in
order. If a message loses its holder, the chunks put aside for that consumer are queued again. They come after the first
chunk, if that is in the queue, and follow it to its next consumer.
"""

from __future__ import annotations

from typing import NamedTuple

from pyroaring import BitMap

from quire.runtime.limits import CHUNKED_MESSAGES_MAX
from quire.serving.model.ports import Position
from quire.serving.subscription.cursor.entry_set import EntrySet
from quire.serving.subscription.delivery.consumer import Consumer
from quire.serving.subscription.delivery.delivery import BlockView
from quire.serving.subscription.dispatch.pending_acks import can_take


class _Begun(NamedTuple):
    """Chunked message: the consumer that holds its first chunk, and the position of that chunk."""

    holder: Consumer
    first: Position


class SharedQueue:
    """`ReplayQueue` of a Shared subscription, with the holders of chunked messages."""

    def __init__(self) -> None:
        self.entries = EntrySet()
        """Entries that wait for any consumer."""
        self.aside: dict[Consumer, EntrySet] = {}
        """Chunks that wait until the holder of their message is ready; they are not in `entries`."""
        self.begun: dict[str, _Begun] = {}
        """Chunked messages with a holder, by uuid, oldest first."""

    def __bool__(self) -> bool:
        return bool(self.entries or self.aside)

    def first(self) -> Position | None:
        """Return the first waiting entry that can be dispatched when a consumer is ready; None if there is none."""
        if not self.aside:
            return self.entries.min() if self.entries else None
        waiting = [some.min() for one, some in self.aside.items() if can_take(one)]
        if self.entries:
            waiting.append(self.entries.min())
        return min(waiting, default=None)

    def within(self, view: BlockView) -> BitMap:
        """Return the waiting entries of a block that can be dispatched now."""
        place = view.ledger_id, view.first_entry, view.stop_entry
        waiting = self.entries.within(*place)
        for consumer, some in self.aside.items():
            if can_take(consumer):
                waiting |= some.within(*place)
        return waiting

    def add(self, ledger_id: int, entries: BitMap) -> None:
        self.entries.add(ledger_id, entries)

    def remove(self, ledger_id: int, entries: BitMap) -> None:
        self.entries.remove(ledger_id, entries)
        if self.aside:
            for some in self.aside.values():
                some.remove(ledger_id, entries)
            self.aside = {one: some for one, some in self.aside.items() if some}

    def clear(self) -> None:
        self.entries.clear()
        self.begun.clear()
        self.aside.clear()

    # -- chunks ----------------------------------------------------------------------------------------

    def put_aside(self, consumer: Consumer, at: Position) -> None:
        """Put the chunk at `at` aside until `consumer` is ready."""
        self.aside.setdefault(consumer, EntrySet()).add(at.ledger_id, BitMap((at.entry_id,)))

    def message_begins(self, uuid: str, holder: Consumer, first: Position) -> None:
        """Set the holder of a message whose first chunk was dispatched; the producer may have sent that chunk twice."""
        self.begun.pop(uuid, None)
        self.begun[uuid] = _Begun(holder, first)
        if len(self.begun) > CHUNKED_MESSAGES_MAX:
            self.message_ends(next(iter(self.begun)))

    def message_ends(self, uuid: str) -> None:
        """Forget the holder of the chunked message `uuid`, and requeue the chunks put aside for that consumer."""
        begun = self.begun.pop(uuid, None)
        aside = self.aside.pop(begun.holder, None) if begun is not None else None
        for ledger_id, entries in aside.items() if aside is not None else ():
            self.add(ledger_id, entries)

    def released(self, ledger_id: int, entries: BitMap) -> bool:
        if self.begun:
            firsts = [(uuid, begun.first) for uuid, begun in self.begun.items()]
            for uuid in [
                uuid for uuid, (ledger, entry) in firsts if ledger == ledger_id and entry in entries
            ]:
                self.message_ends(uuid)
        return False
