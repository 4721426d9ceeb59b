"""Which bookies a new fragment goes to: distinct racks where racks are known, then the least loaded.

Pure: who is there, how loaded each is and chance are handed in. The load is the number of open ledgers that this
process has placed on a bookie: it is exact for our own writers, known at once, and since new ledgers begin all the
time it evens out over processes; a bookie that joins has none and is taken first. Full disks weigh: at equal loads
a bookie whose disk is half empty has as much room per ledger as one with twice the ledgers on an empty disk. Between
equals chance decides, so that many brokers that start together do not all pick the same three.

A bookie that failed a writer is in *quarantine* for a while: it is taken only where there would be too few without it.
Whoever does not answer for a minute would otherwise get every new ledger of that minute, having the least load.

A full disk takes no new blocks but those of high priority (`bookie.room`). What has that, or is empty as long as nobody
publishes, may be placed on one where there are too few others: else nothing could be loaded, read or deleted there.

Fewer bookies than asked for may come back: the caller decides whether a narrow fragment will do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from quire.metadata.records import BookieIntent, BookieRecord
from quire.runtime.errors import Unavailable
from quire.wire.bookie import BookieId

QUARANTINE_S: Final = 10.0
"""About a session of the metadata store: a bookie that is dead for longer is not available any more."""

_ROOM_LEAST: Final = 0.05
"""Below this share of free disk a bookie weighs no more: it is about to turn read-only by itself."""


def bookie_id(record: BookieRecord) -> BookieId:
    return BookieId(record.uuid, record.incarnation)


class Quarantine:
    """Who failed a writer of this process lately. `now` gives seconds and never goes back."""

    def __init__(self, now: Callable[[], float], seconds: float = QUARANTINE_S) -> None:
        self._now = now
        self._seconds = seconds
        self._until: dict[BookieId, float] = {}

    def put(self, bookies: Collection[BookieId]) -> None:
        until = self._now() + self._seconds
        self._until.update(dict.fromkeys(bookies, until))

    def members(self) -> Collection[BookieId]:
        """Who is in it now."""
        if self._until:
            now = self._now()
            self._until = {bookie: until for bookie, until in self._until.items() if until > now}
        return self._until.keys()


class EnsemblePlacement:
    """`loads` are the open ledgers on each bookie; `random` gives numbers from 0 to 1."""

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
        """Up to `count` bookies to stand beside `beside`, none of `never`; no read-only one, or only `full` ones.

        Those have a reserve left.
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
        """`choose` among those who are not in quarantine; among all of them, if those are fewer than `enough`.

        With `even_full`, full ones make up for what is still missing to that.
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
        """Bookies for a new ledger, fewer than the write quorum where there are no more.

        Raises `Unavailable` when they are fewer than the ack quorum.
        """
        bookies = self.choose_sound(write_quorum, ack_quorum, available, even_full=True)
        if len(bookies) < ack_quorum:
            raise Unavailable(
                f"{len(bookies)} of {len(available)} bookies take writes and {ack_quorum} must acknowledge; "
                + (why_full(available) or "start more bookies or free disk space")
            )
        return bookies


def _room(record: BookieRecord) -> float:
    """Share of the disk that is free; 1 where nobody tells."""
    return max(_ROOM_LEAST, record.free_bytes / record.total_bytes) if record.total_bytes else 1.0


def why_full(available: Sequence[BookieRecord]) -> str:
    """What those say that take nothing new, and not because somebody wants them to leave; empty when none does."""
    full = [
        f"{record.address}: {record.read_only_why}" if record.address else record.read_only_why
        for record in available
        if record.read_only_why and record.intent is not BookieIntent.DRAIN
    ]
    return "; ".join(dict.fromkeys(full))
