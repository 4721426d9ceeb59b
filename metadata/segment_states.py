"""State machine of a segment's record in its topic's list.

A deletion of the topic removes the whole list, in any state. The record has no field for the state, which is derived
from other fields (`segment_state`). Whether a sealed segment is *flushed* is not recorded, because its bookies can be
asked; an operator may archive a segment before it is flushed.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from quire.metadata.records import SegmentRecord, SegmentState
from quire.runtime.transitions import Transitions


class SegmentEvent(Enum):
    BEGUN = "its topic begins to write to its ledger"
    DROPPED = "it was closed without entries"
    SEALED = "its ledger is closed, and its totals are recorded"
    FLUSHED = "the checkpoint mark of every replica has passed its last block"
    ARCHIVED = "its object was uploaded and verified, and the pointer is recorded"
    RELEASED = "the object was verified again, so the bookies' copy may be deleted"
    MEASURED = "the publish times of its messages are recorded"
    TRIMMED = "all subscriptions have passed it, and its retention is over"


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
        (SegmentState.SEALED, SegmentEvent.MEASURED): SegmentState.SEALED,
        (SegmentState.FLUSHED, SegmentEvent.MEASURED): SegmentState.FLUSHED,
        (SegmentState.ARCHIVED, SegmentEvent.MEASURED): SegmentState.ARCHIVED,
        (SegmentState.RELEASED, SegmentEvent.MEASURED): SegmentState.RELEASED,
        (SegmentState.SEALED, SegmentEvent.TRIMMED): None,
        (SegmentState.FLUSHED, SegmentEvent.TRIMMED): None,
        (SegmentState.ARCHIVED, SegmentEvent.TRIMMED): None,
        (SegmentState.RELEASED, SegmentEvent.TRIMMED): None,
    },
)
"""ARCHIVED follows ARCHIVED or RELEASED when a damaged object is uploaded again from the bookies' copy."""


def segment_state(segment: SegmentRecord, *, is_flushed: bool) -> SegmentState:
    """Return the state that is displayed to operators."""
    if not segment.is_sealed:
        return SegmentState.ACTIVE
    if segment.archive is not None:
        return SegmentState.ARCHIVED if segment.on_bookies else SegmentState.RELEASED
    return SegmentState.FLUSHED if is_flushed else SegmentState.SEALED


def check(before: SegmentRecord | None, event: SegmentEvent, after: SegmentRecord | None) -> None:
    """Assert that the table allows this change. None means that the segment is not in the topic's list."""
    expected = TRANSITIONS.next(_recorded(before), event)
    assert _recorded(after) is expected, f"bug: {event.name} made {after} of {before}"


def _recorded(segment: SegmentRecord | None) -> SegmentState | None:
    return None if segment is None else segment_state(segment, is_flushed=False)
