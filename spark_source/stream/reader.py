"""What Spark asks a stream: where it begins, how far it may read, which slices that is; and what is done.

| Spark calls | which asks |
|---|---|
| `initialOffset`: a new query, and a restarted one whose first micro-batch was not committed | `start`, by `cursor` |
| `latestOffset(start, limit)`: each trigger | `partitions`, `offsets.limited` |
| `prepareForTriggerAvailableNow`: what is there now is the end of the query | `partitions` |
| `partitions(start, end)`: the slices of a micro-batch, also of one that is done again after a restart | `offsets` |
| `read`: in tasks | as a batch's |
| `commit(end)`: one micro-batch late, and never for the last one | `cursor` |

All but `read` happen in one process beside the driver. What happens there may be cut off between any two steps: a
micro-batch is what its two offsets say, whoever asks again, and everything else can be asked anew.

PySpark 4.0 and 4.1 call `latestOffset` without arguments, and before `initialOffset`. So it makes the cursors itself
where it was told no start, or they would all be taken for partitions that were added. There are no limits with them,
and a trigger "available now" reads everything in one micro-batch, which Spark commits with the query's next run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from quire.runtime.errors import ConfigurationError, NotFound
from quire.spark_source.cutting import tasks_of_stream
from quire.spark_source.options import Options
from quire.spark_source.plan import Slice, report_loss, whole
from quire.spark_source.stream.cursor import DurableCursor
from quire.spark_source.stream.offsets import (
    BEGINNING,
    Limits,
    Offset,
    Partition,
    from_json,
    limited,
    to_json,
)
from quire.spark_source.stream.partitions import Partitions, partition_of, patiently
from quire.spark_source.stream.start import at_index, resolve
from quire.spark_source.task import QuirePartition, read_task

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # PySpark before 4.2
    SupportsTriggerAvailableNow = object  # type: ignore[assignment,misc]

HAS_LIMITS: Final = hasattr(DataSourceStreamReader, "getDefaultReadLimit")

Json = dict[str, Any]


class QuireStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Of a query with `spark.readStream.format("quire")`."""

    def __init__(self, options: Options) -> None:
        if not HAS_LIMITS and (options.max_rows_per_trigger or options.max_bytes_per_trigger):
            raise ConfigurationError(
                "this version of PySpark has no limits for streams of Python data sources; use 4.2 or later, or leave "
                "out max_rows_per_trigger and max_bytes_per_trigger"
            )
        self._options = options
        self._broker = options.broker
        self._topics = Partitions(options, self._broker)
        self._cursor = DurableCursor(options.stream_name, self._broker) if options.stream_name else None
        self._until: dict[str, Partition] | None = None
        """What was there when a query began that reads what is available now."""
        self._latest: dict[str, Offset] = {}
        """What was answered last, for versions of Spark that do not say where a micro-batch begins."""
        self._begun: set[str] = set()
        """The partitions added meanwhile that have a cursor."""
        self._reported: set[str] = set()

    # -- offsets ---------------------------------------------------------------------------------------

    def initialOffset(self) -> Json:
        found = self._topics.look()
        self._check_start(found)
        begin = self._begin if self._cursor is None else self._begin_at_cursors
        self._latest = patiently(lambda: begin(found))
        return to_json(self._latest)

    def _check_start(self, found: Mapping[str, Partition]) -> None:
        if self._options.start.position is not None and len(found) != 1:
            raise ConfigurationError(
                f"start by position names a place in one partition, but {len(found)} are read; use a time, or name "
                "the partition"
            )
        if not found and not self._options.starts_at_beginning:
            raise ConfigurationError(
                "no topic matches topics_pattern yet, so there is nothing to begin at; a stream with start=earliest "
                "waits for topics"
            )

    def _begin(self, found: Mapping[str, Partition]) -> dict[str, Offset]:
        return {name: resolve(one, self._options, self._broker) for name, one in found.items()}

    def _begin_at_cursors(self, found: Mapping[str, Partition]) -> dict[str, Offset]:
        assert self._cursor is not None
        return self._cursor.begin_all(found, lambda one: resolve(one, self._options, self._broker))

    def latestOffset(self, start: Json | None = None, limit: ReadLimit | None = None) -> Json:
        if start is None and not self._latest and self._cursor is not None:
            self.initialOffset()
        starts = dict(self._latest) if start is None else from_json(start)
        now = self._topics.look() if self._until is None else self._until
        self._gone(starts.keys() - now.keys())
        for name in now.keys() - starts.keys():
            self._added(name)
        places = {name: one.place(starts.get(name, BEGINNING)).offset for name, one in now.items()}
        ends = limited(now, {name: at.index for name, at in places.items()}, self._limits(limit))
        news = {
            name: patiently(lambda name=name, index=index: at_index(now[name], self._broker, index))  # type: ignore[misc]
            for name, index in ends.items()
        }
        if self._until is not None and not news:
            self.commit(to_json(starts))  # the query ends here, and Spark does not say so
        self._latest = starts | news
        return to_json(self._latest)

    def _gone(self, names: set[str]) -> None:
        for name in names:
            self._lost(name, f"topic {name} is gone, with what the stream had not read of it")

    def _added(self, name: str) -> None:
        """A partition that was not there when the stream began: retention is to leave it alone from now on."""
        if self._cursor is not None and name not in self._begun:
            cursor = self._cursor
            patiently(lambda: cursor.begin(name, BEGINNING))
            self._begun.add(name)

    def _limits(self, limit: ReadLimit | None) -> Limits:
        if limit is None or isinstance(limit, ReadAllAvailable):
            return Limits()
        return Limits(self._options.max_rows_per_trigger, self._options.max_bytes_per_trigger)

    def getDefaultReadLimit(self) -> ReadLimit:
        """One of the two, since there is none for both: that there is a limit is all that counts."""
        if self._options.max_rows_per_trigger is not None:
            return ReadMaxRows(self._options.max_rows_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> Json:
        """Where the partitions ended when they were looked at last."""
        return to_json(self._topics.ends())

    def prepareForTriggerAvailableNow(self) -> None:
        self._until = self._topics.look()

    # -- micro-batches ---------------------------------------------------------------------------------

    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        starts, ends = from_json(start), from_json(end)
        self._gone(starts.keys() - ends.keys())
        found = [
            task
            for name, to in ends.items()
            for task in tasks_of_stream(
                list(self._between(name, starts.get(name, BEGINNING), to)), self._options.slice_bytes
            )
        ]
        return [QuirePartition(task) for task in found] or [QuirePartition(())]

    def _between(self, name: str, start: Offset, end: Offset) -> Iterator[Slice]:
        if start.index >= end.index:
            return
        try:
            partition = self._described(name, end)
        except NotFound:
            self._lost(name, f"messages {start.index} to {end.index - 1} of {name} are gone with their topic")
            return
        first, last = partition.place(start), partition.place(end)
        if first.lost:
            gone = min(partition.first_index, end.index) - 1
            self._lost(f"{name}@{gone}", f"messages {start.index} to {gone} of {name} were trimmed unread")
        if not last.lost:
            yield from partition.between(first.offset, last.offset)

    def _described(self, name: str, end: Offset) -> Partition:
        """A partition, as it was at a moment when it had everything up to `end`."""
        known = self._topics.known(name)
        if known is not None and known.end.index >= end.index:
            return known
        return patiently(lambda: partition_of(whole(name, self._broker), self._broker))

    def _lost(self, what: str, sentence: str) -> None:
        """Raises `NotFound` unless losses are only reported, each once."""
        if what not in self._reported:
            self._reported.add(what)
            report_loss(sentence, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(partition.value, self._options)

    # -- what is done ----------------------------------------------------------------------------------

    def commit(self, end: Json) -> None:
        if self._cursor is not None:
            self._cursor.move(from_json(end))
