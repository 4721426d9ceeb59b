"""Search for the first seed that detects a mutation, and the invariant that it violates."""

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
    """Result of the search for one mutation. `rule` is the violated invariant, or empty."""

    mutation: str
    seeds: int
    rule: str
    detail: str
    cpu_s: float
    plan: Plan | None = None
    """Plan of the history that detected the mutation."""


def search(name: str, seeds: range) -> Search:
    """Run seeds in order until an invariant is violated."""
    cpu_s = 0.0
    for number, seed in enumerate(seeds, 1):
        outcome = run_seed(seed, MUTATIONS[name].kind, mutation=name)
        cpu_s += outcome.cpu_s
        if outcome.rule:
            return Search(name, number, outcome.rule, outcome.detail, cpu_s, outcome.plan)
    return Search(name, len(seeds), "", "", cpu_s)


def search_all(names: Sequence[str], seeds: range, processes: int) -> Iterator[Search]:
    """Search for several mutations concurrently, each in one process. Yield the results in the order of `names`."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, initializer=prepare) as pool:
        yield from pool.map(search, names, [seeds] * len(names))
