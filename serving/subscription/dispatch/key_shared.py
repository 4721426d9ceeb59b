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
from quire.serving.model.ports import Position
from quire.serving.model.positions import Segments
from quire.serving.model.request import AUTO_SPLIT, KeySharing, SubscriptionKind
from quire.serving.subscription.cursor.cursor import Cursor
from quire.serving.subscription.cursor.entry_set import EntrySet
from quire.serving.subscription.delayed.delays import Delays
from quire.serving.subscription.delayed.survey import Piece
from quire.serving.subscription.delivery.consumer import Consumer
from quire.serving.subscription.delivery.delivery import BlockView, Delivery
from quire.serving.subscription.dispatch.dispatcher import Run
from quire.serving.subscription.dispatch.holding import Holding
from quire.serving.subscription.dispatch.key_owners import owners_for
from quire.serving.subscription.dispatch.slots import EntrySlots


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

    # -- surveys ---------------------------------------------------------------------------------------

    def _takes(self, pieces: list[Piece]) -> bool:
        return super()._takes(pieces) and all(one.slots is not None or self._is_done(one) for one in pieces)

    def _is_done(self, piece: Piece) -> bool:
        return not self.cursor.unacknowledged(piece.ledger_id, BitMap(range(piece.first, piece.stop)))

    def _take_in(self, piece: Piece, delays: Delays) -> None:
        nobody_asks = array("H", bytes(2 * (piece.stop - piece.first)))
        self._slots.push(piece.ledger_id, piece.first, piece.slots[:] if piece.slots else nobody_asks)
        super()._take_in(piece, delays)

    def _slots_of(self, ledger_id: int, first: int, stop: int) -> array[int] | None:
        return self._slots.between(ledger_id, first, stop)

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
        ready = self.ready()
        if any(self.waiting.get(one) for one in ready):
            deliveries = self._offer_again(view, ready)
        else:
            deliveries = self._offer_new(view, {one: _Hand(one) for one in ready})
        return deliveries

    def _offer_again(self, view: BlockView, ready: Iterable[Consumer]) -> list[Delivery]:
        """Deal what waits of `view` to the owners that are ready."""
        ledger_id = view.ledger_id
        deliveries: list[Delivery] = []
        for consumer in ready:
            waiting = self.waiting.get(consumer)
            again = waiting.within(ledger_id, view.first_entry, view.stop_entry) if waiting else None
            for run in self.sorted_runs(view, again) if again else ():
                room = self.room(consumer)
                if room <= 0:
                    break
                delivery, _ = run.take(consumer, view, room)
                self._dequeue(ledger_id, self._held_by_key(delivery))
                deliveries.append(delivery)
        return deliveries

    def _offer_new(self, view: BlockView, hands: dict[Consumer, _Hand]) -> list[Delivery]:
        """Read on in `view` while anybody is ready and not too much waits."""
        first, start = view.first_entry, self.read.entry_id - view.first_entry
        waits: list[int] = []
        deliveries: list[Delivery] = []
        room = LOOK_AHEAD_ENTRIES_MAX - len(self.queue)
        stop = view.count
        for run in self._runs(view, start):
            dealing = dict(hands)
            at = self._sort_out(view, run, hands, waits, room)
            deliveries += [hand.delivery(view, run) for hand in dealing.values() if hand.offsets]
            if at < run.stop:
                stop = at
                break
        for delivery in deliveries:
            self._held_by_key(delivery)
        self._slots.push(view.ledger_id, first + start, array("H", view.slots()[start:stop]))
        dealt = sum([delivery.messages for delivery in deliveries])
        if not waits:
            self._pass(view, start, stop, dealt)
            return deliveries
        waiting = BitMap([first + offset for offset in waits])
        self._pass(view, start, stop, dealt + self._messages_of(view, waiting))
        self._enqueue(view.ledger_id, waiting)
        return deliveries

    def _sort_out(
        self, view: BlockView, run: Run, hands: dict[Consumer, _Hand], waits: list[int], room: int
    ) -> int:
        """Put each entry of `run` into its owner's hand, or to what waits; the offset where it had to stop.

        A hand that is full leaves `hands`; without any, and with `room` entries that wait, nothing goes on.
        """
        slots, owner_of, holders = view.slots(), self.owners.owner, self._holder
        counts, each = view.counts, run.remaining.bit_count() or view.each
        for offset in run.offsets or range(run.start, run.stop):
            if not hands or len(waits) >= room:
                return offset
            slot = slots[offset]
            owner = owner_of(slot)
            hand = hands.get(owner)  # type: ignore[arg-type]  # None, for a slot without owner, has no hand.
            if hand is None or holders.get(slot, owner) is not owner:
                waits.append(offset)
                continue
            hand.offsets.append(offset)
            hand.room -= each or counts[offset]  # type: ignore[index]  # Without `each` there are `counts`.
            if hand.room <= 0:
                del hands[hand.consumer]
        return run.stop

    def _held_by_key(self, delivery: Delivery) -> BitMap:
        """`delivery` is dealt: its consumer holds its entries, and their slots. Answers the entries."""
        consumer, view = delivery.consumer, delivery.view
        consumer.permits -= delivery.messages
        consumer.unacked += delivery.messages
        entries = delivery.entries()
        consumer.holds.add(view.ledger_id, entries)
        if not self.sharing.out_of_order:
            slots, in_use, holders = view.slots(), self._in_use, self._holder
            for offset in delivery.offsets or range(delivery.start, delivery.stop):
                slot = slots[offset]
                in_use[slot] = in_use.get(slot, 0) + 1
                holders[slot] = consumer
        return entries


class _Hand:
    """What one consumer is dealt of a run, and for how many messages it has room."""

    __slots__ = ("_room", "consumer", "offsets", "room")

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.room = self._room = Holding.room(consumer)
        self.offsets: list[int] = []

    def delivery(self, view: BlockView, run: Run) -> Delivery:
        """What was gathered of `run`; the hand is empty afterwards."""
        offsets, self.offsets = self.offsets, []
        messages, self._room = self._room - self.room, self.room
        start, stop = offsets[0], offsets[-1] + 1
        scattered = offsets if len(offsets) < stop - start else ()
        return Delivery(
            self.consumer, view, start, stop, messages, run.redelivery_count, run.remaining, scattered
        )
