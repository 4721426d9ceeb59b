"""The latest message of each key, over all of a topic's history, into a topic or into Parquet files.

1. *Which.* Each slice tells, for each key in it, the index of its latest message, and whether that is a delete (a null
   value); the latest of all slices is the key's. What remains is a list of message indexes for each slice, written down
   before a row is.
2. *Writing.* Each slice is read again, and of its rows those are written, by the rules of `run`: a kill at any moment
   adds nothing twice and loses nothing.

So nothing is shuffled, rows keep their order, and what was chosen does not change while it is written. The keys of one
partition have to fit into memory once: some 100 bytes for each.

As in Pulsar, each partition is compacted by itself (a key is in one partition, unless its producers chose otherwise),
and messages without a key are left out.
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
    """What one call has done. `messages` were looked at, `deleted` of their keys have a delete as their latest."""

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
    """Write the latest message of each key: into the topic that `target`, options of writing, names; without one as
    Parquet files into the directory, which in any case keeps how far it is.

    A directory is for one compaction: the same call on a finished one does nothing. Raises what reading and writing
    raise, and `InUse` while another job works in the directory.
    """
    options, root = _parsed(source), Path(directory)
    if target is not None:
        refuse(target, _DECIDED, "is not for compactions, which see to it that rows are written once")
    writes = None if target is None else sink.parse(target)
    if writes is not None and (writes.topic, writes.service_url) == (options.topics[0], options.service_url):
        raise ConfigurationError(
            f"{writes.topic} would be written into itself: give another topic to write to"
        )
    report = Compacted(options.topics[0], str(root) if writes is None else writes.topic)
    asked = {"source": dict(source), "target": None if target is None else dict(target), "compacts": True}
    if dry_run:
        report.resumed = run.load(root, asked) is not None
        report.slices_looked_at = len(_pieces(options))
        return report
    with state.alone(root, "job"):
        report.resumed = (root / "_quire" / "run.json").exists()
        now = run.begin(root, asked, "compact", lambda: _choose(root, options, spark, progress))
        for name, value in (state.load(root / "_quire" / "chosen.json") or {}).items():
            setattr(report, name, value)
        for partial_file in root.glob("_*.parquet.*"):
            partial_file.unlink(missing_ok=True)  # of a run that was killed
        if writes is not None:
            now.check_remembered()
        work = _to_files(root, options) if writes is None else _to_topic(writes, options, now.name)
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
        raise ConfigurationError("a compaction reads one topic: give the option topic")
    return replace(options, topics=tuple(topics), pattern=None)


# -- which -----------------------------------------------------------------------------------------------


class Latest:
    """Of each key of a partition the latest message; `place` is twice its index, and one more for a delete."""

    def __init__(self) -> None:
        self._tables: list[pa.Table] = []
        self._merged = 0

    def add(self, found: pa.Table) -> None:
        """Keys and places of a slice. They are merged when there are as many new ones as merged ones."""
        self._tables.append(found)
        if sum(map(len, self._tables)) > 2 * self._merged:
            self._tables = [latest_of(self._tables)]
            self._merged = len(self._tables[0])

    def places(self) -> Ints:
        """Of all keys, in order."""
        if not self._tables:
            return np.zeros(0, np.int64)
        found: Ints = np.sort(latest_of(self._tables)["place"].to_numpy())
        return found


def latest_of(tables: Sequence[pa.Table]) -> pa.Table:
    """Of each key the largest place."""
    found = pa.concat_tables(tables).group_by("key").aggregate([("place", "max")])
    return found.select(["key", "place_max"]).rename_columns(["key", "place"])


@dataclass
class Seen:
    """What one slice has: of each key the latest place, and how many messages."""

    keys: pa.Table | None
    messages: int
    without_key: int
    first: int
    last: int
    """Indexes of its messages."""


def look(options: Options, piece: Piece) -> Seen:
    """The latest of each key in one slice."""
    seen = Seen(None, 0, 0, -1, -1)
    latest = Latest()
    for batch in read_slice(piece.slice(), replace(options, columns=_CHOSEN)):
        index = batch.column("message_index")
        deletes = pc.cast(pc.is_null(batch.column("value")), pa.int64())
        rows = pa.table({"key": batch.column("key"), "place": pc.add(pc.multiply(index, 2), deletes)})
        keyed = rows.filter(pc.is_valid(rows["key"]))
        if len(keyed):
            latest.add(latest_of([keyed]))
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
    """The slices with messages to write; which these are is on disk before a slice is handed out."""
    pieces = _pieces(options)
    spans: list[tuple[Piece, int, int]] = []
    latest: dict[str, Latest] = {}
    counts = {"slices_looked_at": len(pieces), "messages": 0, "deleted": 0, "without_key": 0}
    for piece, seen in zip(pieces, over(partial(look, options), pieces, spark, progress), strict=True):
        counts["messages"] += seen.messages
        counts["without_key"] += seen.without_key
        if seen.keys is not None:
            latest.setdefault(piece.partition, Latest()).add(seen.keys)
            spans.append((piece, seen.first, seen.last))
    kept: dict[str, Ints] = {}
    for name, one in latest.items():
        places = one.places()
        kept[name] = places[places % 2 == 0] // 2
        counts["deleted"] += int((places % 2).sum())
    found = []
    for piece, first, last in spans:
        indexes = kept[piece.partition]
        ours = indexes[np.searchsorted(indexes, first) : np.searchsorted(indexes, last, side="right")]
        if len(ours):
            _store(_place(root, piece), ours)
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
"""A slice's number, the slice, and the indexes of the messages that are wanted of it."""


def rows_of(options: Options, columns: Sequence[str], one: Slice) -> Iterator[pa.RecordBatch]:
    """The rows that were chosen of a slice."""
    _, piece, indexes = one
    wanted = pa.array(indexes)
    for batch in read_slice(piece.slice(), replace(options, columns=_with_index(columns))):
        rows = batch.filter(pc.is_in(batch.column("message_index"), value_set=wanted))
        if rows.num_rows:
            yield rows.select(columns)


def _with_index(columns: Sequence[str]) -> tuple[str, ...]:
    return (*columns, *(["message_index"] if "message_index" not in columns else []))


def _to_topic(writes: Any, options: Options, name: str) -> Any:
    target = topic.prepare(writes)
    same = target.partitions == options.broker.partitions(options.topics[0])
    columns = ["key", "value", "properties", "event_time", *(["partition"] if same else [])]
    return partial(_write_topic, Writing(options, writes, target, name, None), columns)


def _write_topic(writing: Writing, columns: Sequence[str], one: Slice) -> Written:
    return write_slice(writing, one[0], rows_of(writing.options, columns, one))


def _to_files(root: Path, options: Options) -> Any:
    return partial(write_file, str(root), options)


def write_file(directory: str, options: Options, one: Slice) -> Written:
    """The Parquet file of a slice."""
    file = PartFile(Path(directory) / one[1].file, schema.arrow(schema.COLUMNS))
    try:
        for batch in rows_of(options, schema.COLUMNS, one):
            file.write(batch)
        return Written(file.rows, file.appear(), 0)
    finally:
        file.drop()
