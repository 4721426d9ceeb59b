"""What waits in a shared subscription, and which consumer is to have the other chunks of a message. A core.

All chunks of a message go to the consumer that holds the first one, for a client joins only what it has all of:

    a chunk that is offered                     goes to
    the first of its message                    whose turn it is
    another, of a message that has a holder     its holder; while that is not ready it is put aside, and others go on
    another, of a message without               whose turn it is: the first is acknowledged or gone, nobody can join it

    a message gets a holder     its first chunk is dispatched
    and has none any more       its last chunk is dispatched; the first is acknowledged, given back, or lost with its
                                holder; `CHUNKED_MESSAGES_MAX` others began after it

What is put aside for a consumer is dispatched as soon as that is ready, before anything new, so chunks stay in order.
When a message has no holder any more, what is aside for the former one waits with the rest again: after the first
chunk, if that waits there, and so it follows to whoever gets that.
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
    """A message in chunks: who holds its first one, and where that is."""

    holder: Consumer
    first: Position


class SharedQueue:
    """A `ReplayQueue`."""

    def __init__(self) -> None:
        self.entries = EntrySet()
        """For anybody."""
        self.aside: dict[Consumer, EntrySet] = {}
        """Chunks that wait for the holder of their message, which was not ready; they are not in `entries`."""
        self.begun: dict[str, _Begun] = {}
        """Of messages in chunks that have a holder, by their uuid, the oldest first."""

    def __bool__(self) -> bool:
        return bool(self.entries or self.aside)

    def first(self) -> Position | None:
        """Of what may be dispatched while somebody is ready; None when nothing waits."""
        if not self.aside:
            return self.entries.min() if self.entries else None
        waiting = [some.min() for one, some in self.aside.items() if can_take(one)]
        if self.entries:
            waiting.append(self.entries.min())
        return min(waiting, default=None)

    def within(self, view: BlockView) -> BitMap:
        """What of a block waits and may be dispatched now."""
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
        """The chunk at `at` waits until `consumer` is ready."""
        self.aside.setdefault(consumer, EntrySet()).add(at.ledger_id, BitMap((at.entry_id,)))

    def message_begins(self, uuid: str, holder: Consumer, first: Position) -> None:
        """The first chunk of a message was dispatched; its producer may have sent it again, to the same holder then."""
        self.begun.pop(uuid, None)
        self.begun[uuid] = _Begun(holder, first)
        if len(self.begun) > CHUNKED_MESSAGES_MAX:
            self.message_ends(next(iter(self.begun)))

    def message_ends(self, uuid: str) -> None:
        """It has no holder any more: what is aside for the one that it had is placed anew."""
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
