"""Job that writes the latest message of each key of a topic's whole history into a topic or into Parquet files.

1. *Choosing.* Each slice returns, for each of its keys, the index of the latest message, and whether that message is a
   tombstone (a null or an empty value, as for brokers). The driver chooses the latest message over all slices. The
   result is a list of message indexes for each slice, which is recorded before the first row is written.
2. *Writing.* Each slice is read again, and its chosen rows are written by the rules of `run`: a kill at any moment
   duplicates nothing and loses nothing.

So no rows are shuffled, rows keep their order, and the choice does not change during writing. All keys of one partition
must fit into the driver's memory: some 100 bytes for each key.

As in Pulsar, each partition is compacted separately (usually, all messages of a key are in one partition), and messages
without a key, or with an empty one, are omitted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quire.runtime.errors import ConfigurationError
from quire.spark_source import cutting, schema
from quire.spark_source.jobs import run, state
from quire.spark_source.jobs.part_file import PartFile
from quire.spark_source.jobs.replay import Writing, write_slice
from quire.spark_source.jobs.run import Routes
from quire.spark_source.jobs.slices import Piece, Progress, over, quietly, refuse, waves
from quire.spark_source.options import Options, for_batch
from quire.spark_source.plan import plan, topics_of
from quire.spark_source.protobuf import Ints
from quire.spark_source.sink import options as sink
from quire.spark_source.sink import topic
from quire.spark_source.sink.task import Written
from quire.spark_source.task import read_slice

_KEPT: Final = ("columns", "chunks", "on_undecodable", "value_schema", "on_bad_value")
_DECIDED: Final = ("delivery", "producer_name", "epoch", "row_order")
_CHOSEN: Final = ("key", "value", "message_index")


@dataclass
class Compacted:
    """Result of one call.

    `messages` counts the read messages, `deleted` the keys whose latest message is a tombstone.
    """

    source: str
    target: str
    slices_looked_at: int = 0
    messages: int = 0
    deleted: int = 0
    without_key: int = 0
    slices: int = 0
    rows: int = 0
    bytes: int = 0
    repeated: int = 0
    resumed: bool = False


def compact(
    directory: str | Path,
    source: Mapping[str, str],
    target: Mapping[str, str] | None = None,
    *,
    spark: Any = None,
    dry_run: bool = False,
    progress: Progress = quietly,
) -> Compacted:
    """Write the latest message of each key to the topic of `target`, or else to Parquet files in the directory.

    `target` contains options of writing. The directory also contains the progress. A directory is used for one
    compaction: if that is complete, the same call does nothing. Raises the errors of reading and writing, and `InUse`
    while another job works in the directory.
    """
    options, root = _parsed(source), Path(directory)
    if target is not None:
        refuse(target, _DECIDED, "is not for compactions, which write each row once")
    writes = None if target is None else sink.parse(target)
    if writes is not None and (writes.topic, writes.service_url) == (options.topics[0], options.service_url):
        raise ConfigurationError(f"source and target are the same topic, {writes.topic}; set another target")
    report = Compacted(options.topics[0], str(root) if writes is None else writes.topic)
    asked = {"source": dict(source), "target": None if target is None else dict(target), "compacts": True}
    if dry_run:
        report.resumed = run.load(root, asked) is not None
        report.slices_looked_at = len(_pieces(options))
        return report
    target_now = None if writes is None else topic.prepare(writes)
    routes_now = None
    if target_now is not None:
        same = target_now.partitions == options.broker.partitions(options.topics[0])
        routes_now = Routes(target_now.partitions, same)
    with state.lock_directory(root, "job"):
        report.resumed = (root / "_quire" / "run.json").exists()
        now = run.begin(root, asked, "compact", lambda: _choose(root, options, spark, progress), routes_now)
        for name, value in (state.load(root / "_quire" / "chosen.json") or {}).items():
            setattr(report, name, value)
        for partial_file in root.glob("_*.parquet.*"):
            partial_file.unlink(missing_ok=True)  # left behind by a run that was killed
        if writes is None or target_now is None or routes_now is None:
            work = _to_files(root, options)
        else:
            now.check_remembered()
            work = _to_topic(Writing(options, writes, target_now, now.name, now.routes(routes_now)))
        todo = now.todo
        for some in [todo] if spark is None else waves(todo, spark):
            lazily = ((number, piece, _chosen(root, piece)) for number, piece in some)
            results = map(work, lazily) if spark is None else over(work, list(lazily), spark)
            for (number, _), written in zip(some, results, strict=True):
                now.finish(number, written.rows, written.bytes, written.repeated)
                report.slices += 1
                report.rows += written.rows
                report.bytes += written.bytes
                report.repeated += written.repeated
                progress(len(now.done), len(now.pieces))
    return report


def _parsed(source: Mapping[str, str]) -> Options:
    refuse(source, _KEPT, "is not for compactions, which read whole messages")
    options = for_batch(source)
    topics = topics_of(options, options.broker)
    if len(topics) != 1:
        raise ConfigurationError("a compaction reads one topic; set the option topic")
    return replace(options, topics=tuple(topics), pattern=None)


# -- choosing --------------------------------------------------------------------------------------------


class Latest:
    """Latest message of each key of a partition; `place` is twice its index, plus 1 for a tombstone."""

    def __init__(self) -> None:
        self._tables: list[pa.Table] = []
        self._merged = 0

    def add_table(self, found: pa.Table) -> None:
        """Add keys and places. All are merged when there are as many new rows as merged ones."""
        self._tables.append(found)
        if sum(map(len, self._tables)) > 2 * self._merged:
            self._tables = [latest_of(self._tables)]
            self._merged = len(self._tables[0])

    def places(self) -> Ints:
        """Return the places of all keys, in order."""
        if not self._tables:
            return np.zeros(0, np.int64)
        found: Ints = np.sort(latest_of(self._tables)["place"].to_numpy())
        return found


def latest_of(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the greatest place of each key."""
    found = pa.concat_tables(tables).group_by("key").aggregate([("place", "max")])
    return found.select(["key", "place_max"]).rename_columns(["key", "place"])


