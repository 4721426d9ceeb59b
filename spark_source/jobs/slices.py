"""A function over many slices, in this process or as tasks of a Spark session; `progress` hears of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

A = TypeVar("A")
B = TypeVar("B")

Progress = Callable[[int, int], None]
"""Of how many slices how many are done."""


def quietly(done: int, of: int) -> None:
    """Nobody looks."""


def over(
    work: Callable[[A], B], pieces: Sequence[A], spark: Any = None, progress: Progress = quietly
) -> Iterator[B]:
    """What `work` returns for each piece, in their order; the first error ends it. `spark`: a session, or None."""
    results: Iterable[B]
    if spark is None or not pieces:
        results = map(work, pieces)
    else:
        results = (
            spark.sparkContext.parallelize(pieces, len(pieces))
            .map(work)
            .toLocalIterator(prefetchPartitions=True)
        )
    for number, result in enumerate(results, 1):
        progress(number, len(pieces))
        yield result
