"""Writers that Spark calls: on the driver they validate options and columns, in tasks they write rows.

Spark creates the writer on the driver, once for a batch and for each epoch of a stream, and pickles it to the tasks.
With PySpark 4.1 the writers extend [`DataSourceArrowWriter`], and Spark passes Arrow batches. PySpark 4.0 passes rows,
which are converted to batches here. A task reads its partition, and its stream's query and epoch, from Spark's
`TaskContext`.

[`DataSourceArrowWriter`]: https://spark.apache.org/docs/latest/api/python/reference/pyspark.sql/api/pyspark.sql.datasource.DataSourceArrowWriter.html
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from inspect import signature
from itertools import islice
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from quire.runtime.errors import ConfigurationError, QuireError
from quire.spark_source.sink.options import SinkOptions
from quire.spark_source.sink.rows import check_columns
from quire.spark_source.sink.task import TaskPlan, run
from quire.spark_source.sink.topic import Target, prepare, publish_url, value_schema

ROWS_AT_ONCE: Final = 1024

_QUERY: Final = "sql.streaming.queryId"
_EPOCH: Final = "streaming.sql.batchId"
"""Local properties that Spark sets in each task of a stream."""

_log = logging.getLogger(__name__)

_BatchWriter: Any = getattr(datasource, "DataSourceArrowWriter", datasource.DataSourceWriter)
_StreamWriter: Any = getattr(datasource, "DataSourceStreamArrowWriter", datasource.DataSourceStreamWriter)


@dataclass
class Commit(datasource.WriterCommitMessage):
    """Rows and bytes that a task has written. `repeated` is the number of rows that had been written before."""

    rows: int
    bytes: int
    repeated: int


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of Spark's schema; some versions of PySpark require the time zone, others reject it."""
    zone: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(schema, **zone)


def prepared(options: SinkOptions, columns: pa.Schema) -> Target:
    """Check that the topic can be written with the options and the column `value`, and return its state."""
    target = prepare(options) if options.topic else Target(0, None)
    kind = columns.field("value").type
    if pa.types.is_struct(kind):
        return target._replace(schema=value_schema(options, kind))
    if options.register_schema:
        raise ConfigurationError(
            f"option register_schema requires structs in the column value, which is {kind}: write struct(…) AS value"
        )
    return target


class _Writer:
    """Writer shared by batches and streams."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        types = {field.name: field.dataType.simpleString() for field in schema.fields}
        check_columns(types, names_topics=not options.topic)
        self.options = options
        self.schema = schema
        self.target = prepared(options, arrow_schema(schema))

    def _write(self, rows: Iterable[Any], name: str, epoch: int) -> Commit:
        options = self.options
        task = TaskContext.get()
        plan = TaskPlan(
            options,
            publish_url(options, self.target.partitions) if options.topic else "",
            self.target,
            task.partitionId() if task is not None else 0,
            name if options.exactly_once else "",
            epoch,
        )
        written = run(plan, _batches(rows, self.schema))
        return Commit(written.rows, written.bytes, written.repeated)

    def _say(self, what: str, messages: Sequence[Commit | None]) -> None:
        there = [one for one in messages if one is not None]
        _log.info(
            "topic %s %s: %d rows, %d bytes, %d of the rows had been written before",
            self.options.topic or "of each row",
            what,
            sum(one.rows for one in there),
            sum(one.bytes for one in there),
            sum(one.repeated for one in there),
        )


class QuireWriter(_Writer, _BatchWriter):  # type: ignore[misc]
    """Writer of a batch. Rows are visible when they are written: `commit` and `abort` only log."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise ConfigurationError(
                "format quire only appends, because a topic is a log: use mode('append'); to replace the rows, delete "
                f"the topic (quire topics delete {options.topic}), or write another one"
            )
        super().__init__(options, schema)
        self.name = options.producer_name or f"spark-{uuid4()}"

    def write(self, iterator: Iterator[Any]) -> Commit:
        return self._write(iterator, self.name, self.options.epoch)

    def commit(self, messages: list[Any]) -> None:
        self._say("is written", messages)

    def abort(self, messages: list[Any]) -> None:
        self._say("is partly written", messages)


class QuireStreamWriter(_Writer, _StreamWriter):  # type: ignore[misc]
    """Writer of one epoch of a stream."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise ConfigurationError(
                "format quire only appends, because a topic is a log: use outputMode('append') or outputMode('update')"
            )
        super().__init__(options, schema)

    def write(self, iterator: Iterator[Any]) -> Commit:
        query, epoch = _of_task(_QUERY), _of_task(_EPOCH)
        if self.options.exactly_once and not (query and epoch):
            raise QuireError(
                "this version of Spark does not pass query and epoch to its tasks, so rows cannot be written exactly "
                "once: write delivery=at_least_once"
            )
        return self._write(iterator, self.options.producer_name or f"spark-{query}", int(epoch or 0))

    def commit(self, messages: list[Any], batchId: int) -> None:
        self._say(f"has epoch {batchId}", messages)

    def abort(self, messages: list[Any], batchId: int) -> None:
        self._say(f"has a part of epoch {batchId}", messages)


def _of_task(key: str) -> str | None:
    task = TaskContext.get()
    return None if task is None else task.getLocalProperty(key)


def _batches(rows: Iterable[Any], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield record batches unchanged, and rows as record batches."""
    rest = iter(rows)
    for first in rest:
        if isinstance(first, pa.RecordBatch):
            yield first
            continue
        some = [first, *islice(rest, ROWS_AT_ONCE - 1)]
        yield pa.RecordBatch.from_pylist([one.asDict() for one in some], arrow_schema(schema))
