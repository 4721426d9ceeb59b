"""The life of one incarnation of a topic: what a broker has from the topic's load until its clients have left.

Only a topic that is SERVING takes what is published. A clean end has two steps. CLOSING, it answers what it took and
writes down how its ledger ended, while its producers stay: a client that is sent away too early comes back too early.
Then it is dropped. A topic that is deleted sends its clients away first. LOST is the end that nobody here asked for. A
topic whose load fails stays LOADING: nobody ever gets it.

That a topic was terminated is no state of this: its record says so, and it is loaded, read and closed as any other.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from quire.runtime.transitions import Transitions


class State(Enum):
    LOADING = auto()
    SERVING = auto()
    CLOSING = auto()
    DELETING = auto()
    CLOSED = auto()
    LOST = auto()


class Event(Enum):
    """What happens to a topic."""

    LOADED = "it writes to a ledger of its own and knows its producers"
    CLOSE = "it is unloaded or handed over"
    DROP = "its clients are sent away and nothing more is written"
    LOST = "another broker changed its list of segments, or it has no ledger to write to"
    DELETE = "it is deleted, or its interrupted deletion goes on"
    DELETED = "nothing is left of it, or the next attempt goes on"


TRANSITIONS: Final = Transitions(
    "a loaded topic",
    {
        (State.LOADING, Event.LOADED): State.SERVING,
        (State.LOADING, Event.LOST): State.LOST,
        (State.LOADING, Event.DELETE): State.DELETING,
        (State.SERVING, Event.CLOSE): State.CLOSING,
        (State.SERVING, Event.DROP): State.CLOSED,
        (State.SERVING, Event.LOST): State.LOST,
        (State.SERVING, Event.DELETE): State.DELETING,
        (State.CLOSING, Event.DROP): State.CLOSED,
        (State.CLOSING, Event.LOST): State.LOST,
        (State.DELETING, Event.DELETED): State.CLOSED,
    },
)

OPEN: Final = frozenset((State.LOADING, State.SERVING))
IN_USE: Final = frozenset((State.LOADING, State.SERVING, State.CLOSING))
"""In the others it has let go of everybody already; a deletion ends by itself."""
