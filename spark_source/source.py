"""What Spark calls: the data source and its reader; the reader of streams is `stream.reader`.

Spark pickles the reader's plan to other processes, so nothing here is held open. There is no filter pushdown (PySpark
4.3's leaks a pushed filter into other scans of the same DataFrame, silently); ranges and columns are options instead.
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
        return ddl(_whole(parse(self.options)))

    def reader(self, schema: StructType) -> QuireReader:
        return QuireReader(_fitting(for_batch(self.options), schema))

    def streamReader(self, schema: StructType) -> QuireStreamReader:
        return QuireStreamReader(_fitting(for_stream(self.options), schema))

    def writer(self, schema: StructType, overwrite: bool) -> QuireWriter:
        return QuireWriter(sink.parse(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> QuireStreamWriter:
        return QuireStreamWriter(sink.parse(self.options), schema, overwrite=overwrite)


def _whole(options: Options) -> Options:
    """With what the broker has to say to them."""
    return with_value_schema(options, options.broker)


def _fitting(options: Options, wanted: StructType) -> Options:
    """With what the broker has to say to them, which may have changed since Spark asked for the columns."""
    if tuple(wanted.fieldNames()) != options.columns:
        raise ConfigurationError(
            f"format quire has the columns {', '.join(options.columns)}; choose among them with the option "
            "columns instead of a schema"
        )
    options = _whole(options)
    typed = {} if options.typed is None else options.typed.parts
    for name, part in typed.items():
        if name in options.columns and wanted[name].dataType.simpleString() != part.column.spark:
            raise ConfigurationError(
                f"the schema of the topic's {name}s is not the one any more that the query was made with; load it "
                "anew, or name a version in value_schema"
            )
    return options


class QuireReader(DataSourceReader):
    """Plans on the driver, reads on the executors."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def partitions(self) -> list[InputPartition]:
        pieces = pruned(plan(self.options, self.options.broker), self.options)
        return [QuirePartition(task) for task in tasks(pieces, self.options)] or [QuirePartition(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task; none where there is nothing to read."""
        return read_task(partition.value, self.options)
