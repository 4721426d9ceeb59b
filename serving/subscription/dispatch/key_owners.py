"""Owners of the keys of a Key_Shared subscription ([PIP-34](https://github.com/apache/pulsar/blob/master/pip/pip-34.md)).

Performs no I/O. A key hashes to one of 65,536 slots, and slots have owners:

    auto split   consistent hashing: each consumer has `POINTS` points on a ring of slots, hashed from its name. A slot
                 belongs to the next point. A consumer that joins gets about its share, evenly from all others; one
                 that leaves returns its slots; all other slots keep their owners. Consumers with equal names get
                 different points. (Pulsar: `ConsistentHashingStickyKeyConsumerSelector`)
    sticky       each consumer requests ranges of slots. Ranges of two consumers must not overlap
                 (`ConsumerAssignError`). A slot that no consumer requested has no owner, and its messages wait.
                 (Pulsar: `HashRangeExclusiveStickyKeyConsumerSelector`)

Many consumers may leave at once, with their connection or by a seek. So the ring is built lazily, at the next look-up
of a slot, and not for each consumer that joins or leaves.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import count
from operator import itemgetter
from typing import Protocol

from quire.runtime.errors import QuireError
from quire.serving.model.request import KeySharing
from quire.serving.subscription.delivery.consumer import Consumer
from quire.wire import pulsar_pb2 as pb
from quire.wire.hashing import SLOTS, key_slot

POINTS = 100
"""Number of points of each consumer on the ring, as in Pulsar's default: shares differ by about a tenth."""

RANGES_MAX = 1_000
"""Maximum number of ranges of one sticky consumer."""

SlotRange = tuple[int, int]
"""First and last slot, both included."""


class ConsumerAssignError(QuireError):
    """Rejection of a consumer that requests invalid ranges of slots or slots of another consumer."""

    server_error = pb.ConsumerAssignError


class KeyOwners(Protocol):
    """Mapping of slots to the consumers that own them."""

    def add(self, consumer: Consumer) -> None:
        """Add a consumer. If this raises `ConsumerAssignError`, the owners are unchanged."""
        ...

    def remove(self, consumer: Consumer) -> None: ...

    def clear(self) -> None:
        """Remove all consumers."""
        ...

    def owner(self, slot: int) -> Consumer | None: ...

    def ranges(self, consumer: Consumer) -> list[SlotRange]:
        """Return the slot ranges of a consumer, ascending."""
        ...


class AutoSplit:
    """Owners by consistent hashing; see the module's docstring."""

    def __init__(self) -> None:
        self._consumers: dict[Consumer, tuple[int, tuple[int, ...]]] = {}
        """For each consumer: its number among the consumers of the same name, and its points on the ring."""
        self._taken: dict[str, set[int]] = {}
        """Numbers in use by the consumers of each name."""
        self._is_built = True
        self._points: list[int] = []
        self._owners: list[Consumer] = []
        """Owner i owns the slots after point i-1, up to and including point i."""
        self._found: dict[int, Consumer] = {}
        """Cache of owners by slot, filled since the ring was built."""
        self._ranges: dict[Consumer, list[SlotRange]] = {}
        """Slot ranges of all consumers; empty until requested after the ring was built."""

    def add(self, consumer: Consumer) -> None:
        taken = self._taken.setdefault(consumer.name, set())
        number = next(number for number in count() if number not in taken)
        taken.add(number)
        self._consumers[consumer] = number, tuple(points_of(consumer.name, number))
        self._forget_ring()

    def remove(self, consumer: Consumer) -> None:
        taken = self._taken[consumer.name]
        taken.remove(self._consumers.pop(consumer)[0])
        if not taken:
            del self._taken[consumer.name]
        self._forget_ring()

    def clear(self) -> None:
        self._consumers.clear()
        self._taken.clear()
        self._forget_ring()

    def _forget_ring(self) -> None:
        self._is_built = False
        self._found.clear()
        self._ranges = {}

    def _build(self) -> None:
        """Build the ring; a point shared by two consumers belongs to the first one by name and number."""
        self._is_built = True
        ring: dict[int, Consumer] = {}
        for consumer, (_, points) in sorted(
            self._consumers.items(), key=lambda one: (one[0].name, one[1]), reverse=True
        ):
            ring.update(dict.fromkeys(points, consumer))
        self._points = sorted(ring)
        self._owners = list(map(ring.__getitem__, self._points))
        if ring:
            # slots after the last point belong to the owner of the first point
            self._points.append(SLOTS - 1)
            self._owners.append(self._owners[0])

    def owner(self, slot: int) -> Consumer | None:
        found = self._found.get(slot)
        if found is None:
            if not self._is_built:
                self._build()
            if self._owners:
                found = self._found[slot] = self._owners[bisect_left(self._points, slot)]
        return found

    def ranges(self, consumer: Consumer) -> list[SlotRange]:
        if not self._is_built:
            self._build()
        if not self._ranges:
            first = 0
            for point, owner in zip(self._points, self._owners, strict=True):
                if first <= point:
                    found = self._ranges.setdefault(owner, [])
                    found.append((found.pop()[0] if found and found[-1][1] == first - 1 else first, point))
                first = max(first, point + 1)
        return self._ranges.get(consumer, [])


