"""How many seeds a mistake takes, and which invariant finds it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from tests.simulation.plan import Plan
from tests.simulation.runner import prepare, run_seed

from . import MUTATIONS


@dataclass
class Search:
    """What came of looking for one mistake. `rule` is the invariant that broke, empty when none did."""

    mutation: str
    seeds: int
    rule: str
    detail: str
    cpu_s: float
    plan: Plan | None = None
    """Of the history in which it showed."""


def search(name: str, seeds: range) -> Search:
    """Run seeds in order until an invariant breaks."""
    cpu_s = 0.0
    for number, seed in enumerate(seeds, 1):
        outcome = run_seed(seed, MUTATIONS[name].kind, mutation=name)
        cpu_s += outcome.cpu_s
        if outcome.rule:
            return Search(name, number, outcome.rule, outcome.detail, cpu_s, outcome.plan)
    return Search(name, len(seeds), "", "", cpu_s)


def search_all(names: Sequence[str], seeds: range, processes: int) -> Iterator[Search]:
    """Each mistake in one process, some at a time; they come in the order of `names`."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, initializer=prepare) as pool:
        yield from pool.map(search, names, [seeds] * len(names))
