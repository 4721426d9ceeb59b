"""The state of each ledger in the queue, as the process that repairs knows it.

A ledger that cannot be repaired now waits for what it lacks, and says which bookies it has still to leave: those must
not be retired. The queue itself is in the metadata (`metadata.underreplicated`); this is forgotten with the process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import Enum
from typing import Final

from quire.runtime.transitions import Transitions

_FAILED_AGAIN_S: Final = 60.0

_AGAIN_PER_S: Final = 50
"""Ledgers that wait are looked at again so many a second, on average."""


class WorkState(Enum):
    QUEUED = "to be looked at"
    TAKEN = "being repaired"
    OPEN = "must be closed first"
    UNPLACED = "lacks a bookie that could take a copy"
    AWAY = "is being deleted, and one of its bookies is absent"
    FAILED = "something failed"


class WorkEvent(Enum):
    FOUND = "it is in the queue"
    BEGUN = "the replicator takes it"
    IS_OPEN = "it must be closed before it can be repaired"
    LACKS_BOOKIE = "no other bookie can take a copy"
    BOOKIE_IS_AWAY = "it is deleted, and a bookie is absent"
    FAILED = "something failed"
    DUE = "what it waited for may be there, or its node was written over"
    DONE = "it needs nothing any more, and its node is removed"


_WAITING: Final = {
    WorkEvent.IS_OPEN: WorkState.OPEN,
    WorkEvent.LACKS_BOOKIE: WorkState.UNPLACED,
    WorkEvent.BOOKIE_IS_AWAY: WorkState.AWAY,
    WorkEvent.FAILED: WorkState.FAILED,
}

TRANSITIONS: Final = Transitions[WorkState | None, WorkEvent](
    "an under-replicated ledger",
    {
        (None, WorkEvent.FOUND): WorkState.QUEUED,
        (WorkState.QUEUED, WorkEvent.BEGUN): WorkState.TAKEN,
        (WorkState.TAKEN, WorkEvent.DONE): None,
        (WorkState.TAKEN, WorkEvent.DUE): WorkState.QUEUED,
        **{(WorkState.TAKEN, event): state for event, state in _WAITING.items()},
        **{(state, WorkEvent.DUE): WorkState.QUEUED for state in _WAITING.values()},
    },
)


class Worklist:
    """Ledgers by their state, each in the order in which it came there."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Know nothing: what is queued is in the store."""
        self._states: dict[int, WorkState] = {}
        self._in: dict[WorkState, dict[int, None]] = {state: {} for state in WorkState}
        self._leaving: dict[int, frozenset[str]] = {}
        self.lost: dict[int, str] = {}
        """Ledgers of which nobody has an entry any more, and what was said."""
        self.has_news = False
        """Something was written into the queue, perhaps damage of one that waits for bookies: it can be mended in its
        place, and is nothing where the ledger is being deleted."""
        self._open_again_s = self._failed_again_s = self._news_again_s = 0.0

    def tick(self, now: float) -> None:
        """It is `now` (monotonic, s): look again at what waits for others, the less often the more of it there is."""
        if now >= self._open_again_s:
            self._open_again_s = now + self.count(WorkState.OPEN) / _AGAIN_PER_S
            self.due(WorkState.OPEN)
        if now >= self._failed_again_s:
            self._failed_again_s = now + _FAILED_AGAIN_S
            self.due(WorkState.FAILED)
        if self.has_news and now >= self._news_again_s:
            self.has_news = False
            self._news_again_s = now + self.count(WorkState.UNPLACED, WorkState.AWAY) / _AGAIN_PER_S
            self.due(WorkState.UNPLACED, WorkState.AWAY)

    def find(self, ledger_ids: Iterable[int]) -> None:
        """These are in the queue; what is known stays as it is."""
        for ledger_id in ledger_ids:
            if ledger_id not in self._states:
                self._enter(ledger_id, WorkEvent.FOUND)

    def begin(self, worries: frozenset[str]) -> int | None:
        """Take a ledger; until its end it may be any of the bookies `worries` that it has to leave."""
        ledger_id = next(iter(self._in[WorkState.QUEUED]), None)
        if ledger_id is not None:
            self._leaving[ledger_id] = worries
            self._enter(ledger_id, WorkEvent.BEGUN)
        return ledger_id

    def narrow(self, ledger_id: int, bookies: frozenset[str]) -> None:
        """Of the bookies that the ledger may have to leave only these (UUIDs) are left."""
        self._leaving[ledger_id] &= bookies

    def end(self, ledger_id: int, event: WorkEvent, leaving: frozenset[str] | None = None) -> None:
        """What became of a ledger that was taken. `leaving`, where it is known: the bookies it still has to leave."""
        if leaving is not None:
            self._leaving[ledger_id] = leaving
        self._enter(ledger_id, event)

    def due(self, *states: WorkState) -> None:
        """Those in `states` are to be looked at again."""
        for state in states:
            for ledger_id in list(self._in[state]):
                self._enter(ledger_id, WorkEvent.DUE)

    def due_again(self) -> None:
        """All that wait are to be looked at again."""
        self.due(*_WAITING.values())

    def count(self, *states: WorkState) -> int:
        return sum(len(self._in[state]) for state in states)

    def leaving(self) -> dict[str, int]:
        """Of each bookie, by UUID, the ledgers that have to leave it."""
        return dict(Counter(uuid for uuids in self._leaving.values() for uuid in uuids))

    def _enter(self, ledger_id: int, event: WorkEvent) -> None:
        before = self._states.pop(ledger_id, None)
        after = TRANSITIONS.next(before, event)
        if before is not None:
            del self._in[before][ledger_id]
        if event is not WorkEvent.FAILED:
            self.lost.pop(ledger_id, None)
        if after is None:
            self._leaving.pop(ledger_id, None)
        else:
            self._states[ledger_id] = after
            self._in[after][ledger_id] = None
