"""A simulation that finds nothing proves nothing: each known mistake, put into production code, breaks an invariant.

`make mutations` counts the seeds that takes. Here each has a plan, which shows it in one of a few worlds, and the same
history is clean without it.
"""

from __future__ import annotations

import pytest

from tests.simulation.mutations import MUTATIONS, pinned
from tests.simulation.runner import run


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mistake_is_found_by_its_invariant(name: str) -> None:
    plan, rules = pinned.read(name)
    found = pinned.first_found(name, plan)
    assert found is not None, f"python -m tests.simulation.mutations --pin {name}"
    assert found.rule in rules, found.detail
    pristine = run(found.plan)
    assert not pristine.rule, pristine.detail


def test_there_is_a_plan_for_each_mistake_and_no_other() -> None:
    assert {file.stem for file in pinned.PLANS.glob("*.txt")} == set(MUTATIONS)
    assert all(pinned.read(name)[0].kind == known.kind for name, known in MUTATIONS.items())
