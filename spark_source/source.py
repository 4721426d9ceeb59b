"""What Spark calls: the data source and its reader.

Spark pickles the reader's plan to other processes, so nothing here is held open. `read` is a generator: a LIMIT ends it
with GeneratorExit, and what it had begun to read ends with it. There is no filter pushdown (PySpark 4.3's leaks a
pushed filter into other scans of the same DataFrame, silently); ranges and columns are options instead.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from quire.runtime.errors import ConfigurationError
from quire.spark_source import fetch, schema
from quire.spark_source.broker import Broker
from quire.spark_source.decode import Decoder
from quire.spark_source.options import Options, parse
from quire.spark_source.plan import Slice, plan


class QuireDataSource(DataSource):
    """`spark.read.format("quire")`; the options are those of `quire.spark_source.options`."""

    @classmethod
    def name(cls) -> str:
        return "quire"

    def schema(self) -> str:
        return schema.ddl(parse(self.options).columns)

    def reader(self, schema: StructType) -> QuireReader:
        options = parse(self.options)
        if tuple(schema.fieldNames()) != options.columns:
            raise ConfigurationError(
                f"format quire has the columns {', '.join(options.columns)}; choose among them with the option "
                "columns instead of a schema"
            )
        return QuireReader(options)


class QuirePartition(InputPartition):
    """One task's slice; None in the only partition of a plan that has nothing to read.

    Without any partition, versions of PySpark differ in what they give to `read`: None itself, or a partition of it.
    """

    def __init__(self, piece: Slice | None) -> None:
        super().__init__(piece)


class QuireReader(DataSourceReader):
    """Plans on the driver, reads on the executors."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def partitions(self) -> list[InputPartition]:
        pieces = plan(self.options, Broker(self.options.service_url))
        return [QuirePartition(piece) for piece in pieces] or [QuirePartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one slice; none where there is nothing to read."""
        piece: Slice | None = partition.value
        if piece is None:
            return
        options = self.options
        decoder = Decoder(
            options.columns,
            piece.origin,
            piece.window,
            batch_rows=options.batch_rows,
            keep_raw=options.keep_raw,
            skip_lost=options.skip_lost,
        )
        for blocks in fetch.blocks(piece, Broker(options.service_url), options.archive):
            yield from decoder.decode(blocks)
