"""Runner of histories: one from its plan, or many from their seeds in several processes."""

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
from .restored_history import RestoredHistory
from .wal_history import WalHistory
from .world import Violation, World, silence

PROCESSES: Final = 2
CHUNK: Final = 4
CHUNKS_A_POOL: Final = 100
"""A process keeps the tasks of ended histories (7 MiB for one of the cluster), so longer runs get new processes."""

HISTORIES: Final[dict[str, Any]] = {
    "ledger": LedgerHistory,
    "cluster": ClusterHistory,
    "wal": WalHistory,
    "restored": RestoredHistory,
}


@dataclass
class Outcome:
    """Outcome of one history."""

    plan: Plan
    hash: int
    rule: str
    """Name of the violated invariant; empty if all held."""
    detail: str
    seen: Counter[str]
    seconds: float
    """Virtual duration of the history."""
    cpu_s: float
    lines: list[str] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    error: BaseException | None = None


def run(plan: Plan, *, timeline: bool = False, mutation: str = "") -> Outcome:
    """Run a plan to its end, or to the first violation. With a mutation, the outcome lacks the error object."""
    begin = process_time()
    gc.disable()  # else collecting a killed process's coroutines would run and log in the middle of the history
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
    """Run seeds in several processes; yield the outcomes in the order of the seeds."""
    todo = list(seeds)
    chunks = [todo[i : i + CHUNK] for i in range(0, len(todo), CHUNK)]
    context = multiprocessing.get_context("spawn")
    for start in range(0, len(chunks), CHUNKS_A_POOL):
        some = chunks[start : start + CHUNKS_A_POOL]
        with ProcessPoolExecutor(processes, mp_context=context, initializer=prepare) as pool:
            try:
                for outcomes in pool.map(_run_chunk, ((kind, chunk, mutation) for chunk in some)):
                    yield from outcomes
            finally:
                pool.shutdown(wait=False, cancel_futures=True)


def prepare() -> None:
    """Exclude all imported objects from garbage collection, which runs after each history.

    Also silence warnings about a failed history, whose world is collected later because its error refers to it.
    """
    gc.collect()
    gc.freeze()
    sys.unraisablehook = lambda unraisable: None
    warnings.simplefilter("ignore", RuntimeWarning)


def _run_chunk(work: tuple[str, list[int], str]) -> list[Outcome]:
    kind, seeds, mutation = work
    outcomes = [run_seed(seed, kind, mutation=mutation) for seed in seeds]
    for outcome in outcomes:
        outcome.error = None  # it may refer to the whole world
    return outcomes
