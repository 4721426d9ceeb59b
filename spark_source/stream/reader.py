"""Stream reader of Spark ([`DataSourceStreamReader`]): start, micro-batches and commits of a stream.

| Spark calls | implemented with |
|---|---|
| `initialOffset`: for a new query, and after a restart until the first commit | `start`, by `cursor` |
| `latestOffset(start, limit)`: at each trigger | `partitions`, `offsets.limited` |
| `prepareForTriggerAvailableNow`: the query ends at the present ends of the partitions | `partitions` |
| `partitions(start, end)`: the slices of a micro-batch, which a restart may repeat | `offsets` |
| `read`: in tasks | `task`, as for batches |
| `commit(end)`: when the next micro-batch begins, and so never for the last one | `cursor` |

All methods but `read` run in one Python process of the driver, which may be killed between any two steps. A micro-batch
is defined by its two offsets alone, and all other state can be requested again.

PySpark 4.0 and 4.1 call `latestOffset` without arguments, and before `initialOffset`. In this case `latestOffset`
creates the cursors; otherwise all partitions would count as added later. These versions have no limits ([SPARK-55304]),
and with the trigger "available now" they read everything in one micro-batch, which Spark commits in the query's next
run.

[`DataSourceStreamReader`]: https://spark.apache.org/docs/latest/api/python/reference/pyspark.sql/api/pyspark.sql.datasource.DataSourceStreamReader.html
[SPARK-55304]: https://issues.apache.org/jira/browse/SPARK-55304
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from quire.runtime.errors import ConfigurationError, NotFound
from quire.spark_source.cutting import tasks_of_stream
from quire.spark_source.options import Options
from quire.spark_source.plan import Slice, load_segments, report_loss
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
    """Reader of a query with `spark.readStream.format("quire")`."""

    def __init__(self, options: Options) -> None:
        if not HAS_LIMITS and (options.max_rows_per_trigger or options.max_bytes_per_trigger):
            raise ConfigurationError(
                "this version of PySpark has no limits for streams of Python data sources; use 4.2 or later, or omit "
                "max_rows_per_trigger and max_bytes_per_trigger"
            )
        self._options = options
        self._broker = options.broker
        self._topics = Partitions(options, self._broker)
        self._cursor = DurableCursor(options.stream_name, self._broker) if options.stream_name else None
        self._until: dict[str, Partition] | None = None
        """Partitions at the start of a query with the trigger "available now"."""
        self._latest: dict[str, Offset] = {}
        """Last result of `latestOffset`, for versions of Spark that do not pass the start of a micro-batch."""
        self._begun: set[str] = set()
        """Added partitions that have a cursor."""
        self._reported: set[str] = set()

    # -- offsets ---------------------------------------------------------------------------------------

    def initialOffset(self) -> Json:
        found = self._topics.refresh()
        self._check_start(found)
        begin = self._begin if self._cursor is None else self._begin_at_cursors
        self._latest = patiently(lambda: begin(found))
        return to_json(self._latest)

    def _check_start(self, found: Mapping[str, Partition]) -> None:
        by_position = self._options.start.position is not None
        if by_position and len(found) != 1 and not self._has_begun(found):
            raise ConfigurationError(
                f"start by position applies to one partition, but {len(found)} are read; use a time, or set one "
                "partition as the topic"
            )
        if not found and not self._options.starts_at_beginning:
            raise ConfigurationError(
                "no topic matches topics_pattern yet, so the stream has no start; a stream with start=earliest waits "
                "for topics"
            )

    def _has_begun(self, found: Mapping[str, Partition]) -> bool:
        """Return whether the stream began in an earlier run, possibly with fewer partitions than now."""
        cursor = self._cursor
        return cursor is not None and any(patiently(lambda name=name: cursor.start(name)) for name in found)  # type: ignore[misc]

    def _begin(self, found: Mapping[str, Partition]) -> dict[str, Offset]:
        return {name: resolve(one, self._options, self._broker) for name, one in found.items()}

    def _begin_at_cursors(self, found: Mapping[str, Partition]) -> dict[str, Offset]:
        assert self._cursor is not None
        return self._cursor.begin_all(found, lambda one: resolve(one, self._options, self._broker))

    def latestOffset(self, start: Json | None = None, limit: ReadLimit | None = None) -> Json:
        if start is None and not self._latest and self._cursor is not None:
            self.initialOffset()
        starts = dict(self._latest) if start is None else from_json(start)
        now = self._topics.refresh() if self._until is None else self._until
        self._report_deleted(starts.keys() - now.keys())
        for name in now.keys() - starts.keys():
            self._create_cursor(name)
        places = {name: one.place(starts.get(name, BEGINNING)) for name, one in now.items()}
        lossy = {name: at for name, at in places.items() if at.lost}
        for name in (
            lossy if start is not None else ()
        ):  # also if there are no new messages, because these would delay the report
            self._report_trimmed(name, starts.get(name, BEGINNING), lossy[name].offset.index)
        ends = limited(now, {name: at.offset.index for name, at in places.items()}, self._limits(limit))
        news = {name: at.offset for name, at in lossy.items()} | {
            name: patiently(lambda name=name, index=index: at_index(now[name], self._broker, index))  # type: ignore[misc]
            for name, index in ends.items()
        }
        if self._until is not None and not news:
            self.commit(to_json(starts))  # the query ends here, and Spark does not call `commit`
        self._latest = starts | news
        return to_json(self._latest)

    def _report_deleted(self, names: Iterable[str]) -> None:
        for name in names:
            self._lost(name, f"topic {name} was deleted with messages that the stream had not read")

    def _report_trimmed(self, name: str, start: Offset, first: int) -> None:
        """Report that the messages from `start` up to message `first` were trimmed."""
        self._lost(f"{name}@{first}", f"messages {start.index} to {first - 1} of {name} were trimmed unread")

    def _is_deleted(self, name: str) -> bool:
        try:
            patiently(lambda: self._broker.segments(name))
        except NotFound:
            return True
        return False

    def _create_cursor(self, name: str) -> None:
        """Create the cursor of a partition that was added after the start, so that it holds back retention."""
        if self._cursor is not None and name not in self._begun:
            cursor = self._cursor
            patiently(lambda: cursor.begin(name, BEGINNING))
            self._begun.add(name)

    def _limits(self, limit: ReadLimit | None) -> Limits:
        if limit is None or isinstance(limit, ReadAllAvailable):
            return Limits()
        return Limits(self._options.max_rows_per_trigger, self._options.max_bytes_per_trigger)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return one of the two limits. Spark only needs to know that there is a limit, and has no combined one."""
        if self._options.max_rows_per_trigger is not None:
            return ReadMaxRows(self._options.max_rows_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> Json:
        """Return the ends of the partitions as of their last refresh."""
        return to_json(self._topics.ends())

    def prepareForTriggerAvailableNow(self) -> None:
        self._until = self._topics.refresh()

    # -- micro-batches ---------------------------------------------------------------------------------

    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        """Plan a micro-batch. A partition that `end` lacks was added later, and belongs to the next micro-batch."""
        starts, ends = from_json(start), from_json(end)
        self._report_deleted(name for name in starts.keys() - ends.keys() if self._is_deleted(name))
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
            self._lost(
                name, f"messages {start.index} to {end.index - 1} of {name} were deleted with their topic"
            )
            return
        first, last = partition.place(start), partition.place(end)
        if first.lost:
            self._report_trimmed(name, start, min(partition.first_index, end.index))
        if not last.lost:
            yield from partition.between(first.offset, last.offset)

    def _described(self, name: str, end: Offset) -> Partition:
        """Return a snapshot of a partition that contains all messages up to `end`."""
        known = self._topics.known(name)
        if known is not None and known.end.index >= end.index:
            return known
        return patiently(lambda: partition_of(load_segments(name, self._broker), self._broker))

    def _lost(self, what: str, sentence: str) -> None:
        """Report the loss `what` once. Raises `NotFound` unless `on_data_loss=report`."""
        if what not in self._reported:
            self._reported.add(what)
            report_loss(sentence, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(partition.value, self._options)

    # -- commits ---------------------------------------------------------------------------------------

    def commit(self, end: Json) -> None:
        if self._cursor is not None:
            self._cursor.move(from_json(end))
