"""What a task of a batch or of a stream does: its slices' blocks to record batches.

It runs in another process than the plan, on pickled slices, and keeps nothing. It is a generator: a LIMIT ends it with
GeneratorExit, and what it had begun to read ends with it.
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
from quire.spark_source.options import Options
from quire.spark_source.plan import Slice, report_loss
from quire.spark_source.sidecar.choose import Span
from quire.spark_source.sidecar.read import steps
from quire.spark_source.values import Values


class QuirePartition(InputPartition):
    """One task's slices; none in the only partition of a plan that has nothing to read.

    Without any partition, versions of PySpark differ in what they give to `read`: None itself, or a partition of it.
    """

    def __init__(self, task: tuple[Slice, ...]) -> None:
        super().__init__(task)


def read_task(task: Sequence[Slice], options: Options) -> Iterator[pa.RecordBatch]:
    """The rows of one task's slices, one after the other."""
    reading = _Reading(options)
    if options.compacted:
        yield from reading.compacted(task)
        return
    for piece in task:
        yield from reading.rows(piece)


def read_slice(piece: Slice, options: Options) -> Iterator[pa.RecordBatch]:
    """The rows of one slice. Raises `ConfigurationError` with `compacted`, which is of a whole partition."""
    if options.compacted:
        raise ConfigurationError("option compacted is for reading a topic with spark.read; leave it out here")
    return read_task((piece,), options)


class _Reading:
    """What the slices of a task have in common."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._broker = options.broker
        self._values: dict[str, Values] = {}
        self._decryptor = decryptor_of(options.crypto_key_dir)
        self._arrow = schema.arrow(options.columns)

    def rows(self, piece: Slice) -> Iterator[pa.RecordBatch]:
        """The rows of a slice, from its sidecar as far as that has them."""
        columns, chunks = self._needed(piece), self._chunks_of(piece)
        for step in steps(piece, self._options):
            if isinstance(step, Span):
                for batch in self._decoded(piece.part(*step), columns, chunks):
                    yield from self._finished(piece, batch)
            else:
                yield step

    def compacted(self, task: Sequence[Slice]) -> Iterator[pa.RecordBatch]:
        """See `compacted`; the slices are all of one partition's range."""
        last = LastOfKey()
        for piece in task:
            for batch in self._decoded(piece, compacted.COLUMNS, self._chunks_of(piece)):
                last.note(batch)
        for piece in task:
            columns = tuple(dict.fromkeys((*self._needed(piece), "key", "message_index")))
            for batch in self._decoded(piece, columns, self._chunks_of(piece)):
                yield from self._finished(piece, last.kept(batch))

    def _needed(self, piece: Slice) -> tuple[str, ...]:
        """The columns that the decoder has to give for those of the user."""
        values = self._values_of(piece)
        columns = self._options.columns if values is None else values.columns
        return tuple(dict.fromkeys((*columns, *self._options.filter.columns)))

    def _decoded(
        self, piece: Slice, columns: Sequence[str], chunks: Chunks | None
    ) -> Iterator[pa.RecordBatch]:
        """These columns of a slice."""
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
        )
        try:
            for blocks in fetch.blocks(piece, self._broker, options.archive):
                yield from decoder.decode(blocks)
        except NotFound as error:
            report_loss(str(error), options)

    def _finished(self, piece: Slice, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """What the user gets of a batch with at least the columns `_needed`: never an empty one."""
        wanted = self._options.filter.wanted(batch)
        if wanted.num_rows:
            values = self._values_of(piece)
            yield wanted.select(self._arrow.names) if values is None else values.typed(wanted)

    def _chunks_of(self, piece: Slice) -> Chunks | None:
        if not self._options.join_chunks:
            return None
        return Chunks(piece, self._broker, self._options.archive, self._decryptor)

    def _values_of(self, piece: Slice) -> Values | None:
        topic = piece.origin.topic
        if self._options.typed is not None and topic not in self._values:
            self._values[topic] = Values(self._options, topic, self._broker)
        return self._values.get(topic)
