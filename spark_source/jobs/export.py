"""A topic as Parquet files by date: every message once, and none twice, whenever the job is killed and started again.

    DIRECTORY/
        _quire/export.json                   up to where the topic has been exported: written when a run is complete
        _quire/run.json                      what the run under way copies: written before its first file
        _quire/lock                          held while an export works here
        date=2026-11-22/P-LEDGER-FIRST-END.parquet    rows of the entries [FIRST, END) of a segment, published that day

A run copies all that is between the last one's end and the topic's. Its plan is written first, and what it writes
is a function of the plan: each slice makes the same files with the same rows however often it is run. So a run that
was killed is finished by the next call, before that begins one of its own; what it had written is written over. A
file appears under its name when it is whole.

Other readers leave out names that begin with `_`: `spark.read.parquet(DIRECTORY)`, DuckDB's `**/*.parquet`, polars.
What they see while a run is under way is a part of it.

The directory is local or a mounted one: the lock and the renames need a file system.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from quire.runtime.errors import ConfigurationError
from quire.spark_source import schema
from quire.spark_source.jobs import state as files
from quire.spark_source.jobs.part_file import PartFile
from quire.spark_source.jobs.since import check_one_topic, since
from quire.spark_source.jobs.slices import Piece, Progress, over, quietly, refuse
from quire.spark_source.options import Options, for_batch
from quire.spark_source.positions import Position
from quire.spark_source.task import read_slice

VERSION: Final = 1
_KEPT: Final = ("starting_subscription", "start", "end", "compacted")
"""What the export decides itself."""


@dataclass
class Exported:
    """What one call has done. `resumed`: it first finished a run that had been killed."""

    topic: str
    directory: str
    rows: int = 0
    bytes: int = 0
    files: int = 0
    resumed: bool = False


def export(
    directory: str | Path,
    options: Mapping[str, str],
    *,
    spark: Any = None,
    dry_run: bool = False,
    progress: Progress = quietly,
) -> Exported:
    """Copy what the directory lacks of a topic. `options` are those of reading, without a start and an end.

    With a `spark` session its tasks write the files, into the same directory. Raises what reading raises, and `InUse`
    while another export works in the directory.
    """
    parsed = _parsed(options)
    root = Path(directory)
    if dry_run:
        return _dry_run(root, parsed)
    with files.alone(root, "export"):
        return _export(root, parsed, spark, progress)


def _parsed(options: Mapping[str, str]) -> Options:
    refuse(options, _KEPT, "is not for exports: each goes on where the one before ended")
    parsed = for_batch(options)
    check_one_topic(parsed, "directory")
    if not {"publish_time", "ledger", "entry"} <= {*parsed.columns}:
        raise ConfigurationError(
            "an export needs the columns ledger, entry and publish_time, which names the date"
        )
    return parsed


def _export(root: Path, options: Options, spark: Any, progress: Progress) -> Exported:
    done = Exported(options.topics[0], str(root))
    state = _state(root, done.topic)
    for partial_file in root.glob("date=*/_*"):
        partial_file.unlink(missing_ok=True)  # of a run that was killed
    run = files.load(root / "_quire" / "run.json")
    if run is not None and run["number"] > state["runs"]:
        done.resumed = True
        state = _finish(root, options, run, done, spark, progress)
    run = _plan(state, options)
    if run["pieces"]:
        files.store(root / "_quire" / "run.json", run)
        _finish(root, options, run, done, spark, progress)
    (root / "_quire" / "run.json").unlink(missing_ok=True)
    return done


def _dry_run(root: Path, options: Options) -> Exported:
    """What an export would copy, about: the bytes are those of the blocks, not of the files."""
    planned = Exported(options.topics[0], str(root))
    state = _state(root, planned.topic)
    run = files.load(root / "_quire" / "run.json")
    planned.resumed = run is not None and run["number"] > state["runs"]
    if planned.resumed:
        assert run is not None
        state = {**state, "ends": run["ends"]}
        planned.files = len(run["pieces"])
    planned.files += len(_plan(state, options)["pieces"])
    return planned


def _state(root: Path, topic: str) -> dict[str, Any]:
    state = files.load(root / "_quire" / "export.json") or {
        "version": VERSION,
        "topic": topic,
        "runs": 0,
        "ends": {},
        "rows": 0,
    }
    if state["topic"] != topic:
        raise ConfigurationError(
            f"{root} has an export of {state['topic']}: give another directory for {topic}"
        )
    if state["version"] != VERSION:
        raise ConfigurationError(f"{root} has an export of version {state['version']}; known is {VERSION}")
    return state


def _plan(state: Mapping[str, Any], options: Options) -> dict[str, Any]:
    """The next run: the pieces from where the last one ended to where each partition ends now."""
    ends = {name: Position(*end) for name, end in state["ends"].items()}
    found = since(ends, options)
    return {
        "number": state["runs"] + 1,
        "topic": found.topic,
        "ends": {name: list(end[:2]) for name, end in found.ends.items()},
        "pieces": [list(one) for one in found.pieces],
    }


def _finish(
    root: Path,
    options: Options,
    run: Mapping[str, Any],
    done: Exported,
    spark: Any,
    progress: Progress,
) -> dict[str, Any]:
    """Make the run's files, those that are there already included, and note that it is complete."""
    pieces = [Piece(*one) for one in run["pieces"]]
    rows = 0
    for written in over(partial(write_files, str(root), options), pieces, spark, progress):
        rows += sum(count for count, _ in written)
        done.files += len(written)
        done.bytes += sum(size for _, size in written)
    done.rows += rows
    state = _state(root, done.topic)
    state |= {"runs": run["number"], "ends": run["ends"], "rows": state["rows"] + rows}
    files.store(root / "_quire" / "export.json", state)
    return state


def write_files(directory: str, options: Options, piece: Piece) -> list[tuple[int, int]]:
    """The Parquet files of one slice; returns the rows and bytes of each."""
    found: dict[str, PartFile] = {}
    arrow = schema.arrow(options.columns)
    last: PartFile | None = None
    try:
        for batch in read_slice(piece.slice(), options):
            for date, rows in _by_date(batch):
                if date not in found:
                    found[date] = PartFile(Path(directory) / f"date={date}" / piece.file, arrow)
                if last is not None and last is not found[date]:
                    last.rest()
                last = found[date]
                last.write(rows)
        return [(one.rows, one.appear()) for one in found.values()]
    finally:
        for one in found.values():
            one.drop()


def _by_date(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each day, UTC, of their publish times; a raw entry has none and is of the day 1970-01-01."""
    times = batch.column(batch.schema.names.index("publish_time"))
    days = pc.fill_null(times.cast(pa.date32()), pa.scalar(0, pa.date32()))
    for day in pc.unique(days):
        rows = batch.filter(pc.equal(days, day))
        yield day.as_py().isoformat(), rows
