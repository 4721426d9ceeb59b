"""A state machine's table, literally: what follows in which state after which event.

A machine's file has one, named `TRANSITIONS`, beside its states and events:

    TRANSITIONS: Final = Transitions("a door", {
        (None, Event.BUILT): State.OPEN,
        (State.OPEN, Event.SHUT): State.CLOSED,
        (State.CLOSED, Event.TORN_DOWN): None,
    })

Production takes each new state from `next`. A pair that the table lacks is a bug, never what a peer sent: who talks to
peers looks first whether an event means anything now. None is what does not exist (yet, or any more). An event's value
says in words what happens. docs/states.md is drawn from these tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Generic, TypeVar

S = TypeVar("S", bound=Enum | None)
E = TypeVar("E", bound=Enum)


class Transitions(Generic[S, E]):
    """The table of `what`, with an article: "a door"."""

    __slots__ = ("_table", "what")

    def __init__(self, what: str, table: Mapping[tuple[S, E], S]) -> None:
        self.what = what
        self._table = dict(table)
        assert not any(mark in event.value for _, event in table for mark in ":;"), (
            "diagrams take no such label"
        )

    def next(self, state: S, event: E) -> S:
        """The state after `event`. Raises `AssertionError` when the table has none."""
        try:
            return self._table[state, event]
        except KeyError:
            name = "that does not exist" if state is None else f"in state {state.name}"
            raise AssertionError(f"bug: {self.what} {name} met {event.name}: {event.value}") from None

    def draw(self) -> str:
        """A Mermaid state diagram; it begins with None, or else with the table's first state."""
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
