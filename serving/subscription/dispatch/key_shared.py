"""Key_Shared dispatcher: all messages of a key go to one consumer at a time, in order. Performs no I/O.

A key hashes to a *slot* (`wire/sticky_key`), and a slot has an owner (`key_owners`). Entries of a slot are sent to its
owner, but not while another consumer holds unacknowledged entries of the slot: a slot whose owner changed *drains*
first. So the order of a key is preserved while consumers join and leave. A join delays only the slots that move and are
in use, not the joining consumer as a whole. [PIP-379](https://github.com/apache/pulsar/blob/master/pip/pip-379.md)
introduced this rule (Pulsar: `DrainingHashesTracker`).

    a newly read entry is put into                 if
    a delivery to its owner                        the owner is ready, and no other consumer holds entries of the slot
    draining[slot]                                 another consumer holds entries of the slot
    waiting[owner]                                 otherwise: its owner is not ready, or (None) the slot has no owner

    event                        action
    ack, redeliver               if the slot has no held entries left: draining[slot] -> waiting[owner]
    the owner becomes ready      dispatch waiting[owner], in the topic's order, before new entries
    attach, detach               owners change: sort waiting entries again before the next dispatch
    redeliver, detach            place the consumer's entries as if they had just been read

Waiting entries are in `queue` (`key_queue`). A slow consumer does not delay the others, up to
`LOOK_AHEAD_ENTRIES_MAX` waiting entries. If *out of order delivery* is allowed, slots need not drain.
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
    """Dispatcher that sends each consumer the entries of its slots."""

    kind = SubscriptionKind.KEY_SHARED
    queue: KeyQueue

    def __init__(self, cursor: Cursor, segments: Segments, sharing: KeySharing = AUTO_SPLIT) -> None:
        self.sharing = sharing
        self.owners = owners_for(sharing)
        self._slots = EntrySlots()
        queue = KeyQueue(self.owners, self._slots, in_order=not sharing.out_of_order)
        super().__init__(cursor, segments, queue, self._slots)

    def attach(self, consumer: Consumer) -> None:
        """Add a consumer. Raises `ConsumerAssignError` if it requests invalid slots or slots of another consumer."""
        self.owners.add(consumer)
        super().attach(consumer)
        self.queue.owners_changed()

    def detach(self, consumer: Consumer) -> None:
        self.owners.remove(consumer)
        self.queue.owners_changed()
        super().detach(consumer)

    def detach_all(self) -> None:
        self.owners.clear()
        super().detach_all()

    def wanted(self) -> Position | None:
        if self.pending.is_blocked:
            return None
        if not self.queue:
            return self.read.position if any(map(can_take, self.consumers)) else None
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
        """Dispatch the waiting entries of `view` to owners that are ready."""
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
        """Dispatch unread entries of `view` while a consumer is ready and not too many entries wait."""
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
        """Put each entry of `run` into its owner's share, or into `waits`. Return the offset at which this stopped.

        Removes full shares from `shares`. Stops if no share is left, or `waits` contains `waits_max` entries.
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
    """Entries of a run for one consumer, and the number of further messages that it can receive."""

    __slots__ = ("_room", "consumer", "offsets", "room")

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.room = self._room = room(consumer)
        self.offsets: list[int] = []

    def delivery(self, view: BlockView, run: Run) -> Delivery:
        """Return the collected entries of `run` as a delivery, and empty the share."""
        offsets, self.offsets = self.offsets, []
        messages, self._room = self._room - self.room, self.room
        start, stop = offsets[0], offsets[-1] + 1
        scattered = offsets if len(offsets) < stop - start else ()
        return Delivery(
            self.consumer, view, start, stop, messages, run.redelivery_count, run.remaining, scattered
        )
