"""Which bookies a new fragment goes to: distinct racks where racks are known, then the least loaded.

Pure: who is there, how loaded each is and the dice are handed in. The load is the number of open ledgers that this
process has placed on a bookie: it is exact for our own writers, known at once, and since new ledgers begin all the
time it evens out over processes; a bookie that joins has none and is taken first. Between equals the dice decide,
so that many brokers that start together do not all pick the same three.

Fewer bookies than asked for may come back: the caller decides whether a narrow fragment will do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from quire.metadata.records import BookieRecord
from quire.wire.bookie import BookieId


def bookie_id(record: BookieRecord) -> BookieId:
    return BookieId(record.uuid, record.incarnation)


def choose(
    count: int,
    available: Sequence[BookieRecord],
    loads: Mapping[BookieId, int],
    dice: Callable[[], float],
    *,
    beside: Collection[BookieId] = (),
    never: Collection[BookieId] = (),
) -> list[BookieId]:
    """Up to `count` bookies to stand beside `beside`, none of `never`, none that is read-only."""
    members = {bookie.uuid for bookie in beside}
    racks = {record.rack for record in available if record.uuid in members and record.rack}
    candidates = [
        (loads.get(bookie_id(record), 0), dice(), record)
        for record in available
        if not record.read_only and record.uuid not in members and bookie_id(record) not in never
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
