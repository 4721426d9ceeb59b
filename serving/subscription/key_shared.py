"""Key_Shared: all messages of a key go to one consumer at a time, in order. A core.

A key is a *slot* (`wire/sticky_key`), a slot has an owner (`key_owners`). Entries of a slot go to its owner, and
never while another consumer holds entries of it without having acknowledged them: a slot whose owner has changed
*drains* first. So the order of a key outlives consumers that join and leave, and a join stalls only those slots that
move and are in use, not the newcomer as a whole.

    an entry that is read goes to                  when
    its owner                                      that is ready, and no other consumer holds entries of its slot
    draining[slot]                                 another consumer holds entries of its slot
    waiting[owner]                                 else: its owner is not ready, or (None) the slot has no owner

    event                        does
    ack, give back               a slot of which nothing is held any more: draining[slot] -> waiting[owner]
    the owner becomes ready      waiting[owner] is dealt, in the topic's order, before anything new
    attach, detach               owners change: everything that waits is placed anew
    give back, detach            what the consumer held is placed as if it had just been read

What waits is in `queue`, too; `waiting` and `draining` are its parts. Within a slot what waits is older than what is
not read yet, and all of it is in one part; so its order holds. A consumer that is stuck lets the others go on, up to
`LOOK_AHEAD_ENTRIES_MAX` waiting entries; all of this costs two bytes for each entry of the window (`slots`), bits of
bitmaps, and a count for each slot that is in use. With *out of order delivery* allowed nothing drains.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from pyroaring import BitMap

from quire.runtime.limits import LOOK_AHEAD_ENTRIES_MAX
from quire.serving.ports import Position
from quire.serving.subscription.consumer import Consumer
from quire.serving.subscription.cursor import Cursor
from quire.serving.subscription.delivery import BlockView, Delivery
from quire.serving.subscription.dispatcher import Run
from quire.serving.subscription.entry_set import EntrySet
from quire.serving.subscription.holding import Holding
from quire.serving.subscription.key_owners import owners_for
from quire.serving.subscription.positions import Segments
from quire.serving.subscription.request import AUTO_SPLIT, KeySharing, SubscriptionKind
from quire.serving.subscription.slots import EntrySlots
from quire.wire import block
from quire.wire.sticky_key import slot_at


class KeyShared(Holding):
    """Each consumer is dealt the entries of its slots."""

    kind = SubscriptionKind.KEY_SHARED

    def __init__(self, cursor: Cursor, segments: Segments, sharing: KeySharing = AUTO_SPLIT) -> None:
        self.sharing = sharing
        self.owners = owners_for(sharing)
        self.waiting: dict[Consumer | None, EntrySet] = {}
        self.draining: dict[int, EntrySet] = {}
        self._slots = EntrySlots()
        self._holder: dict[int, Consumer] = {}
        """Of each slot in use, who holds entries of it, and (`_in_use`) how many."""
        self._in_use: dict[int, int] = {}
        super().__init__(cursor, segments)

    # -- consumers -------------------------------------------------------------------------------------

    def attach(self, consumer: Consumer) -> None:
        """Raises `ConsumerAssignError` when it cannot have the slots that it asks for."""
        self.owners.add(consumer)
        super().attach(consumer)
        self._place_anew()

    def detach(self, consumer: Consumer) -> None:
        self.owners.remove(consumer)
        super().detach(consumer)
        self._place_anew()

    def ready(self) -> list[Consumer]:
        """Who can be dealt something now."""
        return [one for one in self.consumers if one.is_ready and self.has_room(one)]

    # -- what waits ------------------------------------------------------------------------------------

    def _enqueue(self, ledger_id: int, entries: BitMap) -> None:
        super()._enqueue(ledger_id, entries)
        self._place(ledger_id, entries)

    def _place(self, ledger_id: int, entries: BitMap) -> None:
        """Sort `entries` of the queue into its parts."""
        by_owner: dict[Consumer | None, list[int]] = {}
        for slot, some in self._slots.grouped(ledger_id, entries).items():
            owner = self.owners.owner(slot)
            if self._holder.get(slot, owner) is owner:
                by_owner.setdefault(owner, []).extend(some)
            else:
                self.draining.setdefault(slot, EntrySet()).add(ledger_id, BitMap(some))
        for owner, some in by_owner.items():
            self.waiting.setdefault(owner, EntrySet()).add(ledger_id, BitMap(some))

    def _place_anew(self) -> None:
        """The owners have changed."""
        self.waiting.clear()
        self.draining.clear()
        for ledger_id, entries in self.queue.items():
            self._place(ledger_id, entries)

    def _dequeue(self, ledger_id: int, entries: BitMap) -> None:
        waited = self.queue.by_ledger.get(ledger_id, BitMap()) & entries
        if not waited:
            return
        super()._dequeue(ledger_id, waited)
        for of_owner in self.waiting.values():
            of_owner.remove(ledger_id, waited)
        if self.draining:
            for slot in set(self._slots.of(ledger_id, waited)) & self.draining.keys():
                self.draining[slot].remove(ledger_id, waited)

    def _drop_queue(self) -> None:
        super()._drop_queue()
        self.waiting.clear()
        self.draining.clear()
        self._holder.clear()
        self._in_use.clear()
        self._slots.clear()

    def _left(self, ledger_id: int, entries: BitMap) -> None:
        """Count what is still held of each slot; one of which nothing is has drained."""
        if self.sharing.out_of_order:
            return
        in_use = self._in_use
        for slot in self._slots.of(ledger_id, entries):
            left = in_use[slot] - 1
            if left:
                in_use[slot] = left
                continue
            del in_use[slot], self._holder[slot]
            if slot in self.draining:
                self._drained(slot)

    def _drained(self, slot: int) -> None:
        of_owner = self.waiting.setdefault(self.owners.owner(slot), EntrySet())
        for ledger_id, entries in self.draining.pop(slot).items():
            of_owner.add(ledger_id, entries)
        self.may_go_on = True

    def rewind(self) -> None:
        super().rewind()
        self._slots.clear()

    def _marked(self) -> None:
        super()._marked()
        self._slots.trim(self.cursor.mark_delete)

    # -- dealing ---------------------------------------------------------------------------------------

    def wanted(self) -> Position | None:
        ready = self.ready()
        again = [self.waiting[one].min() for one in ready if self.waiting.get(one)]
        if again:
            return min(again)
        return self.read if ready and len(self.queue) < LOOK_AHEAD_ENTRIES_MAX else None

    def offer(self, view: BlockView) -> list[Delivery]:
        hands = _Hands(view, self.ready())
        if any(self.waiting.get(one) for one in hands.ready):
            self._offer_again(view, hands)
        else:
            self._offer_new(view, hands)
        deliveries = hands.deliveries()
        for delivery in deliveries:
            delivery.consumer.holds.add(view.ledger_id, delivery.entries())
        return deliveries

    def _offer_again(self, view: BlockView, hands: _Hands) -> None:
        """Deal what waits of `view` to the owners that are ready."""
        ledger_id, first = view.ledger_id, view.first_entry
        for consumer in list(hands.ready):
            waiting = self.waiting.get(consumer)
            again = waiting.within(ledger_id, first, view.stop_entry) if waiting else None
            if not again:
                continue
            dealt: list[int] = []
            for run in self.sorted_runs(view, again):
                for offset in run.offsets or range(run.start, run.stop):
                    if consumer in hands.ready:
                        self._use(consumer, self._slots.of(ledger_id, (first + offset,))[0])
                        hands.give(consumer, offset, run)
                        dealt.append(first + offset)
            self._dequeue(ledger_id, BitMap(dealt))

    def _offer_new(self, view: BlockView, hands: _Hands) -> None:
        """Read on in `view` while anybody is ready and not too much waits."""
        first = view.first_entry
        start = self.read.entry_id - first
        room = LOOK_AHEAD_ENTRIES_MAX - len(self.queue)
        slots: array[int] = array("H")
        waits: list[int] = []
        stop = view.count
        for run, offset, slot in self._keyed(view, self._runs(view, start)):
            if not hands.ready or len(waits) >= room:
                stop = offset
                break
            if len(slots) < offset - start:
                slots.extend(self._passed_by(view, start + len(slots), offset))
            slots.append(slot)
            owner = self.owners.owner(slot)
            if owner is not None and owner in hands.ready and self._holder.get(slot, owner) is owner:
                self._use(owner, slot)
                hands.give(owner, offset, run)
            else:
                waits.append(first + offset)
        if len(slots) < stop - start:
            slots.extend(self._passed_by(view, start + len(slots), stop))
        self._slots.push(view.ledger_id, first + start, slots)
        if not waits:
            self._pass(view, start, stop, hands.messages)
            return
        waiting = BitMap(waits)
        self._pass(view, start, stop, hands.messages + self._messages_of(view, waiting))
        self._enqueue(view.ledger_id, waiting)

    def _passed_by(self, view: BlockView, start: int, stop: int) -> list[int]:
        """Slots of entries that are not dealt now: those of acknowledged ones, for which nobody will ask, are 0."""
        later = self._later.entries
        if not later:
            return [0] * (stop - start)
        buffer, begin = memoryview(view.buffer), view.header.entries_offset
        ends, first = block.ends(view.buffer, view.header), view.first_entry
        return [
            slot_at(buffer, begin + ends[offset - 1] if offset else begin) if first + offset in later else 0
            for offset in range(start, stop)
        ]

    @staticmethod
    def _keyed(view: BlockView, runs: Iterable[Run]) -> Iterable[tuple[Run, int, int]]:
        """(run, offset, slot) of every entry; the key of one is looked for when it is its turn."""
        buffer, begin = memoryview(view.buffer), view.header.entries_offset
        ends = block.ends(view.buffer, view.header)
        for run in runs:
            for offset in run.offsets or range(run.start, run.stop):
                yield run, offset, slot_at(buffer, begin + ends[offset - 1] if offset else begin)

    def _use(self, consumer: Consumer, slot: int) -> None:
        """`consumer` gets an entry of `slot`."""
        if not self.sharing.out_of_order:
            self._holder[slot] = consumer
            self._in_use[slot] = self._in_use.get(slot, 0) + 1


class _Hands:
    """What each consumer is dealt of one block: entries that are dealt alike are gathered into one delivery."""

    def __init__(self, view: BlockView, ready: Iterable[Consumer]) -> None:
        self.ready = dict.fromkeys(ready)
        """Who can still take something."""
        self.messages = 0
        self._view = view
        self._open: dict[Consumer, tuple[int, list[int], list[int]]] = {}
        """Of each consumer the redelivery count and the offsets of what is being gathered, and [messages]."""
        self._closed: list[Delivery] = []

    def give(self, consumer: Consumer, offset: int, run: Run) -> None:
        """The entry at `offset`, which is in `run`, goes to `consumer`; offsets of one consumer ascend."""
        view = self._view
        messages = run.remaining.bit_count() or view.each or view.messages(offset, offset + 1)
        self.messages += messages
        consumer.permits -= messages
        consumer.unacked += messages
        if consumer.permits <= 0 or not Holding.has_room(consumer):
            del self.ready[consumer]
        gathered = self._open.get(consumer)
        if gathered is None or run.remaining or gathered[0] != run.redelivery_count:
            self._close(consumer)
            if run.remaining:
                self._closed.append(
                    Delivery(
                        consumer, view, offset, offset + 1, messages, run.redelivery_count, run.remaining
                    )
                )
                return
            gathered = self._open[consumer] = run.redelivery_count, [], [0]
        gathered[1].append(offset)
        gathered[2][0] += messages

    def _close(self, consumer: Consumer) -> None:
        """What was gathered for `consumer` is one delivery."""
        if consumer not in self._open:
            return
        count, offsets, (messages,) = self._open.pop(consumer)
        start, stop = offsets[0], offsets[-1] + 1
        scattered = offsets if len(offsets) < stop - start else ()
        self._closed.append(Delivery(consumer, self._view, start, stop, messages, count, 0, scattered))

    def deliveries(self) -> list[Delivery]:
        for consumer in list(self._open):
            self._close(consumer)
        return self._closed
