"""What a task of a batch or of a stream does: its slices' blocks to record batches.

It runs in another process than the plan, on pickled slices, and keeps nothing. It is a generator: a LIMIT ends it with
GeneratorExit, and what it had begun to read ends with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from quire.runtime.errors import NotFound
from quire.spark_source import fetch
from quire.spark_source.broker import Broker
from quire.spark_source.chunks import Chunks
from quire.spark_source.decode import Decoder
from quire.spark_source.options import Options
from quire.spark_source.plan import Slice, report_loss
from quire.spark_source.values import Values


class QuirePartition(InputPartition):
    """One task's slices; none in the only partition of a plan that has nothing to read.

    Without any partition, versions of PySpark differ in what they give to `read`: None itself, or a partition of it.
    """

    def __init__(self, task: tuple[Slice, ...]) -> None:
        super().__init__(task)


def read_task(task: Sequence[Slice], options: Options) -> Iterator[pa.RecordBatch]:
    """The rows of one task's slices, one after the other."""
    broker = Broker(options.service_url)
    values: dict[str, Values] = {}
    for piece in task:
        topic = piece.origin.topic
        if options.value is not None and topic not in values:
            values[topic] = Values(options, topic, broker)
        yield from _read(piece, options, broker, values.get(topic))


def read_slice(piece: Slice, options: Options) -> Iterator[pa.RecordBatch]:
    """The rows of one slice."""
    return read_task((piece,), options)


def _read(piece: Slice, options: Options, broker: Broker, values: Values | None) -> Iterator[pa.RecordBatch]:
    decoder = Decoder(
        options.columns if values is None else values.columns,
        piece.origin,
        piece.window,
        batch_rows=options.batch_rows,
        keep_raw=options.keep_raw,
        skip_lost=options.skip_lost,
        chunks=Chunks(piece, broker, options.archive) if options.join_chunks else None,
    )
    try:
        for blocks in fetch.blocks(piece, broker, options.archive):
            batches = decoder.decode(blocks)
            yield from batches if values is None else map(values.typed, batches)
    except NotFound as error:
        report_loss(str(error), options)
