"""Worklist of repair: the state of each queued ledger, in the coordinator's memory.

A ledger that cannot be repaired now waits for its precondition, such as another bookie. The worklist records the
bookies that each ledger still has to leave, because these must not be retired. The queue itself is in the metadata
store (`metadata.underreplicated`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import Enum
from typing import Final

from quire.runtime.transitions import Transitions

_FAILED_AGAIN_S: Final = 60.0
"""Delay in seconds before a failed ledger is tried again."""

_AGAIN_PER_S: Final = 50
"""Maximum number of waiting ledgers that are tried again per second, on average."""


class WorkState(Enum):
    """State of a queued ledger."""

    QUEUED = "to be checked"
    TAKEN = "being repaired"
    OPEN = "must be closed first"
    UNPLACED = "no bookie can take a copy"
    AWAY = "is being deleted, and one of its bookies is absent"
    FAILED = "something failed"


class WorkEvent(Enum):
    """Events of a queued ledger."""

    FOUND = "it is in the queue"
    BEGUN = "a worker of the replicator begins it"
    IS_OPEN = "it must be closed before it can be repaired"
    LACKS_BOOKIE = "no other bookie can take a copy"
    BOOKIE_IS_AWAY = "it is being deleted, and a bookie is absent"
    FAILED = "something failed"
    DUE = "its precondition may hold, or its node was changed"
    DONE = "it needs no more repair, and its node is removed"


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
    """Queued ledgers by state, in the order in which they entered the state."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything: the queue can be read again from the store."""
        self._states: dict[int, WorkState] = {}
        self._in: dict[WorkState, dict[int, None]] = {state: {} for state in WorkState}
        self._leaving: dict[int, frozenset[str]] = {}
        self.lost: dict[int, str] = {}
        """Error text of each ledger with a permanently lost entry, by ledger id."""
        self.has_news = False
        """Set when the queue in the metadata store has changed. It may contain new damage reports about waiting
        ledgers, and such damage may be repairable at once.
        """
        self._open_again_s = self._failed_again_s = self._news_again_s = 0.0

    def tick(self, now: float) -> None:
        """Queue waiting ledgers again when they are due; `now` is monotonic, in seconds.

        The more ledgers wait, the less often they are queued again.
        """
        if now >= self._open_again_s:
            self._open_again_s = now + self.count(WorkState.OPEN) / _AGAIN_PER_S
            self.requeue(WorkState.OPEN)
        if now >= self._failed_again_s:
            self._failed_again_s = now + _FAILED_AGAIN_S
            self.requeue(WorkState.FAILED)
        if self.has_news and now >= self._news_again_s:
            self.has_news = False
            self._news_again_s = now + self.count(WorkState.UNPLACED, WorkState.AWAY) / _AGAIN_PER_S
            self.requeue(WorkState.UNPLACED, WorkState.AWAY)

    def enqueue(self, ledger_ids: Iterable[int]) -> None:
        """Add queued ledgers; the state of known ones does not change."""
        for ledger_id in ledger_ids:
            if ledger_id not in self._states:
                self._enter(ledger_id, WorkEvent.FOUND)

    def begin(self, bookies_to_leave: frozenset[str]) -> int | None:
        """Begin the repair of a queued ledger; return its id, or None if the queue is empty.

        Until `restrict_leaving` or `finish` is called, the ledger counts as stored on all of `bookies_to_leave`.
        """
        ledger_id = next(iter(self._in[WorkState.QUEUED]), None)
        if ledger_id is not None:
            self._leaving[ledger_id] = bookies_to_leave
            self._enter(ledger_id, WorkEvent.BEGUN)
        return ledger_id

    def restrict_leaving(self, ledger_id: int, bookies: frozenset[str]) -> None:
        """Record that the ledger has to leave at most these bookies (UUIDs), because its record names no others."""
        self._leaving[ledger_id] &= bookies

    def finish(self, ledger_id: int, event: WorkEvent, leaving: frozenset[str] | None = None) -> None:
        """Record the outcome of a repair.

        `leaving`, if known, contains the bookies that the ledger still has to leave.
        """
        if leaving is not None:
            self._leaving[ledger_id] = leaving
        self._enter(ledger_id, event)

    def requeue(self, *states: WorkState) -> None:
        """Queue the ledgers in `states` again."""
        for state in states:
            for ledger_id in list(self._in[state]):
                self._enter(ledger_id, WorkEvent.DUE)

    def requeue_waiting(self) -> None:
        """Queue all waiting ledgers again."""
        self.requeue(*_WAITING.values())

    def count(self, *states: WorkState) -> int:
        return sum(len(self._in[state]) for state in states)

    def leaving(self) -> dict[str, int]:
        """Return, by UUID of a bookie, the number of ledgers that still have to leave it."""
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
        assert len(self._states) == sum(map(len, self._in.values())), "a ledger is in exactly one state"
