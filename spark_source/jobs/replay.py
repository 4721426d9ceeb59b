"""Replay of a topic's history, or a range of it, into another topic.

A filter may select rows, and an expression may set their keys. Every selected row is written once, even if the job is
killed and restarted (`run`). The sink regards each slice as a Spark task with the slice's number. The rows of a slice
depend only on the slice, the filter and the expression. Their division into entries does not depend on the rate of
writing.

Without Spark, slices are written one after the other, so each partition keeps its order. Spark tasks write slices
concurrently, and only the rows of one slice keep their order. Filters and expressions are Spark SQL over the columns of
`schema`, and need a Spark session.

    spark.range ─▶ read a slice ─▶ where ─▶ select key, value, … ─▶ write as slice number n       one task each
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from quire.runtime.errors import ConfigurationError
from quire.spark_source import cutting, schema
from quire.spark_source.jobs import run, state
from quire.spark_source.jobs.run import Routes, Run
from quire.spark_source.jobs.slices import Piece, Progress, quietly, refuse, waves
from quire.spark_source.options import Options, for_batch
from quire.spark_source.plan import plan, topics_of
from quire.spark_source.sink import options as sink
from quire.spark_source.sink import topic
from quire.spark_source.sink.options import SinkOptions
from quire.spark_source.sink.rows import check_columns
from quire.spark_source.sink.task import TaskPlan, Written
from quire.spark_source.sink.task import run as write
from quire.spark_source.sink.topic import Target
from quire.spark_source.task import read_slice
from quire.spark_source.values import ddl, with_value_schema

_KEPT: Final = ("columns", "chunks", "on_undecodable", "on_bad_value")
_DECIDED: Final = ("delivery", "producer_name", "epoch", "row_order")
_PLAIN: Final = ("key", "value", "properties", "event_time")
_DONE: Final = "number bigint, rows bigint, bytes bigint, repeated bigint"


@dataclass(frozen=True)
class Wanted:
    """Request for a replay. `source` contains options of reading, `target` options of writing."""

    source: Mapping[str, str]
    target: Mapping[str, str]
    where: str | None = None
    """Spark SQL condition that selects rows."""
    key: str | None = None
    """Spark SQL expression for new keys."""
    rows_per_second: float | None = None
    accept_copies: bool = False
    """Continue a run after a pause in which brokers may have forgotten its sequence ids."""

    @property
    def asked(self) -> dict[str, Any]:
        """All parameters that determine the rows and their entries."""
        return {
            "source": dict(self.source),
            "target": dict(self.target),
            "filter": self.where,
            "key": self.key,
        }


@dataclass
class Replayed:
    """Result of one call. `repeated` is the number of rows that an earlier call had already written."""

    source: str
    target: str
    slices: int = 0
    rows: int = 0
    bytes: int = 0
    repeated: int = 0
    resumed: bool = False
    slices_left: int = 0
    """Number of slices that a dry run would write."""


@dataclass(frozen=True)
class Writing:
    """Parameters for writing slices. They are pickled to the tasks."""

    options: Options
    sink: SinkOptions
    target: Target
    name: str
    routes: Routes
    rows_per_second: float | None = None


def replay(
    directory: str | Path,
    wanted: Wanted,
    *,
    spark: Any = None,
    dry_run: bool = False,
    progress: Progress = quietly,
) -> Replayed:
    """Write the selected rows to the target. `directory` records the progress.

    Raises the errors of reading and writing, and `InUse` while another job works in the directory.
    """
    options, writes = _parsed(wanted, spark)
    broker, root = options.broker, Path(directory)
    report = Replayed(options.topics[0], writes.topic)

    def pieces() -> Iterator[Piece]:
        return map(Piece.of, cutting.slices(plan(options, broker), options))

    if dry_run:
        found = run.load(root, wanted.asked)
        report.resumed = found is not None
        report.slices_left = len(found.todo if found else list(pieces()))
        return report
    options = with_value_schema(options, broker)
    if options.typed is not None and options.typed.key is not None:
        raise ConfigurationError("a replay cannot type the keys of pairs: use value_schema=none")
    if spark is not None:
        _rows(options, [], wanted, spark)  # raises for invalid expressions before the run begins
    target = topic.prepare(writes)
    same = target.partitions == broker.partitions(options.topics[0]) and not wanted.key
    routes_now = Routes(target.partitions, same)
    if options.typed is not None and options.typed.value.kind in ("AVRO", "JSON"):
        value = options.typed.value
        writes = replace(writes, schema_type=value.kind)
        target = target._replace(schema=topic.value_schema(writes, value.column.arrow))
    with state.lock_directory(root, "job"):
        report.resumed = (root / "_quire" / "run.json").exists()
        now = run.begin(root, wanted.asked, "replay", pieces, routes_now)
        if not wanted.accept_copies:
            now.check_remembered()
        routes = now.routes(routes_now)
        writing = Writing(options, writes, target, now.name, routes, wanted.rows_per_second)
        todo = now.todo
        results = _one_by_one(writing, todo) if spark is None else _side_by_side(writing, todo, wanted, spark)
        sum_up(report, now, results, progress)
    return report


def sum_up(report: Replayed, now: Run, results: Iterable[tuple[int, Written]], progress: Progress) -> None:
    """Record each slice in the run when its rows are written, and add its counts to `report`."""
    for number, written in results:
        now.finish(number, written.rows, written.bytes, written.repeated)
        report.slices += 1
        report.rows += written.rows
        report.bytes += written.bytes
        report.repeated += written.repeated
        progress(len(now.done), len(now.pieces))


def _parsed(wanted: Wanted, spark: Any) -> tuple[Options, SinkOptions]:
    refuse(wanted.source, _KEPT, "is not allowed for replays, which read whole messages")
    refuse(wanted.target, _DECIDED, "is not allowed for replays, which write each row once")
    if spark is None and (wanted.where or wanted.key):
        raise ConfigurationError(
            "a filter or an expression for keys is Spark SQL, which needs a Spark session (--master)"
        )
    if wanted.rows_per_second is not None and wanted.rows_per_second <= 0:
        raise ConfigurationError(f"rows_per_second={wanted.rows_per_second:g} is not greater than 0")
    options, writes = for_batch(wanted.source), sink.parse(wanted.target)
    topics = topics_of(options, options.broker)
    if len(topics) != 1:
        raise ConfigurationError("a replay reads one topic; set the option topic")
    if (topics[0], options.service_url) == (writes.topic, writes.service_url):
        raise ConfigurationError(f"source and target are the same topic, {writes.topic}; set another target")
    columns = _PLAIN if spark is None else schema.COLUMNS
    return replace(options, topics=tuple(topics), pattern=None, columns=columns), writes


# -- a slice's rows --------------------------------------------------------------------------------------


def _one_by_one(writing: Writing, todo: Sequence[tuple[int, Piece]]) -> Iterator[tuple[int, Written]]:
    options = writing.options
    if writing.routes.keeps_partition:
        options = replace(options, columns=(*_PLAIN, "partition"))
    for number, piece in todo:
        yield number, write_slice(writing, number, read_slice(piece.slice(), options))


def write_slice(writing: Writing, number: int, batches: Iterable[pa.RecordBatch]) -> Written:
    """Write the rows of slice `number` to the topic."""
    url = topic.publish_url(writing.sink, writing.target.partitions)
    routes = writing.routes.partitions
    task = TaskPlan(writing.sink, url, writing.target, number, writing.name, epoch=0, routes=routes)
    rate = writing.rows_per_second
    return write(task, batches if rate is None else paced(batches, rate))


def paced(batches: Iterable[pa.RecordBatch], rows_per_second: float) -> Iterator[pa.RecordBatch]:
    """Yield the rows, at most `rows_per_second` on average."""
    some = max(1, int(rows_per_second / 10))
    begun_s, rows = time.monotonic(), 0
    for batch in batches:
        for start in range(0, batch.num_rows, some):
            part = batch.slice(start, some)
            yield part
            rows += part.num_rows
            time.sleep(max(0.0, begun_s + rows / rows_per_second - time.monotonic()))


# -- with Spark ------------------------------------------------------------------------------------------


def _side_by_side(
    writing: Writing, todo: Sequence[tuple[int, Piece]], wanted: Wanted, spark: Any
) -> Iterator[tuple[int, Written]]:
    if writing.rows_per_second is not None:
        at_once = min(spark.sparkContext.defaultParallelism, max(1, len(todo)))
        writing = replace(writing, rows_per_second=writing.rows_per_second / at_once)
    for some in waves(todo, spark):
        rows = _rows(
            writing.options, some, wanted, spark, *(["partition"] if writing.routes.keeps_partition else [])
        )
        numbers = [number for number, _ in some]
        for done in rows.mapInArrow(partial(_write, writing, numbers), _DONE).collect():
            yield done.number, Written(done.rows, done.bytes, done.repeated)


def _rows(options: Options, some: Sequence[tuple[int, Piece]], wanted: Wanted, spark: Any, *more: str) -> Any:
    """Return a DataFrame with one partition per slice. Raises `ConfigurationError` for invalid expressions."""
    from pyspark.errors import PySparkException

    pieces = [piece for _, piece in some]
    numbers = spark.range(0, len(pieces), 1, max(1, len(pieces)))
    rows = numbers.mapInArrow(partial(_read, options, pieces), ddl(options))
    try:
        if wanted.where:
            rows = rows.where(wanted.where)
        rows = rows.selectExpr(
            *(f"({wanted.key}) AS key" if name == "key" and wanted.key else name for name in (*_PLAIN, *more))
        )
        columns = {one.name: one.dataType.simpleString() for one in rows.schema.fields}
    except PySparkException as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigurationError(
            f"the filter or the expression for keys is not valid Spark SQL: {reason}"
        ) from None
    check_columns(columns)
    return rows


def _read(
    options: Options, pieces: Sequence[Piece], numbers: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in numbers:
        for number in batch.column("id").to_pylist():
            yield from read_slice(pieces[number].slice(), options)


def _write(
    writing: Writing, numbers: Sequence[int], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    from pyspark import TaskContext

    task = TaskContext.get()
    assert task is not None
    number = numbers[task.partitionId()]
    written = write_slice(writing, number, batches)
    done = {"number": number, "rows": written.rows, "bytes": written.bytes, "repeated": written.repeated}
    yield pa.RecordBatch.from_pylist([done])
