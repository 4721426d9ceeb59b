"""What a table of states refuses, and how it is drawn."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

import pytest

from quire.runtime.transitions import Transitions


class Door(Enum):
    OPEN = auto()
    SHUT = auto()


class Event(Enum):
    BUILT = "a carpenter comes"
    PUSHED = "somebody pushes"
    BLOWN = "wind"
    BURNT = "fire"


TRANSITIONS: Final = Transitions[Door | None, Event](
    "a door",
    {
        (None, Event.BUILT): Door.OPEN,
        (Door.OPEN, Event.PUSHED): Door.SHUT,
        (Door.OPEN, Event.BLOWN): Door.SHUT,
        (Door.SHUT, Event.BURNT): None,
    },
)


def test_it_tells_what_follows() -> None:
    assert TRANSITIONS.next(None, Event.BUILT) is Door.OPEN
    assert TRANSITIONS.next(Door.OPEN, Event.BLOWN) is Door.SHUT
    assert TRANSITIONS.next(Door.SHUT, Event.BURNT) is None


def test_what_it_lacks_is_a_bug_in_words() -> None:
    with pytest.raises(AssertionError, match="bug: a door in state SHUT received PUSHED: somebody pushes"):
        TRANSITIONS.next(Door.SHUT, Event.PUSHED)
    with pytest.raises(AssertionError, match="bug: a door that does not exist received BURNT: fire"):
        TRANSITIONS.next(None, Event.BURNT)


def test_it_is_drawn_with_one_arrow_from_a_state_to_another() -> None:
    assert TRANSITIONS.draw().splitlines() == [
        "stateDiagram-v2",
        "    [*] --> OPEN: a carpenter comes",
        "    OPEN --> SHUT: somebody pushes / wind",
        "    SHUT --> [*]: fire",
    ]


def test_without_a_birth_it_begins_with_the_first_state() -> None:
    table = Transitions[Door, Event]("a door", {(Door.OPEN, Event.PUSHED): Door.SHUT})
    assert table.draw().splitlines() == [
        "stateDiagram-v2",
        "    [*] --> OPEN",
        "    OPEN --> SHUT: somebody pushes",
    ]
