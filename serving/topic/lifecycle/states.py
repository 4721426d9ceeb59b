"""Life of one incarnation of a topic, from its load by a broker until its clients are closed.

Only a topic that is SERVING takes messages.

| end | steps |
|---|---|
| unloading | CLOSING: pending receipts are sent and the ledger's end is recorded, while producers stay; then the drop |
| deletion | DELETING: the clients are closed first |
| loss | LOST: another broker owns the topic, or it has no ledger to write to |

Producers stay during CLOSING because a client that is closed too early reconnects too early. A topic whose load fails
stays LOADING: no caller gets it.

A terminated topic has no state of its own here. Its record is marked as terminated, and the topic is loaded, read and
closed like any other.
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
    """Events in the life of a topic."""

    LOADED = "it writes to a ledger of its own and knows its producers"
    CLOSE = "it is unloaded or handed over"
    DROP = "its clients are closed and it stops writing"
    LOST = "another broker changed its list of segments, or it has no ledger to write to"
    DELETE = "it is deleted, or its interrupted deletion continues"
    DELETED = "its deletion is complete, or has failed until the next attempt"


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
"""States in which clients may be attached; in DELETING, `Topic.delete` closes them."""
