"""Export of a topic to Parquet files by date: every message exactly once, even if the job is killed and restarted.

    DIRECTORY/
        _quire/export.json                   the ends of the exported ranges; written when a run is complete
        _quire/run.json                      the plan of the current run; written before the run's first file
        _quire/lock                          locked while an export works here
        date=2026-11-22/P-LEDGER-FIRST-END.parquet    rows of the entries [FIRST, END) of a segment, published that day

A run copies the messages between the end of the last run and the end of the topic. Its plan is written first, and
determines its files: each slice produces the same files with the same rows whenever it is repeated. If a run was
killed, the next call first finishes it, overwriting its files, and then begins a new run. A file gets its final name
only when it is complete.

Other readers ignore names that begin with `_`: `spark.read.parquet(DIRECTORY)`, DuckDB's `**/*.parquet`, polars. During
a run, they see a part of its files. The directory must be in a file system, for the lock and the renames.
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
from quire.spark_source.jobs.since import End, check_one_topic, since
from quire.spark_source.jobs.slices import Piece, Progress, over, quietly, refuse
from quire.spark_source.options import Options, for_batch
from quire.spark_source.task import read_slice

VERSION: Final = 1
_KEPT: Final = ("starting_subscription", "start", "end", "compacted")
"""Options that a user may not set, because an export sets them itself."""


@dataclass
class Exported:
    """Result of one call. `resumed` is true if the call first finished a run that had been killed."""

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
    """Copy the messages of a topic that the directory lacks. `options` are reading options, without start and end.

    With a `spark` session, its tasks write the files, into the same directory. Raises the errors of reading, and
    `InUse` while another export works in the directory.
    """
    parsed = _parsed(options)
    root = Path(directory)
    if dry_run:
        return _dry_run(root, parsed)
    with files.lock_directory(root, "export"):
        return _export(root, parsed, spark, progress)


def _parsed(options: Mapping[str, str]) -> Options:
    refuse(options, _KEPT, "is not for exports: each continues at the end of the previous one")
    parsed = for_batch(options)
    check_one_topic(parsed, "directory")
    if not {"publish_time", "ledger", "entry"} <= {*parsed.columns}:
        raise ConfigurationError(
            "an export needs the columns ledger, entry and publish_time, which determines the date"
        )
    return parsed


def _export(root: Path, options: Options, spark: Any, progress: Progress) -> Exported:
    done = Exported(options.topics[0], str(root))
    state = _state(root, done.topic)
    for partial_file in root.glob("date=*/_*"):
        partial_file.unlink(missing_ok=True)  # left behind by a run that was killed
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
    """Return a result with the number of slices that an export would copy."""
    planned = Exported(options.topics[0], str(root))
    state = _state(root, planned.topic)
    run = files.load(root / "_quire" / "run.json")
    planned.resumed = run is not None and run["number"] > state["runs"]
    if planned.resumed:
        assert run is not None
        state = {**state, "ends": run["ends"], "indexes": run.get("indexes", {})}
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
            f"{root} contains an export of {state['topic']}; set another directory for {topic}"
        )
    if state["version"] != VERSION:
        raise ConfigurationError(
            f"{root} contains an export of version {state['version']}; this version supports {VERSION}"
        )
    return state


def _plan(state: Mapping[str, Any], options: Options) -> dict[str, Any]:
    """Plan the next run: the slices from the end of the last one to the current end of each partition."""
    found = since(_ends(state), options)
    return {
        "number": state["runs"] + 1,
        "topic": found.topic,
        "ends": {name: list(end[:2]) for name, end in found.ends.items()},
        "indexes": {name: list(end) for name, end in found.ends.items() if end.message_index >= 0},
        "pieces": [list(one) for one in found.pieces],
    }


def _ends(state: Mapping[str, Any]) -> dict[str, End]:
    """Return the end of each partition's copy from the state.

    The end has no message index if an older version of Quire, which does not record indexes, wrote it last.
    """
    known = {name: End(*end) for name, end in state.get("indexes", {}).items()}
    found = {}
    for name, (ledger, entry) in state["ends"].items():
        end = known.get(name)
        found[name] = end if end is not None and end[:2] == (ledger, entry) else End(ledger, entry)
    return found


def _finish(
    root: Path,
    options: Options,
    run: Mapping[str, Any],
    done: Exported,
    spark: Any,
    progress: Progress,
) -> dict[str, Any]:
    """Write all files of a run, existing ones included, and record that it is complete."""
    pieces = [Piece(*one) for one in run["pieces"]]
    rows = 0
    for written in over(partial(write_files, str(root), options), pieces, spark, progress):
        rows += sum(count for count, _ in written)
        done.files += len(written)
        done.bytes += sum(size for _, size in written)
    done.rows += rows
    state = _state(root, done.topic)
    ends = {"ends": run["ends"], "indexes": run.get("indexes", {})}
    state |= {"runs": run["number"], **ends, "rows": state["rows"] + rows}
    files.store(root / "_quire" / "export.json", state)
    return state


def write_files(directory: str, options: Options, piece: Piece) -> list[tuple[int, int]]:
    """Write the Parquet files of one slice; return the rows and bytes of each."""
    found: dict[str, PartFile] = {}
    arrow = schema.arrow(options.columns)
    last: PartFile | None = None
    try:
        for batch in read_slice(piece.slice(), options):
            for date, rows in _by_date(batch):
                if date not in found:
                    found[date] = PartFile(Path(directory) / f"date={date}" / piece.file, arrow)
                if last is not None and last is not found[date]:
                    last.flush()
                last = found[date]
                last.write(rows)
        return [(one.rows, one.publish()) for one in found.values()]
    finally:
        for one in found.values():
            one.discard()


def _by_date(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Split rows by the UTC day of their publish time; raw entries without one are assigned to 1970-01-01."""
    times = batch.column(batch.schema.names.index("publish_time"))
    days = pc.fill_null(times.cast(pa.date32()), pa.scalar(0, pa.date32()))
    for day in pc.unique(days):
        rows = batch.filter(pc.equal(days, day))
        yield day.as_py().isoformat(), rows
