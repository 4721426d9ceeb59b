"""Breadth first through everything that can happen, until nothing new does or something is wrong.

The first wrong state is reached in the fewest moves; how it came about is told as a history, one move a line.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

from quire.ledger.recovery_core import BEYOND
from quire.metadata.records import LedgerRecord, LedgerState
from tests.model import invariants
from tests.model.world import Label, Stage, State, World


@dataclass
class Found:
    """What a search came to. `wrong` is "" when everything within the bounds is right."""

    states: int
    moves: int
    depth: int
    cores: int
    wrong: str = ""
    history: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        size = (
            f"{self.states:,} states, {self.moves:,} moves, {self.depth} deep, {self.cores} different cores"
        )
        if not self.wrong:
            return f"nothing wrong in {size}"
        steps = "\n".join(f"  {number:2}  {line}" for number, line in enumerate(self.history, 1))
        return f"{self.wrong} (after {size})\n{steps}"


class TooMany(Exception):
    """The search was given up: more states than allowed."""


def search(world: World, states_max: int = 5_000_000) -> Found:
    """All states within the world's bounds, or the way to the first one that is wrong."""
    first = world.first()
    parents: dict[State, State | None] = {first: None}
    queue = deque([first])
    moves, depth, level_end, seen_at_level = 0, 0, 1, 0

    def found(wrong: str = "", last: State | None = None) -> Found:
        history = _history(world, parents, last) if last is not None else []
        return Found(len(parents), moves, depth, len(world.machines), wrong, history)

    while queue:
        state = queue.popleft()
        seen_at_level += 1
        moves_before = moves
        for _, after in world.moves(state):
            moves += 1
            if after in parents:
                if wrong := invariants.wrong_step(state, after):
                    return found(wrong, state)
                continue
            parents[after] = state
            if wrong := invariants.wrong_step(state, after) or invariants.wrong(after):
                return found(wrong, after)
            queue.append(after)
        if moves == moves_before and (wrong := invariants.wrong_end(state)):
            return found(wrong, state)
        if len(parents) > states_max:
            raise TooMany(f"more than {states_max:,} states at depth {depth}")
        if seen_at_level == level_end:
            depth, level_end, seen_at_level = depth + 1, len(queue), 0
    return found()


def _history(world: World, parents: dict[State, State | None], last: State) -> list[str]:
    way = [last]
    while (parent := parents[way[-1]]) is not None:
        way.append(parent)
    way.reverse()
    lines = []
    for before, after in pairwise(way):
        label = next(label for label, state in world.moves(before) if state == after)
        line = tell(label)
        if after.confirmed > before.confirmed:
            line += f"; entry {after.confirmed} is CONFIRMED"
        lines.append(line)
    return lines


def _bookies(record: LedgerRecord) -> str:
    return " ".join(
        f"[{each.first_entry}: {', '.join(name.partition(':')[0] for name in each.bookies)}]"
        for each in record.fragments
    )


def tell(label: Label) -> str:
    """A move in words. Bookies count from b1, recoveries from R1."""
    match label:
        case ("add", entry, lac):
            return f"writer: adds entry {entry} (LAC {lac})"
        case ("change", replacements):
            names = ", ".join(f"b{number + 1}" for number in replacements)
            return f"writer: begins an ensemble change {f'to {names}' if names else 'without a replacement'}"
        case ("put", LedgerRecord() as record, done):
            what = (
                f"closed at {record.last_entry}" if record.state is LedgerState.CLOSED else _bookies(record)
            )
            return f"metadata: the writer's put {'is done' if done else 'CONFLICTS'}: {what}"
        case ("writer hears", record):
            return f"writer: hears that the change is committed: {_bookies(record)}"
        case ("writer closes", last_entry):
            return f"writer: closes at {last_entry}"
        case ("writer ends",):
            return "writer: hears of the conflict and ends"
        case ("block", entry, bookie, _, stage, answer):
            late = ", which the writer has given up," if stage is Stage.LATE else ""
            return f"b{bookie + 1}: gets entry {entry}{late} and says {answer.name}"
        case ("ack", entry, bookie, _, answer):
            return f"writer: hears {answer.name} from b{bookie + 1} for entry {entry}"
        case ("time-out", entry, bookie, _, stage):
            return f"writer: gives b{bookie + 1} up, waiting for entry {entry} ({stage.name} is on its way)"
        case ("read", index, bookie, entry, status, lac):
            what = "fences" if entry == BEYOND else f"reads entry {entry}"
            return f"R{index + 1}: {what} at b{bookie + 1}: {status.name}, LAC {lac}"
        case ("no answer", index, bookie, entry):
            what = "the fence" if entry == BEYOND else f"entry {entry}"
            return f"R{index + 1}: hears nothing from b{bookie + 1} about {what}"
        case ("writes again", index, entry, bookie, status):
            return f"R{index + 1}: writes entry {entry} again to b{bookie + 1}: {status.name}"
        case ("cannot write again", index, entry, bookie):
            return f"R{index + 1}: cannot write entry {entry} again to b{bookie + 1}"
        case ("recovery changes", index, replacements):
            names = ", ".join(f"b{number + 1}" for number in replacements)
            return f"R{index + 1}: replaces it by {names or 'nobody'}"
        case ("closes", index, last_entry):
            return f"R{index + 1}: CLOSES the ledger at {last_entry}"
        case (("takes over" | "finds it closed" | "close conflicts") as what, index):
            return f"R{index + 1}: {what}"
        case (("wiped" | "restarts") as what, bookie):
            return f"b{bookie + 1}: {what}"
    raise AssertionError(label)
