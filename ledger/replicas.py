"""State shared by the readers of one process: order of replicas, delays of hedged requests, and reports of damage.

Replicas in this process's rack come first; replicas that recently failed a writer come last. Among equals, a reader
stays with the replica that it last read from, whose read-ahead has the next blocks. Another replica is asked as well if
the first takes unusually long ([The Tail at Scale](https://research.google/pubs/the-tail-at-scale/)), so that one slow
disk does not delay all readers.

A damaged copy is reported to repair (`on_damage`) even if another replica had the block. A copy is damaged if a block
is unreadable, or if the bookie lacks a block although a closed ledger's record names the bookie as a holder. The same
bookie and entry are reported at most once per interval. A permanently lost entry is recorded for metrics and health
checks as long as readers request it, unless the archive has it (`found_elsewhere`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from quire.ledger.directory import BookieDirectory
from quire.ledger.placement import Quarantine
from quire.ledger.rtt import RttEstimator
from quire.runtime.clock import Clock
from quire.runtime.errors import LostForGood
from quire.runtime.metrics import Histogram
from quire.wire.bookie import BookieId

_log = logging.getLogger(__name__)

DamageListener = Callable[[BookieId, int, int, str], None]
"""Callback with the bookie, the ledger, the entry that is unreadable there, and the error."""

SPECULATE_FACTOR: Final = 2.0
"""A hedged request is sent after this multiple of the usual response time."""
SPECULATE_S: Final = (0.02, 1.0)
"""Bounds of the delay of a hedged request, in seconds. An earlier request costs more than it saves; a later one is too
late for clients.
"""

REPORT_AGAIN_S: Final = 600.0
"""Minimum time in seconds between reports of the same bookie and entry, which may be repaired and damaged again."""

REPORTED_MAX: Final = 10_000
"""Maximum number of remembered damage reports; beyond it, all are forgotten, so damage may be reported again."""


LOST_REMEMBERED_MAX: Final = 1_000
"""Maximum number of ledgers with lost entries that are remembered; operators could not use a longer list."""


class _SeenLoss(NamedTuple):
    """Loss that a reader found, its time (monotonic, s), and whether the archive had the entry."""

    error: LostForGood
    at: float
    is_elsewhere: bool = False


class Replicas:
    """State shared by all readers of a process in `rack` ("" if unknown)."""

    def __init__(
        self, bookies: BookieDirectory, clock: Clock, quarantine: Quarantine, rack: str = ""
    ) -> None:
        self.bookies = bookies
        self.now = clock.monotonic
        self._quarantine = quarantine
        self._rack = rack
        self._latency: dict[BookieId, RttEstimator] = {}
        self.read_s = Histogram()
        """Latency of successful reads, in seconds."""
        self._reported_at: dict[tuple[BookieId, int, int], float] = {}
        self._lost: dict[int, _SeenLoss] = {}
        self.on_damage: DamageListener = lambda bookie, ledger_id, entry, what: None

    def order(self, ensemble: Sequence[BookieId], first: int) -> list[BookieId]:
        """Return the order in which to ask the ensemble; among equals, the bookie at index `first` comes first."""
        turned = [*ensemble[first:], *ensemble[:first]]
        suspects = self._quarantine.members()
        near = self._near()
        turned.sort(key=lambda bookie: (bookie in suspects, bookie.uuid not in near))
        return turned

    def speculate_s(self, bookie: BookieId) -> float:
        """Return the seconds to wait for `bookie` before another replica is also asked."""
        estimator = self._latency.get(bookie)
        return (
            estimator.timeout(SPECULATE_FACTOR, *SPECULATE_S) if estimator is not None else SPECULATE_S[0] * 5
        )

    def observe_read(self, bookie: BookieId, seconds: float) -> None:
        """Add the latency of a read from `bookie` to its RTT estimate and to the histogram."""
        estimator = self._latency.get(bookie)
        if estimator is None:
            estimator = self._latency[bookie] = RttEstimator()
        estimator.observe(seconds)
        self.read_s.observe(seconds)

    def report(self, bookie: BookieId, ledger_id: int, entry: int, what: str) -> None:
        """Report a copy that is damaged or missing."""
        place, now = (bookie, ledger_id, entry), self.now()
        if now - self._reported_at.get(place, float("-inf")) < REPORT_AGAIN_S:
            return
        if len(self._reported_at) >= REPORTED_MAX:
            self._reported_at.clear()
        self._reported_at[place] = now
        _log.warning("ledger %d: cannot read entry %d from %s: %s", entry, ledger_id, bookie, what)
        self.on_damage(bookie, ledger_id, entry, what)

    def record_loss(self, error: LostForGood) -> None:
        """Record that an entry is permanently lost; log the first loss of a ledger."""
        before = self._lost.get(error.ledger_id)
        if before is None:
            _log.error("%s", error)
            if len(self._lost) >= LOST_REMEMBERED_MAX:
                del self._lost[next(iter(self._lost))]
        is_elsewhere = before is not None and before.is_elsewhere and before.error.entry == error.entry
        self._lost[error.ledger_id] = _SeenLoss(error, self.now(), is_elsewhere)

    def forget_loss_at(self, ledger_id: int, entry: int) -> None:
        """Forget the loss of an entry that was read successfully."""
        if self._lost and ledger_id in self._lost and self._lost[ledger_id].error.entry == entry:
            del self._lost[ledger_id]

    def found_elsewhere(self, ledger_id: int) -> None:
        """Record that the archive has the entry that was last found lost."""
        if ledger_id in self._lost:
            self._lost[ledger_id] = self._lost[ledger_id]._replace(is_elsewhere=True)

    def forget_loss(self, ledger_id: int) -> None:
        """Forget a ledger that was deleted, or whose lost entries were given up."""
        self._lost.pop(ledger_id, None)

    def lost(self) -> dict[int, LostForGood]:
        """Return losses that readers found within `REPORT_AGAIN_S`, by ledger."""
        oldest = self.now() - REPORT_AGAIN_S
        self._lost = {ledger_id: met for ledger_id, met in self._lost.items() if met.at >= oldest}
        return {ledger_id: met.error for ledger_id, met in self._lost.items() if not met.is_elsewhere}

    def _near(self) -> set[str]:
        if not self._rack:
            return set()
        return {record.uuid for record in self.bookies.available() if record.rack == self._rack}
