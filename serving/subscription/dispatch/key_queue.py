"""What waits in a key-shared subscription, by the key that it is of: `key_shared` has the rule. A core.

    an entry that waits is in     when
    draining[slot]                another consumer than the slot's owner holds entries of it
    waiting[owner]                else; its owner is not ready, or (None) the slot has no owner

    event                         does
    released                      a slot of which nothing is held any more: draining[slot] -> waiting[owner]
    place_anew                    owners have changed: everything that waits is sorted again

All of it is in `entries`, too. Within a slot what waits is older than what is not read yet, and all of it is in one
part; so its order holds. This costs two bytes for each entry of the window (`slots`), bits of bitmaps, and a count for
each slot that is in use.
"""

from __future__ import annotations

from pyroaring import BitMap

from quire.serving.subscription.cursor.entry_set import EntrySet
from quire.serving.subscription.delivery.consumer import Consumer
from quire.serving.subscription.delivery.delivery import Delivery
from quire.serving.subscription.dispatch.key_owners import KeyOwners
from quire.serving.subscription.dispatch.slots import EntrySlots


class KeyQueue:
    """A `ReplayQueue`. `slots` are those of the window; without `in_order` nothing drains."""

    def __init__(self, owners: KeyOwners, slots: EntrySlots, *, in_order: bool) -> None:
        self.entries = EntrySet()
        self.waiting: dict[Consumer | None, EntrySet] = {}
        self.draining: dict[int, EntrySet] = {}
        self.holders: dict[int, Consumer] = {}
        """Of each slot in use, who holds entries of it, and (`_in_use`) how many."""
        self._in_use: dict[int, int] = {}
        self._owners = owners
        self._slots = slots
        self._in_order = in_order

    def __bool__(self) -> bool:
        return bool(self.entries)

    def add(self, ledger_id: int, entries: BitMap) -> None:
        self.entries.add(ledger_id, entries)
        self._place(ledger_id, entries)

    def _place(self, ledger_id: int, entries: BitMap) -> None:
        by_owner: dict[Consumer | None, list[int]] = {}
        for slot, some in self._slots.grouped(ledger_id, entries).items():
            owner = self._owners.owner(slot)
            if self.holders.get(slot, owner) is owner:
                by_owner.setdefault(owner, []).extend(some)
            else:
                self.draining.setdefault(slot, EntrySet()).add(ledger_id, BitMap(some))
        for owner, some in by_owner.items():
            self.waiting.setdefault(owner, EntrySet()).add(ledger_id, BitMap(some))

    def place_anew(self) -> None:
        """The owners have changed."""
        self.waiting.clear()
        self.draining.clear()
        for ledger_id, entries in self.entries.items():
            self._place(ledger_id, entries)

    def remove(self, ledger_id: int, entries: BitMap) -> None:
        waited = self.entries.by_ledger.get(ledger_id)
        if waited is None or not waited.intersect(entries):
            return
        waited = waited & entries
        self.entries.remove(ledger_id, waited)
        for of_owner in self.waiting.values():
            of_owner.remove(ledger_id, waited)
        if self.draining:
            for slot in set(self._slots.of(ledger_id, waited)) & self.draining.keys():
                self.draining[slot].remove(ledger_id, waited)

    def hold(self, delivery: Delivery) -> None:
        """Its consumer holds entries of its slots."""
        if not self._in_order:
            return
        consumer, slots, in_use, holders = (
            delivery.consumer,
            delivery.view.slots(),
            self._in_use,
            self.holders,
        )
        for offset in delivery.offsets or range(delivery.start, delivery.stop):
            slot = slots[offset]
            in_use[slot] = in_use.get(slot, 0) + 1
            holders[slot] = consumer

    def released(self, ledger_id: int, entries: BitMap) -> bool:
        """Count what is still held of each slot. Whether one has drained for which something waits."""
        if not self._in_order:
            return False
        in_use, has_drained = self._in_use, False
        for slot in self._slots.of(ledger_id, entries):
            left = in_use[slot] - 1
            if left:
                in_use[slot] = left
                continue
            del in_use[slot], self.holders[slot]
            if slot in self.draining:
                of_owner = self.waiting.setdefault(self._owners.owner(slot), EntrySet())
                for ledger, some in self.draining.pop(slot).items():
                    of_owner.add(ledger, some)
                has_drained = True
        return has_drained

    def clear(self) -> None:
        self.entries.clear()
        self.waiting.clear()
        self.draining.clear()
        self.holders.clear()
        self._in_use.clear()
        self._slots.clear()
