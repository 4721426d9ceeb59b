"""A simulation that finds nothing proves nothing: each known mistake, put into production code, breaks an invariant.

`make mutations` counts the seeds that takes. Here each has a plan, which shows it in one of a few worlds, and the same
history is clean without it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation.mutations import MUTATIONS, pinned
from tests.simulation.plan import draw
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


def test_a_history_that_breaks_a_rule_leaves_the_next_one_alone() -> None:
    """It stands still where it was; what it had patched is as before, nevertheless."""
    name = "a_key_is_dispatched_to_its_new_owner_at_once"
    wide = replace(draw(1, "cluster"), narrow=0)
    before = run(wide).hash
    assert pinned.first_found(name, pinned.read(name)[0]) is not None
    assert run(wide).hash == before
