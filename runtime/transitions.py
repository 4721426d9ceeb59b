"""Table of a state machine: the next state by state and event.

A state machine's file has a table `TRANSITIONS`, next to its states and events:

    TRANSITIONS: Final = Transitions("a door", {
        (None, Event.BUILT): State.OPEN,
        (State.OPEN, Event.SHUT): State.CLOSED,
        (State.CLOSED, Event.TORN_DOWN): None,
    })

`next` returns the state after an event. An event in a state without such a pair in the table is a bug: code that
handles a peer's input first checks whether it is valid in this state. The state None means that the object does not
exist (yet, or any more). An event's value is its description. docs/states.md is generated from these tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Generic, TypeVar

S = TypeVar("S", bound=Enum | None)
E = TypeVar("E", bound=Enum)


class Transitions(Generic[S, E]):
    """Table of transitions. `what` names the object, with an article: "a door"."""

    __slots__ = ("_table", "what")

    def __init__(self, what: str, table: Mapping[tuple[S, E], S]) -> None:
        self.what = what
        self._table = dict(table)
        assert not any(mark in event.value for _, event in table for mark in ":;"), (
            "Mermaid labels must not contain : or ;"
        )

    def next(self, state: S, event: E) -> S:
        """Return the state after `event`. Raises `AssertionError` if the table has no such transition."""
        try:
            return self._table[state, event]
        except KeyError:
            name = "that does not exist" if state is None else f"in state {state.name}"
            raise AssertionError(f"bug: {self.what} {name} received {event.name}: {event.value}") from None

    def draw(self) -> str:
        """Draw a Mermaid state diagram, which begins with None, or else with the table's first state."""
        events: dict[tuple[S, S], list[str]] = {}
        for (state, event), after in self._table.items():
            events.setdefault((state, after), []).append(event.value)
        first = next(iter(self._table))[0]
        lines = ["stateDiagram-v2"] + ([] if first is None else [f"    [*] --> {first.name}"])
        for (state, after), what in events.items():
            lines.append(f"    {_shown(state)} --> {_shown(after)}: {' / '.join(what)}")
        return "\n".join(lines)


def _shown(state: Enum | None) -> str:
    return "[*]" if state is None else state.name
