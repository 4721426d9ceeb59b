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
    the owner becomes ready      waiting[owner] is dispatched, in the topic's order, before anything new
    attach, detach               owners change: everything that waits is placed anew
    give back, detach            what the consumer held is placed as if it had just been read

What waits is in `queue` (`key_queue`). A consumer that is stuck lets the others go on, up to `LOOK_AHEAD_ENTRIES_MAX`
waiting entries. With *out of order delivery* allowed nothing drains.
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
from quire.serving.subscription.delivery.consumer import Consumer
from quire.serving.subscription.delivery.delivery import BlockView, Delivery
from quire.serving.subscription.dispatch.key_owners import owners_for
from quire.serving.subscription.dispatch.key_queue import KeyQueue
from quire.serving.subscription.dispatch.multi_consumer import MultiConsumer
from quire.serving.subscription.dispatch.pending_acks import can_take, room
from quire.serving.subscription.dispatch.runs import Run, messages_left, sorted_runs
from quire.serving.subscription.dispatch.slots import EntrySlots


class KeyShared(MultiConsumer):
    """Each consumer is dispatched the entries of its slots."""

    kind = SubscriptionKind.KEY_SHARED
    queue: KeyQueue

    def __init__(self, cursor: Cursor, segments: Segments, sharing: KeySharing = AUTO_SPLIT) -> None:
        self.sharing = sharing
        self.owners = owners_for(sharing)
        self._slots = EntrySlots()
        queue = KeyQueue(self.owners, self._slots, in_order=not sharing.out_of_order)
        super().__init__(cursor, segments, queue, self._slots)

    def attach(self, consumer: Consumer) -> None:
        """Raises `ConsumerAssignError` when it cannot have the slots that it asks for."""
        self.owners.add(consumer)
        super().attach(consumer)
        self.queue.place_anew()

    def detach(self, consumer: Consumer) -> None:
        self.owners.remove(consumer)
        super().detach(consumer)
        self.queue.place_anew()

    def wanted(self) -> Position | None:
        ready = [one for one in self.consumers if can_take(one)]
        waiting = self.queue.waiting
        again = [waiting[one].min() for one in ready if waiting.get(one)]
        if again:
            return min(again)
        return self.read.position if ready and len(self.queue.entries) < LOOK_AHEAD_ENTRIES_MAX else None

    def offer(self, view: BlockView) -> list[Delivery]:
        ready = [one for one in self.consumers if can_take(one)]
        if any(self.queue.waiting.get(one) for one in ready):
            return self._offer_again(view, ready)
        return self._offer_new(view, {one: _Share(one) for one in ready})

    def _offer_again(self, view: BlockView, ready: Iterable[Consumer]) -> list[Delivery]:
        """Dispatch what waits of `view` to the owners that are ready."""
        deliveries: list[Delivery] = []
        for consumer in ready:
            waiting = self.queue.waiting.get(consumer)
            again = waiting.within(view.ledger_id, view.first_entry, view.stop_entry) if waiting else None
            for run in sorted_runs(self.cursor, view, again) if again else ():
                messages = room(consumer)
                if messages <= 0:
                    break
                delivery, _ = run.take(consumer, view, messages)
                self._hold(delivery)
                self.queue.remove(view.ledger_id, delivery.entries())
                deliveries.append(delivery)
        return deliveries

    def _offer_new(self, view: BlockView, shares: dict[Consumer, _Share]) -> list[Delivery]:
        """Read on in `view` while anybody is ready and not too much waits."""
        first, start = view.first_entry, self.read.position.entry_id - view.first_entry
        waits: list[int] = []
        deliveries: list[Delivery] = []
        waits_max = LOOK_AHEAD_ENTRIES_MAX - len(self.queue.entries)
        stop = view.count
        for run in self.delayed.runs(view, start):
            dispatching = dict(shares)
            at = self._sort_out(view, run, shares, waits, waits_max)
            deliveries += [share.delivery(view, run) for share in dispatching.values() if share.offsets]
            if at < run.stop:
                stop = at
                break
        for delivery in deliveries:
            self._hold(delivery)
        self._slots.trim(self.cursor.mark_delete)
        self._slots.push(view.ledger_id, first + start, array("H", view.slots()[start:stop]))
        unacked = sum([delivery.messages for delivery in deliveries])
        if not waits:
            self.delayed.move_over(view, start, stop, unacked)
            return deliveries
        waiting = BitMap([first + offset for offset in waits])
        unacked += messages_left(self.cursor, view, waiting)
        self.delayed.move_over(view, start, stop, unacked)
        self.queue.add(view.ledger_id, waiting)
        return deliveries

    def _sort_out(
        self, view: BlockView, run: Run, shares: dict[Consumer, _Share], waits: list[int], waits_max: int
    ) -> int:
        """Put each entry of `run` into its owner's share, or to what waits; the offset where it had to stop.

        A share that is full leaves `shares`; without any, and with `waits_max` entries that wait, nothing goes on.
        """
        slots, owner_of, holders = view.slots(), self.owners.owner, self.queue.holders
        counts, each = view.counts, run.remaining.bit_count() or view.each
        for offset in run.offsets or range(run.start, run.stop):
            if not shares or len(waits) >= waits_max:
                return offset
            slot = slots[offset]
            owner = owner_of(slot)
            share = shares.get(owner)  # type: ignore[arg-type]  # None, for a slot without owner, has no share.
            if share is None or holders.get(slot, owner) is not owner:
                waits.append(offset)
                continue
            share.offsets.append(offset)
            share.room -= each or counts[offset]  # type: ignore[index]  # Without `each` there are `counts`.
            if share.room <= 0:
                del shares[share.consumer]
        return run.stop

    def _hold(self, delivery: Delivery) -> None:
        self.pending.add(delivery)
        self.queue.hold(delivery)


class _Share:
    """What one consumer is sent of a run, and for how many messages it has room."""

    __slots__ = ("_room", "consumer", "offsets", "room")

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.room = self._room = room(consumer)
        self.offsets: list[int] = []

    def delivery(self, view: BlockView, run: Run) -> Delivery:
        """What was gathered of `run`; the share is empty afterwards."""
        offsets, self.offsets = self.offsets, []
        messages, self._room = self._room - self.room, self.room
        start, stop = offsets[0], offsets[-1] + 1
        scattered = offsets if len(offsets) < stop - start else ()
        return Delivery(
            self.consumer, view, start, stop, messages, run.redelivery_count, run.remaining, scattered
        )
