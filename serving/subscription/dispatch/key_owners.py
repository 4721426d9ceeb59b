"""Which consumer of a Key_Shared subscription owns which keys. A core.

A key hashes into one of 65,536 slots, and slots have owners:

    auto split   each consumer has `POINTS` points on a ring of slots, hashed from its name; a slot belongs to the
                 next point. Who joins takes about its share, evenly from all; who leaves gives back what it had; all
                 other slots stay where they are. Equal names get different points.
    sticky       each consumer names the ranges of slots that it wants. Ranges of two consumers may not meet
                 (`ConsumerAssignError`); a slot that nobody named has no owner, its messages wait for one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Protocol

from quire.runtime.errors import QuireError
from quire.serving.model.request import KeySharing
from quire.serving.subscription.delivery.consumer import Consumer
from quire.wire import pulsar_pb2 as pb
from quire.wire.hashing import SLOTS, key_slot

POINTS = 100
"""Of each consumer on the ring, as Pulsar's default: shares differ by about a tenth."""

RANGES_MAX = 1_000
"""Ranges of one sticky consumer."""

SlotRange = tuple[int, int]
"""First and last slot, both inclusive."""


class ConsumerAssignError(QuireError):
    """A consumer cannot have the slots that it asks for."""

    server_error = pb.ConsumerAssignError


class KeyOwners(Protocol):
    """Slots and their owners."""

    def add(self, consumer: Consumer) -> None:
        """Raises `ConsumerAssignError`; then nothing has changed."""
        ...

    def remove(self, consumer: Consumer) -> None: ...

    def owner(self, slot: int) -> Consumer | None: ...

    def ranges(self, consumer: Consumer) -> list[SlotRange]:
        """The slots of a consumer, ascending."""
        ...


class AutoSplit:
    """Consistent hashing. See the top of the file."""

    def __init__(self) -> None:
        self._consumers: dict[Consumer, tuple[int, list[int]]] = {}
        """Which of the consumers of its name each is, and the points that these two make."""
        self._points: list[int] = []
        self._owners: list[Consumer] = []
        """The owner of the slots up to and with the point of the same index."""
        self._found: dict[int, Consumer] = {}
        """Of slots that were asked for, since the ring was built."""

    def add(self, consumer: Consumer) -> None:
        taken = {number for other, (number, _) in self._consumers.items() if other.name == consumer.name}
        number = next(number for number in range(len(taken) + 1) if number not in taken)
        self._consumers[consumer] = number, list(points_of(consumer.name, number))
        self._build()

    def remove(self, consumer: Consumer) -> None:
        del self._consumers[consumer]
        self._build()

    def _build(self) -> None:
        ring: dict[int, Consumer] = {}
        for consumer, (_, points) in sorted(self._consumers.items(), key=lambda one: (one[0].name, one[1])):
            for point in points:
                ring.setdefault(point, consumer)
        self._found = {}
        self._points = sorted(ring)
        self._owners = [ring[point] for point in self._points]
        if ring:
            # What lies after the last point belongs to the first.
            self._points.append(SLOTS - 1)
            self._owners.append(self._owners[0])

    def owner(self, slot: int) -> Consumer | None:
        found = self._found.get(slot)
        if found is None and self._owners:
            found = self._found[slot] = self._owners[bisect_left(self._points, slot)]
        return found

    def ranges(self, consumer: Consumer) -> list[SlotRange]:
        found: list[SlotRange] = []
        first = 0
        for point, owner in zip(self._points, self._owners, strict=True):
            if owner is consumer and first <= point:
                if found and found[-1][1] == first - 1:
                    first = found.pop()[0]
                found.append((first, point))
            first = max(first, point + 1)
        return found


def points_of(name: str, number: int) -> Iterable[int]:
    """The points of the consumer that is number `number` of those called `name`."""
    return (key_slot(f"{name}\0{number}\0{point}".encode()) for point in range(POINTS))


class Sticky:
    """Ranges that consumers ask for. See the top of the file."""

    def __init__(self) -> None:
        self._taken: list[tuple[int, int, Consumer]] = []
        """(last slot, first slot, owner), ascending."""

    def add(self, consumer: Consumer) -> None:
        ranges = sorted(consumer.request.key_ranges)
        _check(ranges)
        for first, last in ranges:
            for taken_last, taken_first, other in self._taken:
                if first <= taken_last and taken_first <= last:
                    raise ConsumerAssignError(
                        f"slots {first}..{last} meet {taken_first}..{taken_last} of consumer {other.name!r}"
                    )
        self._taken = sorted(
            [*self._taken, *((last, first, consumer) for first, last in ranges)], key=lambda one: one[0]
        )

    def remove(self, consumer: Consumer) -> None:
        self._taken = [one for one in self._taken if one[2] is not consumer]

    def owner(self, slot: int) -> Consumer | None:
        at = bisect_left(self._taken, slot, key=lambda one: one[0])
        if at == len(self._taken) or self._taken[at][1] > slot:
            return None
        return self._taken[at][2]

    def ranges(self, consumer: Consumer) -> list[SlotRange]:
        return [(first, last) for last, first, owner in self._taken if owner is consumer]


def _check(ranges: list[SlotRange]) -> None:
    """Refuse what one consumer may not ask for."""
    if not 0 < len(ranges) <= RANGES_MAX:
        raise ConsumerAssignError(f"a sticky consumer names 1 to {RANGES_MAX} ranges, not {len(ranges)}")
    end = -1
    for first, last in ranges:
        if not 0 <= first <= last < SLOTS:
            raise ConsumerAssignError(f"{first}..{last} is no range of slots: they are 0..{SLOTS - 1}")
        if first <= end:
            raise ConsumerAssignError(f"the consumer's own range {first}..{last} meets another of its ranges")
        end = last


def owners_for(sharing: KeySharing) -> KeyOwners:
    return Sticky() if sharing.is_sticky else AutoSplit()
