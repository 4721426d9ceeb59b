"""One history from its plan, many from their seeds in a few processes, and what they found."""

from __future__ import annotations

import gc
import multiprocessing
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from time import process_time
from typing import Any, Final

from .cluster_history import ClusterHistory
from .ledger_history import LedgerHistory
from .mutations import MUTATIONS
from .plan import Plan, draw
from .wal_history import WalHistory
from .world import Violation, World, silence

PROCESSES: Final = 2
CHUNK: Final = 4
HISTORIES: Final[dict[str, Any]] = {"ledger": LedgerHistory, "cluster": ClusterHistory, "wal": WalHistory}


@dataclass
class Outcome:
    """What came of one history."""

    plan: Plan
    hash: int
    rule: str
    """Which invariant broke; empty when all held."""
    detail: str
    seen: Counter[str]
    seconds: float
    """Virtual time."""
    cpu_s: float
    lines: list[str] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    error: BaseException | None = None


def run(plan: Plan, *, timeline: bool = False, mutation: str = "") -> Outcome:
    """Run a plan to its end, or to the first violation; under a mutation, without the error itself."""
    begin = process_time()
    gc.disable()  # what a killed process leaves is not to be collected, and to say so, in the middle of the history
    world = World(plan.seed, timeline=timeline)
    history = HISTORIES[plan.kind](plan, world)
    with MUTATIONS[mutation].apply() if mutation else nullcontext(), history.limits():
        world.run(history.run())
    outcome = _outcome(plan, world, process_time() - begin)
    if mutation:
        outcome.error = world.violation = None
    with silence():
        del world, history
        gc.collect()
    gc.enable()
    return outcome


def _outcome(plan: Plan, world: World, cpu_s: float) -> Outcome:
    error = world.violation
    rule = "" if error is None else error.rule if isinstance(error, Violation) else type(error).__name__
    seconds, seen, lines, story = world.loop.time(), world.seen, world.lines, world.story
    return Outcome(plan, world.hash, rule, str(error or ""), seen, seconds, cpu_s, lines, story, error)


def run_seed(seed: int, kind: str, *, timeline: bool = False, mutation: str = "") -> Outcome:
    return run(draw(seed, kind), timeline=timeline, mutation=mutation)


def run_many(
    kind: str, seeds: Iterable[int], *, processes: int = PROCESSES, mutation: str = ""
) -> Iterator[Outcome]:
    """Run seeds in several processes; outcomes come in the order of the seeds."""
    todo = list(seeds)
    chunks = [todo[i : i + CHUNK] for i in range(0, len(todo), CHUNK)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, initializer=prepare) as pool:
        try:
            for outcomes in pool.map(_run_chunk, ((kind, chunk, mutation) for chunk in chunks)):
                yield from outcomes
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def prepare() -> None:
    """What was imported is never garbage: the collector need not look at it after each history.

    What it finds of a failed one, whose error holds its world for a while, dies in silence, too.
    """
    gc.collect()
    gc.freeze()
    sys.unraisablehook = lambda unraisable: None
    warnings.simplefilter("ignore", RuntimeWarning)


def _run_chunk(work: tuple[str, list[int], str]) -> list[Outcome]:
    kind, seeds, mutation = work
    outcomes = [run_seed(seed, kind, mutation=mutation) for seed in seeds]
    for outcome in outcomes:
        outcome.error = None  # it may hold the whole world
    return outcomes
