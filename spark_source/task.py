"""Tasks of batches and streams: from a task's slices to record batches.

A task runs in another process than planning, on pickled slices, and keeps no state. It is a generator: at a LIMIT,
Spark closes it, and the `GeneratorExit` also stops reading ahead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from quire.runtime.errors import ConfigurationError, NotFound
from quire.spark_source import compacted, fetch, schema
from quire.spark_source.chunks import Chunks
from quire.spark_source.compacted import LastOfKey
from quire.spark_source.decode import Decoder
from quire.spark_source.decrypting import decryptor_of
from quire.spark_source.filters import EVERYTHING, Filter
from quire.spark_source.options import Options
from quire.spark_source.plan import Slice, report_loss
from quire.spark_source.sidecar.choose import Span
from quire.spark_source.sidecar.read import steps
from quire.spark_source.values import Values


class QuirePartition(InputPartition):
    """Slices of one task, as Spark's partition.

    A plan with nothing to read has one partition without slices. Without any partition, some versions of PySpark would
    pass None to `read`, and others a partition of None.
    """

    def __init__(self, task: tuple[Slice, ...]) -> None:
        super().__init__(task)


def read_task(task: Sequence[Slice], options: Options) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task's slices, one after the other."""
    reading = _Reading(options)
    if options.compacted:
        yield from reading.compacted(task)
        return
    for piece in task:
        yield from reading.rows(piece)


def read_slice(piece: Slice, options: Options) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one slice. Raises `ConfigurationError` with `compacted`, which needs a whole partition."""
    if options.compacted:
        raise ConfigurationError("option compacted is for reading a topic with spark.read; omit it here")
    return read_task((piece,), options)


class _Reading:
    """State shared by the slices of a task."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._broker = options.broker
        self._values: dict[str, Values] = {}
        self._decryptor = decryptor_of(options.crypto_key_dir)
        self._arrow = schema.arrow(options.columns)

    def rows(self, piece: Slice) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a slice, from its sidecar where possible."""
        columns, chunks = self._needed(piece), self._chunks_of(piece)
        for step in steps(piece, self._options):
            if isinstance(step, Span):
                for batch in self._decoded(piece.part(*step), columns, chunks, self._options.filter):
                    yield from self._finished(piece, batch)
            else:
                yield step

    def compacted(self, task: Sequence[Slice]) -> Iterator[pa.RecordBatch]:
        """Yield the last row of each key, see `compacted`. `task` contains a partition's whole range."""
        last = LastOfKey()
        for piece in task:
            for batch in self._decoded(piece, compacted.COLUMNS, self._chunks_of(piece)):
                last.note(batch)
        for piece in task:
            columns = tuple(dict.fromkeys((*self._needed(piece), "key", "message_index")))
            for batch in self._decoded(piece, columns, self._chunks_of(piece), self._options.filter):
                yield from self._finished(piece, last.kept(batch))

    def _needed(self, piece: Slice) -> tuple[str, ...]:
        """Return the columns that the decoder must return to produce the user's columns."""
        values = self._values_of(piece)
        columns = self._options.columns if values is None else values.columns
        return tuple(dict.fromkeys((*columns, *self._options.filter.columns)))

    def _decoded(
        self, piece: Slice, columns: Sequence[str], chunks: Chunks | None, filter_: Filter = EVERYTHING
    ) -> Iterator[pa.RecordBatch]:
        """Decode these columns of a slice."""
        options = self._options
        decoder = Decoder(
            columns,
            piece.origin,
            piece.window,
            batch_rows=options.batch_rows,
            keep_raw=options.keep_raw,
            skip_lost=options.skip_lost,
            chunks=chunks,
            decryptor=self._decryptor,
            filter_=filter_,
        )
        try:
            for blocks in fetch.blocks(piece, self._broker, options.archive):
                yield from decoder.decode(blocks)
        except NotFound as error:
            report_loss(str(error), options)

    def _finished(self, piece: Slice, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the user's columns of a decoded batch, which has the columns `_needed`; nothing if it is empty."""
        if batch.num_rows:
            values = self._values_of(piece)
            yield batch.select(self._arrow.names) if values is None else values.typed(batch)

    def _chunks_of(self, piece: Slice) -> Chunks | None:
        if not self._options.join_chunks:
            return None
        return Chunks(piece, self._broker, self._options.archive, self._decryptor)

    def _values_of(self, piece: Slice) -> Values | None:
        topic = piece.origin.topic
        if self._options.typed is not None and topic not in self._values:
            self._values[topic] = Values(self._options, topic, self._broker)
        return self._values.get(topic)
