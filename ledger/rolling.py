"""Selection of open ledgers that this process should close, because a copy on one of their bookies needs repair.

A writer replaces a bookie that fails, but earlier blocks stay on that bookie, and repair must not change the record of
an open ledger. So if a copy of an open ledger needs repair, its owner closes the ledger and rolls to a new one; then
the closed ledger is repaired.

A ledger is rolled if one of its bookies

- drains,
- is absent for so long that it counts as lost, or was given up by an operator,
- runs as another incarnation, which may have lost blocks, or
- has reported that its copy is damaged (`reported`).

The roll is not urgent, because the other copies of each block remain. So only a few ledgers roll at a time, and no
ledger rolls because a bookie restarts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import chain, islice
from typing import Final

from quire.ledger import states
from quire.ledger.directory import BookieDirectory
from quire.ledger.repair_core import Absences
from quire.ledger.writer import LedgerWriter
from quire.metadata.records import BookieIntent, BookieRecord
from quire.runtime.clock import Clock
from quire.wire.bookie import BookieId

PER_LOOK_MAX: Final = 50
"""Maximum number of ledgers that roll at once, so that a lost bookie does not cause a burst of metadata operations."""

DELAY_S: Final = 600.0
"""Absence in seconds after which a bookie counts as lost; see `RepairSettings.repair_delay_ms`."""


class LedgersToRoll:
    """Selector of open ledgers to roll; `find` is called every few seconds."""

    def __init__(self, bookies: BookieDirectory, clock: Clock, delay_s: float = DELAY_S) -> None:
        self._bookies = bookies
        self._clock = clock
        self._absences = Absences(delay_s)

    def find(
        self,
        writers: Mapping[int, LedgerWriter],
        used: Collection[BookieId],
        damaged: Collection[tuple[str, int]] = (),
        given_up: Collection[str] = (),
    ) -> set[int]:
        """Return the ids of at most `PER_LOOK_MAX` ledgers to roll.

        - `writers`: this process's writers, by ledger id.
        - `used`: all bookies that writers ever used. The absence of a bookie is measured from the first call of `find`
          that observes it.
        - `damaged`: copies that were reported as damaged, as (UUID of the bookie, ledger id).
        - `given_up`: UUIDs of bookies that an operator gave up.
        """
        available = {record.uuid: record for record in self._bookies.available()}
        now = self._clock.monotonic()
        self._absences.update({bookie.uuid for bookie in used if not bookie.is_wal}, available, now)
        lost = {*self._absences.absent_too_long(now), *(uuid for uuid in given_up if uuid not in available)}
        unwanted = {
            each for each in used if each.uuid in lost or _is_unwanted(each, available.get(each.uuid))
        }
        leaving = (each for each, writer in writers.items() if unwanted and _named(writer) & unwanted)
        reported = (each for uuid, each in damaged if each in writers and _names(writers[each], uuid))
        return set(islice(chain(leaving, reported), PER_LOOK_MAX))


def _is_unwanted(bookie: BookieId, available: BookieRecord | None) -> bool:
    """Return whether the open ledgers on a bookie should leave it.

    `available` is the record of the running bookie; None if it is not running, because it may be restarting.
    """
    if available is None:
        return False
    return available.intent is BookieIntent.DRAIN or available.incarnation > bookie.incarnation


def _named(writer: LedgerWriter) -> set[BookieId]:
    return {bookie for fragment in writer.core.fragments for bookie in states.ensemble(fragment)}


def _names(writer: LedgerWriter, uuid: str) -> bool:
    return any(bookie.uuid == uuid for bookie in _named(writer))
