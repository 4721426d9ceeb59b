"""State machine of a bookie's membership: transitions of its identity record.

The record exists from the first registration until the retirement, whether the bookie runs or not. Its state is the
operator's intent (`BookieIntent`). A bookie that drains because its process is to stop has the intent only in its
ephemeral record, so a bookie with the intent STAY in this record may also be retired. A bookie that was given up
becomes a member again when it registers.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from quire.metadata.records import BookieIntent
from quire.runtime.transitions import Transitions


class BookieEvent(Enum):
    REGISTERED = "it starts"
    DECOMMISSIONED = "an operator decommissions it"
    GIVEN_UP = "an operator declares that it will not come back"
    KEPT = "an operator revokes the order"
    RETIRED = "all its data are on other bookies"


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
    """Return the record's intent after an event that does not remove it."""
    wanted = TRANSITIONS.next(intent, event)
    assert wanted is not None
    return wanted