@dataclass
class SliceKeys:
    """Latest place of each key in one slice, and the slice's counts of messages."""

    keys: pa.Table | None
    messages: int
    without_key: int
    first: int
    """Index of the slice's first message; -1 if it has no messages."""
    last: int
    """Index of the slice's last message; -1 if it has no messages."""


def find_keys(options: Options, piece: Piece) -> SliceKeys:
    """Find the latest message of each key in one slice."""
    seen = SliceKeys(None, 0, 0, -1, -1)
    latest = Latest()
    for batch in read_slice(piece.slice(), replace(options, columns=_CHOSEN)):
        index = batch.column("message_index")
        length = pc.fill_null(pc.binary_length(batch.column("value")), 0)
        deletes = pc.cast(pc.equal(length, 0), pa.int64())
        rows = pa.table({"key": batch.column("key"), "place": pc.add(pc.multiply(index, 2), deletes)})
        keyed = rows.filter(pc.greater(pc.fill_null(pc.binary_length(rows["key"]), 0), 0))
        if len(keyed):
            latest.add_table(latest_of([keyed]))
        seen.messages += len(rows)
        seen.without_key += len(rows) - len(keyed)
        seen.first = index[0].as_py() if seen.first < 0 else seen.first
        seen.last = index[len(index) - 1].as_py()
    if seen.messages > seen.without_key:
        seen.keys = latest_of(latest._tables)
    return seen


def _pieces(options: Options) -> list[Piece]:
    return [Piece.of(one) for one in cutting.slices(plan(options, options.broker), options)]


def _choose(root: Path, options: Options, spark: Any, progress: Progress) -> Iterator[Piece]:
    """Choose the messages to write, store their indexes, and return the slices that contain them."""
    pieces = _pieces(options)
    spans: list[tuple[Piece, int, int]] = []
    latest: dict[str, Latest] = {}
    counts = {"slices_looked_at": len(pieces), "messages": 0, "deleted": 0, "without_key": 0}
    for piece, seen in zip(pieces, over(partial(find_keys, options), pieces, spark, progress), strict=True):
        counts["messages"] += seen.messages
        counts["without_key"] += seen.without_key
        if seen.keys is not None:
            latest.setdefault(piece.partition, Latest()).add_table(seen.keys)
            spans.append((piece, seen.first, seen.last))
    kept: dict[str, Ints] = {}
    for name, one in latest.items():
        places = one.places()
        kept[name] = places[places % 2 == 0] // 2
        counts["deleted"] += int((places % 2).sum())
    found = []
    for piece, first, last in spans:
        indexes = kept[piece.partition]
        chosen = indexes[np.searchsorted(indexes, first) : np.searchsorted(indexes, last, side="right")]
        if len(chosen):
            _store(_place(root, piece), chosen)
            found.append(piece)
    state.store(root / "_quire" / "chosen.json", counts)
    return iter(found)


def _place(root: Path, piece: Piece) -> Path:
    return root / "_quire" / "chosen" / f"{piece.file.removesuffix('.parquet')}.npy"


def _store(path: Path, indexes: Ints) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        np.save(file, indexes)
        file.flush()
        os.fsync(file.fileno())
    state.sync_directory(path.parent)


def _chosen(root: Path, piece: Piece) -> Ints:
    found: Ints = np.load(_place(root, piece))
    return found


# -- writing ---------------------------------------------------------------------------------------------

Slice = tuple[int, Piece, Ints]
"""Number of a slice, the slice, and the indexes of its chosen messages."""


def rows_of(options: Options, columns: Sequence[str], one: Slice) -> Iterator[pa.RecordBatch]:
    """Yield the chosen rows of a slice."""
    _, piece, indexes = one
    wanted = pa.array(indexes)
    for batch in read_slice(piece.slice(), replace(options, columns=_with_index(columns))):
        rows = batch.filter(pc.is_in(batch.column("message_index"), value_set=wanted))
        if rows.num_rows:
            yield rows.select(columns)


def _with_index(columns: Sequence[str]) -> tuple[str, ...]:
    return (*columns, *(["message_index"] if "message_index" not in columns else []))


def _to_topic(writing: Writing) -> Any:
    same = writing.routes.keeps_partition
    columns = ["key", "value", "properties", "event_time", *(["partition"] if same else [])]
    return partial(_write_topic, writing, columns)


def _write_topic(writing: Writing, columns: Sequence[str], one: Slice) -> Written:
    return write_slice(writing, one[0], rows_of(writing.options, columns, one))


def _to_files(root: Path, options: Options) -> Any:
    return partial(write_file, str(root), options)


def write_file(directory: str, options: Options, one: Slice) -> Written:
    """Write the chosen rows of a slice to its Parquet file."""
    file = PartFile(Path(directory) / one[1].file, schema.arrow(schema.COLUMNS))
    try:
        for batch in rows_of(options, schema.COLUMNS, one):
            file.write(batch)
        return Written(file.rows, file.publish(), 0)
    finally:
        file.discard()
