"""Placement of fragments on bookies: distinct racks where racks are known, then the least loaded.

It follows BookKeeper's
[RackawareEnsemblePlacementPolicy](https://github.com/apache/bookkeeper/blob/master/bookkeeper-server/src/main/java/org/apache/bookkeeper/client/RackawareEnsemblePlacementPolicy.java).
This module is pure: bookies, loads and random numbers are arguments.

- The load of a bookie is the number of open ledgers that this process placed on it. Other processes' ledgers are not
  counted; since ledgers roll all the time, the load evens out over processes. A new bookie has no load and is chosen
  first.
- The load is divided by the free share of the disk: a half-full disk gets half as many ledgers as an empty one.
- Ties are broken at random, so that brokers that start together do not all choose the same three bookies.
- A bookie that failed a writer is in *quarantine* for a while, and is chosen only if there are too few others.
  Otherwise, a bookie that does not answer would get every new ledger, because it has the least load.
- A bookie with a full disk accepts only blocks of high priority (`bookie.room`). State logs may be placed on full
  bookies if there are too few others, and so may new ledgers, which are empty until a client publishes. Otherwise, no
  topic could be loaded, read or deleted while the disks are full.

Fewer bookies than requested may be returned; the caller decides whether a narrow fragment is acceptable.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from quire.metadata.records import BookieIntent, BookieRecord
from quire.runtime.errors import Unavailable
from quire.wire.bookie import BookieId

QUARANTINE_S: Final = 10.0
"""Duration of a quarantine in seconds. It is about the session time-out of the metadata store, after which a dead
bookie is not registered any more.
"""

_ROOM_LEAST: Final = 0.05
"""Lower bound of a disk's free share in the load formula; a bookie with less free space soon becomes read-only."""


def bookie_id(record: BookieRecord) -> BookieId:
    return BookieId(record.uuid, record.incarnation)


class Quarantine:
    """Bookies that recently failed a writer of this process. `now` is a monotonic clock in seconds."""

    def __init__(self, now: Callable[[], float], seconds: float = QUARANTINE_S) -> None:
        self._now = now
        self._seconds = seconds
        self._until: dict[BookieId, float] = {}

    def put(self, bookies: Collection[BookieId]) -> None:
        until = self._now() + self._seconds
        self._until.update(dict.fromkeys(bookies, until))

    def members(self) -> Collection[BookieId]:
        """Return the bookies that are in quarantine now."""
        if self._until:
            now = self._now()
            self._until = {bookie: until for bookie, until in self._until.items() if until > now}
        return self._until.keys()


class EnsemblePlacement:
    """Policy that chooses bookies by `loads`, the number of open ledgers on each. `random` breaks ties."""

    def __init__(
        self,
        loads: Mapping[BookieId, int],
        random: Callable[[], float],
        quarantine: Quarantine | None = None,
    ) -> None:
        self._loads = loads
        self._random = random
        self._quarantine = quarantine

    def avoid(self, bookies: Collection[BookieId]) -> None:
        """Put bookies that failed a writer into quarantine."""
        if self._quarantine is not None:
            self._quarantine.put(bookies)

    def choose(
        self,
        count: int,
        available: Sequence[BookieRecord],
        *,
        beside: Collection[BookieId] = (),
        never: Collection[BookieId] = (),
        full: bool = False,
    ) -> list[BookieId]:
        """Choose up to `count` of the bookies `available`.

        The other members of the fragment (`beside`), the bookies in `never`, and read-only bookies are excluded. With
        `full`, the candidates are instead the read-only bookies that accept blocks of high priority.
        """
        members = {bookie.uuid for bookie in beside}
        racks = {record.rack for record in available if record.uuid in members and record.rack}
        candidates = [
            (self._loads.get(bookie_id(record), 0) / _room(record), self._random(), record)
            for record in available
            if (record.takes_priority if full else not record.read_only)
            and record.uuid not in members
            and bookie_id(record) not in never
        ]
        candidates.sort(key=lambda candidate: candidate[:2])
        chosen: list[BookieId] = []
        while candidates and len(chosen) < count:
            pick = next((each for each in candidates if each[2].rack not in racks), candidates[0])
            candidates.remove(pick)
            chosen.append(bookie_id(pick[2]))
            if pick[2].rack:
                racks.add(pick[2].rack)
        assert len({bookie.uuid for bookie in chosen} - members) == len(chosen), "two copies on one bookie"
        return chosen

    def choose_sound(
        self,
        count: int,
        enough: int,
        available: Sequence[BookieRecord],
        *,
        beside: Collection[BookieId] = (),
        never: Collection[BookieId] = (),
        even_full: bool = False,
    ) -> list[BookieId]:
        """Choose like `choose`, but avoid the bookies in quarantine if at least `enough` others are found.

        With `even_full`, bookies with a full disk are added until `enough` are chosen.
        """
        suspects = self._quarantine.members() if self._quarantine is not None else ()
        chosen = self.choose(count, available, beside=beside, never={*never, *suspects})
        if len(chosen) < enough and suspects:
            chosen = self.choose(count, available, beside=beside, never=never)
        if len(chosen) < enough and even_full:
            beside = [*beside, *chosen]
            chosen += self.choose(enough - len(chosen), available, beside=beside, never=never, full=True)
        return chosen

    def new_ensemble(
        self, write_quorum: int, ack_quorum: int, available: Sequence[BookieRecord]
    ) -> list[BookieId]:
        """Choose the bookies of a new ledger, at most the write quorum.

        Raises `Unavailable` if they are fewer than the ack quorum.
        """
        bookies = self.choose_sound(write_quorum, ack_quorum, available, even_full=True)
        if len(bookies) < ack_quorum:
            raise Unavailable(
                f"{len(bookies)} of {len(available)} bookies accept writes, the ack quorum is {ack_quorum}; "
                + (why_full(available) or "start more bookies or free disk space")
            )
        return bookies


def _room(record: BookieRecord) -> float:
    """Return the free share of the bookie's disk, at least `_ROOM_LEAST`; 1 if it is unknown."""
    return max(_ROOM_LEAST, record.free_bytes / record.total_bytes) if record.total_bytes else 1.0


def why_full(available: Sequence[BookieRecord]) -> str:
    """Return why bookies refuse new blocks, except draining ones; "" if no bookie does."""
    full = [
        f"{record.address}: {record.read_only_why}" if record.address else record.read_only_why
        for record in available
        if record.read_only_why and record.intent is not BookieIntent.DRAIN
    ]
    return "; ".join(dict.fromkeys(full))
