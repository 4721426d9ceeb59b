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
from quire.spark_source.broker import Broker
from quire.spark_source.chunks import Chunks
from quire.spark_source.compacted import LastOfKey
from quire.spark_source.decode import Decoder
from quire.spark_source.decrypting import decryptor_of
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
    reading = _Reading(options)
    if options.compacted:
        yield from reading.compacted(task)
        return
    for piece in task:
        for batch in reading.batches(piece, reading.needed(piece)):
            yield reading.finished(piece, batch)


def read_slice(piece: Slice, options: Options) -> Iterator[pa.RecordBatch]:
    """The rows of one slice. Raises `ConfigurationError` with `compacted`, which is of a whole partition."""
    if options.compacted:
        raise ConfigurationError("option compacted is for reading a topic with spark.read; leave it out here")
    return read_task((piece,), options)


class _Reading:
    """What the slices of a task have in common."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._broker = Broker(options.service_url)
        self._values: dict[str, Values] = {}
        self._decryptor = decryptor_of(options.crypto_key_dir)
        self._arrow = schema.arrow(options.columns)

    def needed(self, piece: Slice) -> tuple[str, ...]:
        """The columns that the decoder has to give for those of the user."""
        values = self._values_of(piece)
        return self._options.columns if values is None else values.columns

    def finished(self, piece: Slice, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch of at least the columns `needed`, as the user gets it."""
        values = self._values_of(piece)
        return batch.select(self._arrow.names) if values is None else values.typed(batch)

    def compacted(self, task: Sequence[Slice]) -> Iterator[pa.RecordBatch]:
        """See `compacted`; the slices are all of one partition's range."""
        last = LastOfKey()
        for piece in task:
            for batch in self.batches(piece, compacted.COLUMNS):
                last.note(batch)
        for piece in task:
            needed = dict.fromkeys((*self.needed(piece), "key", "message_index"))
            for batch in map(last.kept, self.batches(piece, tuple(needed))):
                if batch.num_rows:
                    yield self.finished(piece, batch)

    def batches(self, piece: Slice, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """These columns of a slice."""
        options, broker = self._options, self._broker
        decoder = Decoder(
            columns,
            piece.origin,
            piece.window,
            batch_rows=options.batch_rows,
            keep_raw=options.keep_raw,
            skip_lost=options.skip_lost,
            chunks=Chunks(piece, broker, options.archive, self._decryptor) if options.join_chunks else None,
            decryptor=self._decryptor,
        )
        try:
            for blocks in fetch.blocks(piece, broker, options.archive):
                yield from decoder.decode(blocks)
        except NotFound as error:
            report_loss(str(error), options)

    def _values_of(self, piece: Slice) -> Values | None:
        topic = piece.origin.topic
        if self._options.typed is not None and topic not in self._values:
            self._values[topic] = Values(self._options, topic, self._broker)
        return self._values.get(topic)
