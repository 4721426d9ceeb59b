"""One small plan per mutation, under which it shows: what `make test` runs instead of thousands of seeds.

    plans/NAME.txt     the invariant that finds it, then the plan

    # A fence is answered from memory.
    # Found by: fence
    seed=… kind=ledger …
       0.512  power_cut           1  2  0

A plan is a history only together with what the simulated world draws from its seed, and every change of that world
draws differently. So a plan is tried with a few seeds, one after the other; when it shows with none any more,
`python -m tests.simulation.mutations --pin NAME` looks for another one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.simulation.plan import Plan
from tests.simulation.runner import Outcome, run
from tests.simulation.shrink import shrink

from . import MUTATIONS
from .search import search

PLANS: Final = Path(__file__).with_name("plans")
VARIATIONS: Final = 40
"""Seeds that are tried with a plan. Most show their mistake with every second or third one."""

_SAMPLE: Final = 9
_RUNS_MAX: Final = 40
_FOUND_BY: Final = re.compile(r"Found by: (.+)")


def file_of(name: str) -> Path:
    return PLANS / f"{name}.txt"


def variations(plan: Plan, count: int = VARIATIONS) -> Iterator[Plan]:
    """The same events in other worlds."""
    return (replace(plan, seed=plan.seed + number) for number in range(count))


def first_found(name: str, plan: Plan, count: int = VARIATIONS) -> Outcome | None:
    """The first variation of the plan that breaks an invariant under the mutation."""
    return next((found for each in variations(plan, count) if (found := run(each, mutation=name)).rule), None)


def read(name: str) -> tuple[Plan, set[str]]:
    """The plan of a mutation, and the invariants that may find it."""
    text = file_of(name).read_text()
    found = _FOUND_BY.search(text)
    assert found is not None
    return Plan.parse(text), set(found[1].split(", "))


def pin(name: str, seeds: range) -> str:
    """Search, make the plan smaller if it shows as often then, and write it down. Answers what became of it."""
    found = search(name, seeds)
    if found.plan is None:
        return "NOT FOUND"
    small = shrink(found.plan, lambda smaller: run(smaller, mutation=name).rule == found.rule, _RUNS_MAX)
    plan, rules = max(
        ((each, _shows(name, each)) for each in (small, found.plan)), key=lambda it: _worth(*it)
    )
    text = f"# {MUTATIONS[name].what.strip().splitlines()[0]}\n# Found by: {', '.join(sorted(set(rules)))}\n"
    file_of(name).write_text(f"{text}\n{plan}\n")
    return f"{len(rules)} of {_SAMPLE}, {len(plan.events)} events: {', '.join(sorted(set(rules)))}"


def _shows(name: str, plan: Plan) -> list[str]:
    """The invariants that break in a few variations."""
    return [rule for each in variations(plan, _SAMPLE) if (rule := run(each, mutation=name).rule)]


def _worth(plan: Plan, rules: list[str]) -> tuple[int, int]:
    """Every third world is enough; then the smaller one is better."""
    return min(len(rules), _SAMPLE // 3), -len(plan.events)
