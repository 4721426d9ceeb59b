"""A function over many slices, in this process or as tasks of a Spark session; `progress` hears of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final, NamedTuple, TypeVar

from quire.runtime.errors import ConfigurationError
from quire.spark_source.plan import ArchivedObject, Slice, origin_of
from quire.spark_source.positions import ENTRY_END, Window

A = TypeVar("A")
B = TypeVar("B")

WAVE: Final = 4
"""Tasks of one job for each core."""

Progress = Callable[[int, int], None]
"""Of how many slices how many are done."""


def quietly(done: int, of: int) -> None:
    """Nobody looks."""


class Piece(NamedTuple):
    """A slice, as it is in a job's files: JSON can hold it."""

    partition: str
    ledger_id: int
    first_entry: int
    end_entry: int
    first: Sequence[int]
    archived: Mapping[str, Any] | None
    end: Sequence[int] = (ENTRY_END, 0)
    start_ms: int | None = None
    end_ms: int | None = None

    @classmethod
    def of(cls, one: Slice) -> Piece:
        archived = None if one.archived is None else asdict(one.archived)
        place = one.origin.name, one.origin.ledger_id, one.first_entry, one.end_entry
        window = one.window
        return cls(*place, window.first, archived, window.end, window.start_ms, window.end_ms)

    def slice(self) -> Slice:
        window = Window(
            (self.first[0], self.first[1]), (self.end[0], self.end[1]), self.start_ms, self.end_ms
        )
        return Slice(
            origin=origin_of(self.partition, self.ledger_id),
            first_entry=self.first_entry,
            end_entry=self.end_entry,
            window=window.narrowed(self.first_entry, self.end_entry),
            archived=None if self.archived is None else ArchivedObject(**self.archived),
        )

    @property
    def file(self) -> str:
        number = origin_of(self.partition, self.ledger_id).partition
        return f"{max(number, 0)}-{self.ledger_id}-{self.first_entry}-{self.end_entry}.parquet"


def refuse(options: Mapping[str, str], names: Iterable[str], why: str) -> None:
    """Raise `ConfigurationError` where one of the options is not for a job."""
    for name in options:
        if name.lower() in names:
            raise ConfigurationError(f"option {name} {why}")


def over(
    work: Callable[[A], B], pieces: Sequence[A], spark: Any = None, progress: Progress = quietly
) -> Iterator[B]:
    """What `work` returns for each piece, in their order; the first error ends it. `spark`: a session, or None."""
    results: Iterable[B]
    if spark is None:
        results = map(work, pieces)
    else:
        results = (
            result
            for some in waves(pieces, spark)
            for result in spark.sparkContext.parallelize(some, len(some)).map(work).collect()
        )
    for number, result in enumerate(results, 1):
        progress(number, len(pieces))
        yield result


def waves(pieces: Sequence[A], spark: Any) -> Iterator[Sequence[A]]:
    """The pieces by as many as make a job of Spark: some for each core, so that few wait for the slowest one."""
    some = WAVE * spark.sparkContext.defaultParallelism
    for start in range(0, len(pieces), some):
        yield pieces[start : start + some]
