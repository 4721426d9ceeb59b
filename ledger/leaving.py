"""Which open ledgers of this process should end because of the bookies that they name.

A writer leaves a bookie that fails it, but what it wrote before stays on the bookie, and repair must not touch the
record of a ledger that is open. So a ledger that names a bookie whose copy repair wants to replace is handed to its
owner to begin another one; then it is closed, and repair copies it. Such a bookie is drained, or has been gone for so
long that it counts as lost, or was given up by an operator, or came back as another incarnation, which may have lost
the blocks of the one before, or has reported that its copy is damaged (`reported`).
Nothing is in danger meanwhile: every confirmed block has its ack quorum. So this is done a few at a time, and not for a
bookie that merely restarts.
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
DELAY_S: Final = 600.0


class Leaving:
    """`look` is called every few seconds."""

    def __init__(self, bookies: BookieDirectory, clock: Clock, delay_s: float = DELAY_S) -> None:
        self._bookies = bookies
        self._clock = clock
        self._absences = Absences(delay_s)

    def look(
        self,
        writers: Mapping[int, LedgerWriter],
        used: Collection[BookieId],
        damaged: Collection[tuple[str, int]] = (),
        given_up: Collection[str] = (),
    ) -> set[int]:
        """Ids of ledgers that should end, `PER_LOOK_MAX` at most.

        `used`: the bookies that were ever written to; one that went before the first look is missed from then on.
        `damaged`: UUID of the bookie and id of the ledger of copies with a report. `given_up`: UUIDs
        of bookies that no operator waits for any more.
        """
        available = {record.uuid: record for record in self._bookies.available()}
        now = self._clock.monotonic()
        self._absences.look({bookie.uuid for bookie in used if not bookie.is_wal}, available, now)
        gone = {*self._absences.gone_for_long(now), *(uuid for uuid in given_up if uuid not in available)}
        unwanted = {
            each for each in used if each.uuid in gone or _is_unwanted(each, available.get(each.uuid))
        }
        leaving = (each for each, writer in writers.items() if unwanted and _named(writer) & unwanted)
        reported = (each for uuid, each in damaged if each in writers and _names(writers[each], uuid))
        return set(islice(chain(leaving, reported), PER_LOOK_MAX))


def _is_unwanted(bookie: BookieId, available: BookieRecord | None) -> bool:
    """Whether `bookie` should have nothing open, though its UUID is up. What is `None` may only be restarting."""
    if available is None:
        return False
    return available.intent is BookieIntent.DRAIN or available.incarnation > bookie.incarnation


def _named(writer: LedgerWriter) -> set[BookieId]:
    return {bookie for fragment in writer.core.fragments for bookie in states.ensemble(fragment)}


def _names(writer: LedgerWriter, uuid: str) -> bool:
    return any(bookie.uuid == uuid for bookie in _named(writer))