def points_of(name: str, number: int) -> Iterable[int]:
    """Return the ring points of consumer `number` among the consumers named `name`."""
    return (key_slot(f"{name}\0{number}\0{point}".encode()) for point in range(POINTS))


class Sticky:
    """Owners by ranges that consumers request; see the module's docstring."""

    def __init__(self) -> None:
        self._taken: list[tuple[int, int, Consumer]] = []
        """Disjoint ranges (last slot, first slot, owner), ascending."""

    def add(self, consumer: Consumer) -> None:
        ranges = sorted(consumer.request.key_ranges)
        _check(ranges)
        for first, last in ranges:
            at = self._find(first)
            if at < len(self._taken) and self._taken[at][1] <= last:
                taken_last, taken_first, other = self._taken[at]
                raise ConsumerAssignError(
                    f"slots {first}..{last} overlap slots {taken_first}..{taken_last} of consumer {other.name!r}"
                )
        self._taken.extend((last, first, consumer) for first, last in ranges)
        self._taken.sort(key=_last_slot)

    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer's ranges by bisection, because a pass over all ranges per consumer would be slow."""
        for first, _ in sorted(consumer.request.key_ranges):
            del self._taken[self._find(first)]

    def clear(self) -> None:
        self._taken.clear()

    def _find(self, slot: int) -> int:
        """Return the index of the first range that ends at or after `slot`."""
        return bisect_left(self._taken, slot, key=_last_slot)

    def owner(self, slot: int) -> Consumer | None:
        at = self._find(slot)
        if at == len(self._taken) or self._taken[at][1] > slot:
            return None
        return self._taken[at][2]

    def ranges(self, consumer: Consumer) -> list[SlotRange]:
        return sorted(consumer.request.key_ranges)


_last_slot = itemgetter(0)


def _check(ranges: list[SlotRange]) -> None:
    """Reject invalid ranges of one consumer."""
    if not 0 < len(ranges) <= RANGES_MAX:
        raise ConsumerAssignError(
            f"a sticky consumer must request 1 to {RANGES_MAX} ranges, not {len(ranges)}"
        )
    end = -1
    for first, last in ranges:
        if not 0 <= first <= last < SLOTS:
            raise ConsumerAssignError(f"invalid range of slots {first}..{last}: slots are 0..{SLOTS - 1}")
        if first <= end:
            raise ConsumerAssignError(f"the consumer's range {first}..{last} overlaps another of its ranges")
        end = last


def owners_for(sharing: KeySharing) -> KeyOwners:
    return Sticky() if sharing.is_sticky else AutoSplit()
