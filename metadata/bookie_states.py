"""Whether a bookie is a member, and for how long: what its identity record may become.

There is a record from its first registration until it is retired, whether the bookie is up or not. Its state is what an
operator wants (`BookieIntent`). A bookie that drains because it was told to stop wants that itself, in its ephemeral
record alone; so one whose record says nothing of it may be retired, too. One that was given up and registers all the
same is a member as before.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from quire.metadata.records import BookieIntent
from quire.runtime.transitions import Transitions


class BookieEvent(Enum):
    REGISTERED = "it starts"
    DECOMMISSIONED = "an operator wants it to go"
    GIVEN_UP = "an operator says that it will not come back"
    KEPT = "an operator wants it to stay"
    RETIRED = "all that it held lies elsewhere"


TRANSITIONS: Final = Transitions[BookieIntent | None, BookieEvent](
    "a bookie's record",
    {
        (None, BookieEvent.REGISTERED): BookieIntent.STAY,
        (BookieIntent.STAY, BookieEvent.REGISTERED): BookieIntent.STAY,
        (BookieIntent.STAY, BookieEvent.DECOMMISSIONED): BookieIntent.DRAIN,
        (BookieIntent.STAY, BookieEvent.GIVEN_UP): BookieIntent.GIVE_UP,
        (BookieIntent.STAY, BookieEvent.KEPT): BookieIntent.STAY,
        (BookieIntent.STAY, BookieEvent.RETIRED): None,
        (BookieIntent.DRAIN, BookieEvent.REGISTERED): BookieIntent.DRAIN,
        (BookieIntent.DRAIN, BookieEvent.DECOMMISSIONED): BookieIntent.DRAIN,
        (BookieIntent.DRAIN, BookieEvent.GIVEN_UP): BookieIntent.GIVE_UP,
        (BookieIntent.DRAIN, BookieEvent.KEPT): BookieIntent.STAY,
        (BookieIntent.DRAIN, BookieEvent.RETIRED): None,
        (BookieIntent.GIVE_UP, BookieEvent.REGISTERED): BookieIntent.STAY,
        (BookieIntent.GIVE_UP, BookieEvent.DECOMMISSIONED): BookieIntent.DRAIN,
        (BookieIntent.GIVE_UP, BookieEvent.GIVEN_UP): BookieIntent.GIVE_UP,
        (BookieIntent.GIVE_UP, BookieEvent.KEPT): BookieIntent.STAY,
        (BookieIntent.GIVE_UP, BookieEvent.RETIRED): None,
    },
)


def after(intent: BookieIntent | None, event: BookieEvent) -> BookieIntent:
    """What a record says after an event that leaves one."""
    wanted = TRANSITIONS.next(intent, event)
    assert wanted is not None
    return wanted
