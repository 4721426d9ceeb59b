"""The bundles of one broker and their states: a core.

| state | served here |
|---|---|
| ABSENT | no |
| HELD | yes |
| LEAVING | what is loaded, nothing more is loaded |

All nodes belong to one session. When that ends, every bundle is absent at once and the *epoch* grows; a node whose
making was begun in an earlier epoch is not counted as held, whatever the store says of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from quire.runtime.transitions import Transitions


class State(Enum):
    ABSENT = auto()
    HELD = auto()
    LEAVING = auto()


class Event(Enum):
    TAKEN = "our node was made"
    LEFT = "it is given away, and its topics are being closed"
    GONE = "its node is deleted, or another broker's"
    SESSION_OVER = "the session is over"


TRANSITIONS: Final = Transitions(
    "a bundle",
    {
        (State.ABSENT, Event.TAKEN): State.HELD,
        (State.HELD, Event.LEFT): State.LEAVING,
        (State.HELD, Event.GONE): State.ABSENT,
        (State.LEAVING, Event.GONE): State.ABSENT,
        (State.HELD, Event.SESSION_OVER): State.ABSENT,
        (State.LEAVING, Event.SESSION_OVER): State.ABSENT,
    },
)


@dataclass(slots=True)
class Held:
    """A bundle of this broker: since when (wall clock) and why."""

    since_ms: int
    why: str
    state: State

    @property
    def is_leaving(self) -> bool:
        return self.state is State.LEAVING


class BundleTable:
    def __init__(self) -> None:
        self.epoch = 0
        self._held: dict[str, Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    def names(self) -> list[str]:
        """Held and leaving."""
        return list(self._held)

    def get(self, bundle: str) -> Held | None:
        return self._held.get(bundle)

    def state(self, bundle: str) -> State:
        held = self._held.get(bundle)
        return State.ABSENT if held is None else held.state

    def holds(self, bundle: str) -> bool:
        return self.state(bundle) is State.HELD

    def taken(self, bundle: str, epoch: int, now_ms: int, why: str) -> bool:
        """Our node was made by what was begun in `epoch`. False when that is over."""
        if epoch != self.epoch:
            return False
        self._held[bundle] = Held(now_ms, why, TRANSITIONS.next(self.state(bundle), Event.TAKEN))
        return True

    def leave(self, bundle: str) -> bool:
        """False when there is nothing to leave."""
        if not self.holds(bundle):
            return False
        held = self._held[bundle]
        held.state = TRANSITIONS.next(held.state, Event.LEFT)
        return True

    def gone(self, bundle: str) -> bool:
        """It is not this broker's any more; False when it was not before."""
        if bundle not in self._held:
            return False
        self._remove(bundle, Event.GONE)
        return True

    def over(self) -> list[str]:
        """The session is over; returns the bundles that this broker had."""
        lost = self.names()
        for bundle in lost:
            self._remove(bundle, Event.SESSION_OVER)
        self.epoch += 1
        return lost

    def _remove(self, bundle: str, event: Event) -> None:
        state = TRANSITIONS.next(self._held.pop(bundle).state, event)
        assert state is State.ABSENT
