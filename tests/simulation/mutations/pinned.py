"""Pinned plans: one small plan per mutation that detects it. `make test` runs these instead of thousands of seeds.

    plans/NAME.txt     the violated invariants, then the plan

    # Confirm a fence that is only in memory.
    # Found by: fence
    seed=… kind=ledger …
       0.512  power_cut           1  2  0

The outcome of a plan also depends on the random draws of the simulated world, which change with every change of the
simulation. So a plan is tried with several seeds, one after another. If none of them detects the mutation any more,
`python -m tests.simulation.mutations --pin NAME` searches for another plan.
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
"""Number of seeds that are tried with a plan. Most plans detect their mutation with every second or third seed."""

_SAMPLE: Final = 9
_RUNS_MAX: Final = 40
_FOUND_BY: Final = re.compile(r"Found by: (.+)")


def file_of(name: str) -> Path:
    return PLANS / f"{name}.txt"


def variations(plan: Plan, count: int = VARIATIONS) -> Iterator[Plan]:
    """Yield plans with the same events and other seeds."""
    return (replace(plan, seed=plan.seed + number) for number in range(count))


def first_found(name: str, plan: Plan, count: int = VARIATIONS) -> Outcome | None:
    """Return the outcome of the plan's first variation that violates an invariant under the mutation, if any."""
    return next((found for each in variations(plan, count) if (found := run(each, mutation=name)).rule), None)


def read(name: str) -> tuple[Plan, set[str]]:
    """Return the pinned plan of a mutation, and the invariants that it may violate."""
    text = file_of(name).read_text()
    found = _FOUND_BY.search(text)
    assert found is not None
    return Plan.parse(text), set(found[1].split(", "))


def pin(name: str, seeds: range) -> str:
    """Search for a plan, use its shrunk form if that detects the mutation as often, and store it.

    Return a description of the result.
    """
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
    """Return the invariants that a few variations of the plan violate."""
    return [rule for each in variations(plan, _SAMPLE) if (rule := run(each, mutation=name).rule)]


def _worth(plan: Plan, rules: list[str]) -> tuple[int, int]:
    """Return a sort key: detection by a third of the variations is enough, and then the smaller plan is better."""
    return min(len(rules), _SAMPLE // 3), -len(plan.events)
