"""Which replica is asked first, how long the next one waits, and whom a reader tells of damage.

What the readers of one process share. Replicas of the own rack come first; one that failed a writer lately comes last;
among equals a reader keeps to the one it read from, whose next blocks are in its read-ahead already. Another replica is
asked as well when the first takes longer than is usual for it, so one slow disk is not every reader's slow disk.

Damage is told to whoever repairs (`on_damage`), of each place now and then: a copy that cannot be read, or that is not
where a closed ledger's record says it is. That it was read elsewhere in the end is no reason to be silent. What nobody
has any more, and is lost for good, is remembered as long as somebody meets it, for statistics and health; not when the
archive had it (`found_elsewhere`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from quire.ledger.directory import BookieDirectory
from quire.ledger.patience import Patience
from quire.ledger.placement import Quarantine
from quire.runtime.clock import Clock
from quire.runtime.errors import LostForGood
from quire.runtime.metrics import Histogram
from quire.wire.bookie import BookieId

_log = logging.getLogger(__name__)

DamageListener = Callable[[BookieId, int, int, str], None]
"""Bookie, ledger, the entry that cannot be read there, and what is wrong with it."""

SPECULATE_FACTOR: Final = 2.0
SPECULATE_S: Final = (0.02, 1.0)
"""Sooner the second question costs more than it gains; later nobody wants to wait."""

TOLD_AGAIN_S: Final = 600.0
"""What was told may have been mended since, and be damaged anew."""

TOLD_MAX: Final = 10_000
"""Damaged places that are remembered; then all are forgotten, and told again when they are met again."""


LOST_REMEMBERED_MAX: Final = 1_000
"""Ledgers with losses that are remembered; more would not help who looks."""


class _Met(NamedTuple):
    """A loss that was met, when, and whether the archive had it all the same."""

    error: LostForGood
    at: float
    is_elsewhere: bool = False


class Replicas:
    """`rack` is this process's own; "" when it has none."""

    def __init__(
        self, bookies: BookieDirectory, clock: Clock, quarantine: Quarantine, rack: str = ""
    ) -> None:
        self.bookies = bookies
        self.now = clock.monotonic
        self._quarantine = quarantine
        self._rack = rack
        self._patience: dict[BookieId, Patience] = {}
        self.read_s = Histogram()
        """How long each answer to a read took."""
        self._told: dict[tuple[BookieId, int, int], float] = {}
        self._lost: dict[int, _Met] = {}
        self.on_damage: DamageListener = lambda bookie, ledger_id, entry, what: None

    def order(self, ensemble: Sequence[BookieId], first: int) -> list[BookieId]:
        """In which order to ask; `first` is the index of the one that is asked first among equals."""
        turned = [*ensemble[first:], *ensemble[:first]]
        suspects = self._quarantine.members()
        near = self._near()
        turned.sort(key=lambda bookie: (bookie in suspects, bookie.uuid not in near))
        return turned

    def speculate_s(self, bookie: BookieId) -> float:
        """How long to wait for `bookie` alone."""
        patience = self._patience.get(bookie)
        return patience.bound(SPECULATE_FACTOR, *SPECULATE_S) if patience is not None else SPECULATE_S[0] * 5

    def took(self, bookie: BookieId, seconds: float) -> None:
        """`bookie` answered a read in so many seconds."""
        patience = self._patience.get(bookie)
        if patience is None:
            patience = self._patience[bookie] = Patience()
        patience.observe(seconds)
        self.read_s.observe(seconds)

    def report(self, bookie: BookieId, ledger_id: int, entry: int, what: str) -> None:
        """A copy is damaged or missing."""
        place, now = (bookie, ledger_id, entry), self.now()
        if now - self._told.get(place, float("-inf")) < TOLD_AGAIN_S:
            return
        if len(self._told) >= TOLD_MAX:
            self._told.clear()
        self._told[place] = now
        _log.warning("entry %d of ledger %d cannot be read from %s: %s", entry, ledger_id, bookie, what)
        self.on_damage(bookie, ledger_id, entry, what)

    def meets_loss(self, error: LostForGood) -> None:
        """Nobody has an entry any more."""
        before = self._lost.get(error.ledger_id)
        if before is None:
            _log.error("%s", error)
            if len(self._lost) >= LOST_REMEMBERED_MAX:
                del self._lost[next(iter(self._lost))]
        is_elsewhere = before is not None and before.is_elsewhere and before.error.entry == error.entry
        self._lost[error.ledger_id] = _Met(error, self.now(), is_elsewhere)

    def readable(self, ledger_id: int, entry: int) -> None:
        """The entry was read."""
        if self._lost and ledger_id in self._lost and self._lost[ledger_id].error.entry == entry:
            del self._lost[ledger_id]

    def found_elsewhere(self, ledger_id: int) -> None:
        """The archive had what was met last."""
        if ledger_id in self._lost:
            self._lost[ledger_id] = self._lost[ledger_id]._replace(is_elsewhere=True)

    def ended(self, ledger_id: int) -> None:
        """The ledger was deleted, or what it lost was given up."""
        self._lost.pop(ledger_id, None)

    def lost(self) -> dict[int, LostForGood]:
        """What was met lately, by ledger."""
        oldest = self.now() - TOLD_AGAIN_S
        self._lost = {ledger_id: met for ledger_id, met in self._lost.items() if met.at >= oldest}
        return {ledger_id: met.error for ledger_id, met in self._lost.items() if not met.is_elsewhere}

    def _near(self) -> set[str]:
        if not self._rack:
            return set()
        return {record.uuid for record in self.bookies.available() if record.rack == self._rack}
