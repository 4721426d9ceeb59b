"""Bundles of one broker and their states. Performs no I/O.

| state | served here |
|---|---|
| ABSENT | no |
| HELD | yes |
| LEAVING | only topics that are loaded already |

All ephemeral nodes of bundles belong to one session. When it ends, every bundle becomes ABSENT, and the *epoch*
increases. A bundle whose node was requested in an earlier epoch never becomes HELD, even if the store created the node.
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
    TAKEN = "its node was created by this broker"
    LEFT = "it is handed over, and its topics are being closed"
    GONE = "its node was deleted, or names another broker"
    SESSION_OVER = "the session ended"


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
    """Bundle of this broker: the wall-clock time (ms) at which it was acquired, the reason, and its state."""

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
        """Return the bundles that are held or leaving."""
        return list(self._held)

    def get(self, bundle: str) -> Held | None:
        return self._held.get(bundle)

    def state(self, bundle: str) -> State:
        held = self._held.get(bundle)
        return State.ABSENT if held is None else held.state

    def holds(self, bundle: str) -> bool:
        return self.state(bundle) is State.HELD

    def hold(self, bundle: str, epoch: int, now_ms: int, why: str) -> bool:
        """Hold a bundle whose node was created by a request of `epoch`; return False if that epoch has ended."""
        if epoch != self.epoch:
            return False
        self._held[bundle] = Held(now_ms, why, TRANSITIONS.next(self.state(bundle), Event.TAKEN))
        return True

    def begin_leaving(self, bundle: str) -> bool:
        """Start to hand a bundle over; return False if it is not held."""
        if not self.holds(bundle):
            return False
        held = self._held[bundle]
        held.state = TRANSITIONS.next(held.state, Event.LEFT)
        return True

    def remove(self, bundle: str) -> bool:
        """Remove a bundle; return False if it was absent."""
        if bundle not in self._held:
            return False
        self._remove(bundle, Event.GONE)
        return True

    def end_session(self) -> list[str]:
        """End the session and its epoch; return the bundles that this broker held."""
        lost = self.names()
        for bundle in lost:
            self._remove(bundle, Event.SESSION_OVER)
        self.epoch += 1
        return lost

    def _remove(self, bundle: str, event: Event) -> None:
        state = TRANSITIONS.next(self._held.pop(bundle).state, event)
        assert state is State.ABSENT
