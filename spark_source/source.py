"""Data source of Spark and its batch reader; the stream reader is in `stream.reader`.

The classes extend PySpark's [`DataSource`] and [`DataSourceReader`]. Spark pickles the reader's plan to other
processes, so nothing here is kept open. `pushFilters` ([SPARK-51271]) is not implemented: PySpark 4.3 silently applies
a pushed filter to other scans of the same DataFrame, too. Ranges and columns are options instead.

[`DataSource`]: https://spark.apache.org/docs/latest/api/python/reference/pyspark.sql/api/pyspark.sql.datasource.DataSource.html
[`DataSourceReader`]: https://spark.apache.org/docs/latest/api/python/reference/pyspark.sql/api/pyspark.sql.datasource.DataSourceReader.html
[SPARK-51271]: https://issues.apache.org/jira/browse/SPARK-51271
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from quire.runtime.errors import ConfigurationError
from quire.spark_source.cutting import tasks
from quire.spark_source.options import Options, for_batch, for_stream, parse
from quire.spark_source.plan import plan
from quire.spark_source.sidecar.prune import pruned
from quire.spark_source.sink import options as sink
from quire.spark_source.sink.writer import QuireStreamWriter, QuireWriter
from quire.spark_source.stream.reader import QuireStreamReader
from quire.spark_source.task import QuirePartition, read_task
from quire.spark_source.values import ddl, with_value_schema


class QuireDataSource(DataSource):
    """`spark.read.format("quire")` with the options of `quire.spark_source.options`, `write` with `sink.options`."""

    @classmethod
    def name(cls) -> str:
        return "quire"

    def schema(self) -> str:
        return ddl(_resolved(parse(self.options)))

    def reader(self, schema: StructType) -> QuireReader:
        return QuireReader(_checked(for_batch(self.options), schema))

    def streamReader(self, schema: StructType) -> QuireStreamReader:
        return QuireStreamReader(_checked(for_stream(self.options), schema))

    def writer(self, schema: StructType, overwrite: bool) -> QuireWriter:
        return QuireWriter(sink.parse(self.options, rows_name_topics=True), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> QuireStreamWriter:
        return QuireStreamWriter(sink.parse(self.options, rows_name_topics=True), schema, overwrite=overwrite)


def _resolved(options: Options) -> Options:
    """Request the schema of the values from the broker, and return the options with it."""
    return with_value_schema(options, options.broker)


def _checked(options: Options, wanted: StructType) -> Options:
    """Return `_resolved(options)`. Raises `ConfigurationError` if the schema has changed since Spark read it."""
    if tuple(wanted.fieldNames()) != options.columns:
        raise ConfigurationError(
            f"format quire has the columns {', '.join(options.columns)}; choose among them with the option "
            "columns instead of a schema"
        )
    options = _resolved(options)
    typed = {} if options.typed is None else options.typed.parts
    for name, part in typed.items():
        if name in options.columns and wanted[name].dataType.simpleString() != part.column.spark:
            raise ConfigurationError(
                f"the schema of the topic's {name}s has changed since the query was created; load it again, or set "
                "a version in value_schema"
            )
    return options


class QuireReader(DataSourceReader):
    """Reader of batches: it plans on the driver, and reads on the executors."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def partitions(self) -> list[InputPartition]:
        pieces = pruned(plan(self.options, self.options.broker), self.options)
        return [QuirePartition(task) for task in tasks(pieces, self.options)] or [QuirePartition(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task, if any."""
        return read_task(partition.value, self.options)
