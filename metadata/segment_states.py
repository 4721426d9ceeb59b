"""What a segment's record may become in its topic's list. With the topic itself the whole list goes, whatever is in it.

The record has no field for the state: it is told by the others (`segment_state`). That a sealed segment is *flushed* is
not recorded at all, because its bookies tell it; an operator may have a segment archived before.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from quire.metadata.records import SegmentRecord, SegmentState
from quire.runtime.transitions import Transitions


class SegmentEvent(Enum):
    BEGUN = "its topic begins to write to its ledger"
    DROPPED = "it ended empty"
    SEALED = "its ledger is closed, and its totals are written down"
    FLUSHED = "on every replica the checkpoint mark has passed its last block"
    ARCHIVED = "an object holds it, was verified, and the pointer is recorded"
    RELEASED = "the object was proven again, and the bookies' copy may go"
    TRIMMED = "all subscriptions are past it, and its retention is over"


TRANSITIONS: Final = Transitions[SegmentState | None, SegmentEvent](
    "a segment",
    {
        (None, SegmentEvent.BEGUN): SegmentState.ACTIVE,
        (SegmentState.ACTIVE, SegmentEvent.DROPPED): None,
        (SegmentState.ACTIVE, SegmentEvent.SEALED): SegmentState.SEALED,
        (SegmentState.SEALED, SegmentEvent.FLUSHED): SegmentState.FLUSHED,
        (SegmentState.SEALED, SegmentEvent.ARCHIVED): SegmentState.ARCHIVED,
        (SegmentState.FLUSHED, SegmentEvent.ARCHIVED): SegmentState.ARCHIVED,
        (SegmentState.ARCHIVED, SegmentEvent.ARCHIVED): SegmentState.ARCHIVED,
        (SegmentState.ARCHIVED, SegmentEvent.RELEASED): SegmentState.RELEASED,
        (SegmentState.RELEASED, SegmentEvent.ARCHIVED): SegmentState.RELEASED,
        (SegmentState.SEALED, SegmentEvent.TRIMMED): None,
        (SegmentState.FLUSHED, SegmentEvent.TRIMMED): None,
        (SegmentState.ARCHIVED, SegmentEvent.TRIMMED): None,
        (SegmentState.RELEASED, SegmentEvent.TRIMMED): None,
    },
)
"""An object that was found damaged is uploaded again while the bookies still have what it lacks."""


def segment_state(segment: SegmentRecord, *, is_flushed: bool) -> SegmentState:
    """As people are shown it."""
    if not segment.is_sealed:
        return SegmentState.ACTIVE
    if segment.archive is not None:
        return SegmentState.ARCHIVED if segment.on_bookies else SegmentState.RELEASED
    return SegmentState.FLUSHED if is_flushed else SegmentState.SEALED


def check(before: SegmentRecord | None, event: SegmentEvent, after: SegmentRecord | None) -> None:
    """Asserts that the table has this change; None is a segment that is not in the list."""
    expected = TRANSITIONS.next(_recorded(before), event)
    assert _recorded(after) is expected, f"bug: {event.name} made {after} of {before}"


def _recorded(segment: SegmentRecord | None) -> SegmentState | None:
    return None if segment is None else segment_state(segment, is_flushed=False)
