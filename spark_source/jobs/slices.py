"""Mapping of a function over many slices, in this process or in Spark tasks, with progress."""

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
"""Number of tasks for each core in one Spark job."""

Progress = Callable[[int, int], None]
"""Callback with the numbers of done slices and of all slices."""


def quietly(done: int, of: int) -> None:
    """Ignore the progress."""


class Piece(NamedTuple):
    """A slice in the format of a job's JSON files."""

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
    """Raise `ConfigurationError` if one of the options `names` is set, which the job does not allow."""
    for name in options:
        if name.lower() in names:
            raise ConfigurationError(f"option {name} {why}")


def over(
    work: Callable[[A], B], pieces: Sequence[A], spark: Any = None, progress: Progress = quietly
) -> Iterator[B]:
    """Yield the result of `work` for each piece, in order, up to the first error.

    `spark` is a session whose tasks do the work; without one, this process does it.
    """
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
    """Yield the pieces of each Spark job: several for each core, so that few cores idle until the slowest task ends."""
    some = WAVE * spark.sparkContext.defaultParallelism
    for start in range(0, len(pieces), some):
        yield pieces[start : start + some]
