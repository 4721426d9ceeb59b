"""Replay queue of a Key_Shared subscription: waiting entries, by slot or owner. Performs no I/O.

`key_shared` describes the dispatch rule.

    place of a waiting entry       if
    draining[slot]                a consumer that is not the slot's owner holds entries of the slot
    waiting[owner]                otherwise: its owner is not ready, or (None) the slot has no owner

    event                         action
    released                      if the slot has no unacknowledged entries left: draining[slot] -> waiting[owner]
    owners_changed                sort waiting entries again, at the next use of `waiting` or `draining`

`entries` contains all waiting entries. Waiting entries of a slot are older than unread ones, and all in one place,
so the order within the slot is preserved. Memory: two bytes per entry of the window (`slots`), bitmaps,
and a count per slot in use.
"""

from __future__ import annotations

from pyroaring import BitMap

from quire.serving.subscription.cursor.entry_set import EntrySet
from quire.serving.subscription.delivery.consumer import Consumer
from quire.serving.subscription.delivery.delivery import Delivery
from quire.serving.subscription.dispatch.key_owners import KeyOwners
from quire.serving.subscription.dispatch.slots import EntrySlots


class KeyQueue:
    """`ReplayQueue` of a Key_Shared subscription.

    `slots` are the slots of entries in the window. If `in_order` is False, slots do not drain.
    """

    def __init__(self, owners: KeyOwners, slots: EntrySlots, *, in_order: bool) -> None:
        self.entries = EntrySet()
        self._waiting: dict[Consumer | None, EntrySet] = {}
        self._draining: dict[int, EntrySet] = {}
        self._is_sorted = True
        """False from a change of owners until waiting entries are sorted again."""
        self.holders: dict[int, Consumer] = {}
        """Consumer that holds unacknowledged entries of a slot, by slot; `_in_use` has the number of these entries."""
        self._in_use: dict[int, int] = {}
        self._owners = owners
        self._slots = slots
        self._in_order = in_order

    def __bool__(self) -> bool:
        return bool(self.entries)

    @property
    def waiting(self) -> dict[Consumer | None, EntrySet]:
        """Entries that wait until their owner is ready, by owner; key None: until their slot has an owner."""
        if not self._is_sorted:
            self._sort_all()
        return self._waiting

    @property
    def draining(self) -> dict[int, EntrySet]:
        """Entries that wait, by slot, until only the slot's owner holds unacknowledged entries of the slot."""
        if not self._is_sorted:
            self._sort_all()
        return self._draining

    def add(self, ledger_id: int, entries: BitMap) -> None:
        self.entries.add(ledger_id, entries)
        if self._is_sorted:
            self._place(ledger_id, entries)

    def _place(self, ledger_id: int, entries: BitMap) -> None:
        by_owner: dict[Consumer | None, list[int]] = {}
        for slot, some in self._slots.grouped(ledger_id, entries).items():
            owner = self._owners.owner(slot)
            if self.holders.get(slot, owner) is owner:
                by_owner.setdefault(owner, []).extend(some)
            else:
                self._draining.setdefault(slot, EntrySet()).add(ledger_id, BitMap(some))
        for owner, some in by_owner.items():
            self._waiting.setdefault(owner, EntrySet()).add(ledger_id, BitMap(some))

    def owners_changed(self) -> None:
        """Sort waiting entries again at the next dispatch, once for any number of attached and detached consumers."""
        self._is_sorted = False
        self._waiting.clear()
        self._draining.clear()

    def _sort_all(self) -> None:
        self._is_sorted = True
        for ledger_id, entries in self.entries.items():
            self._place(ledger_id, entries)

    def remove(self, ledger_id: int, entries: BitMap) -> None:
        waited = self.entries.by_ledger.get(ledger_id)
        if waited is None or not waited.intersect(entries):
            return
        waited = waited & entries
        self.entries.remove(ledger_id, waited)
        for of_owner in self._waiting.values():
            of_owner.remove(ledger_id, waited)
        if self._draining:
            for slot in set(self._slots.of(ledger_id, waited)) & self._draining.keys():
                self._draining[slot].remove(ledger_id, waited)

    def hold(self, delivery: Delivery) -> None:
        """Count the entries of a delivery as held by its consumer, by slot."""
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
        """Update the number of unacknowledged entries by slot.

        Return whether a slot with waiting entries has drained.
        """
        if not self._in_order:
            return False
        in_use, has_drained = self._in_use, not self._is_sorted and bool(self.entries)
        for slot in self._slots.of(ledger_id, entries):
            left = in_use[slot] - 1
            if left:
                in_use[slot] = left
                continue
            del in_use[slot], self.holders[slot]
            if slot in self._draining:
                of_owner = self._waiting.setdefault(self._owners.owner(slot), EntrySet())
                for ledger, some in self._draining.pop(slot).items():
                    of_owner.add(ledger, some)
                has_drained = True
        return has_drained

    def clear(self) -> None:
        self.entries.clear()
        self._waiting.clear()
        self._draining.clear()
        self._is_sorted = True
        self.holders.clear()
        self._in_use.clear()
        self._slots.clear()
