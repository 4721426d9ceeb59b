"""Copy of a topic in an Iceberg table: every message once, even after kills and with concurrent copies.

    slices since the table's ends ─▶ a Parquet file each (here, or in Spark tasks) ─▶ a commit each, in order

A call copies the messages that the topic has at that time; a schedule repeats the call. The table itself contains the
progress (`iceberg_table`), so there is no other state, and any machine may continue the copy.

An encrypted or damaged entry becomes a row with the entry's bytes and an error. So does a value that does not fit its
schema. Neither stops the copy. Values have the types of the topic's newest schema when the copy begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import load_file_io

from quire.runtime.errors import ConfigurationError, Unavailable
from quire.spark_source import schema
from quire.spark_source.jobs.iceberg_table import (
    ENVELOPE,
    ERROR,
    TYPED,
    CopyTable,
    Place,
    mapped,
    open_catalog,
)
from quire.spark_source.jobs.part_file import RowGroups
from quire.spark_source.jobs.since import End, Since, check_one_topic, since
from quire.spark_source.jobs.slices import Piece, Progress, over, quietly, refuse
from quire.spark_source.options import Options, for_batch
from quire.spark_source.plan import load_segments, topics_of
from quire.spark_source.task import read_slice
from quire.spark_source.values import Values, with_value_schema

_KEPT: Final = (
    "start", "end", "starting_subscription", "columns", "value_schema", "on_bad_value", "on_undecodable", "chunks",
)  # fmt: skip
RACES: Final = 20
"""Maximum number of attempts of a copy while concurrent copies commit the same slices first."""


@dataclass(frozen=True)
class Into:
    """Name and catalog of a table; see `open_catalog`."""

    catalog: str
    table: str
    options: Mapping[str, str] | None = None


@dataclass
class Copied:
    """Result of one call.

    `bad` is the number of rows with an error. `untyped` is the reason why values are bytes although the topic has a
    schema. `of_others` is the number of slices that a concurrent copy committed first.
    """

    topic: str
    table: str
    slices: int = 0
    rows: int = 0
    bytes: int = 0
    bad: int = 0
    of_others: int = 0
    untyped: str = ""
    slices_left: int = 0
    """Number of slices that a dry run would copy."""


@dataclass
class Standing:
    """Progress of a partition's copy."""

    partition: str
    copied_to: str
    """Ledger and entry of the next message to be copied; "" if no message is copied yet."""
    topic_ends: str
    entries_behind: int


class Written(NamedTuple):
    """Data file written for one slice. `path` is "" if the slice has no rows."""

    path: str
    rows: int
    bytes: int
    bad: int


def copy(
    options: Mapping[str, str],
    into: Into,
    *,
    spark: Any = None,
    dry_run: bool = False,
    resync: bool = False,
    archived: bool = False,
    progress: Progress = quietly,
) -> Copied:
    """Copy the messages of a topic that the table lacks. `options` are reading options.

    With `resync`, empty the table first. With `archived`, copy only archived messages. Raises the errors of reading,
    and `Unavailable` if the catalog or its store does not answer.
    """
    parsed = _parsed(options)
    report = Copied(parsed.topics[0], into.table)
    catalog = open_catalog(into.catalog, into.options)
    if dry_run and not catalog.table_exists(into.table):
        report.slices_left = len(since({}, parsed, archived=archived).pieces)
        return report
    table = CopyTable.open(catalog, into.table, report.topic, create=not dry_run)
    if dry_run:
        report.slices_left = len(since({} if resync else table.ends, parsed, archived=archived).pieces)
        return report
    if resync:
        table.restart()
    typed = _typed(parsed, table, report)
    for _ in range(RACES):
        found = since(table.ends, parsed, archived=archived)
        work = partial(write_file, parsed, typed, report.untyped, table.place)
        if _commit_all(table, found, over(work, found.pieces, spark, progress), report):
            return report
        table.reload()
    raise Unavailable(
        f"concurrent copies of {report.topic} into {into.table} commit all slices first: run only one of them"
    )


def status(options: Mapping[str, str], into: Into) -> tuple[CopyTable, list[Standing]]:
    """Return the table, and the progress of each partition. Raises `NotFound` if the table does not exist."""
    parsed = _parsed(options)
    topic, broker = parsed.topics[0], parsed.broker
    table = CopyTable.open(open_catalog(into.catalog, into.options), into.table, topic, create=False)
    partitions = broker.segments(topic)["partitions"]
    names = [f"{topic}-partition-{i}" for i in range(partitions)] or [topic]
    return table, [_standing(load_segments(name, broker), table.ends.get(name)) for name in names]


def _standing(answer: Mapping[str, Any], at: End | None) -> Standing:
    end, behind = answer["end"], 0
    for segment in answer["segments"]:
        ledger = segment["ledger_id"]
        entries = 1 + (end["entry"] if ledger == end["ledger"] else segment["last_entry"])
        if at is None or ledger > at.ledger_id:
            behind += entries
        elif ledger == at.ledger_id:
            behind += max(0, entries - at.entry_id)
    copied = "" if at is None else f"{at.ledger_id}:{at.entry_id}"
    return Standing(answer["topic"], copied, f"{end['ledger']}:{end['entry'] + 1}", behind)


def _parsed(options: Mapping[str, str]) -> Options:
    refuse(options, _KEPT, "is not for tables: each copy continues at the end of the previous one")
    parsed = for_batch(options)
    topics = topics_of(parsed, parsed.broker)
    parsed = replace(parsed, topics=tuple(topics), pattern=None, keep_raw=True)
    check_one_topic(parsed, "table")
    return parsed


def _typed(options: Options, table: CopyTable, report: Copied) -> Options | None:
    """Extend the column `typed` to the topic's newest schema, and return the options for typed values.

    Return None if values stay bytes.
    """
    wanted = replace(
        options,
        columns=("value", schema.VALUE_ERROR),
        value_schema="auto",
        null_bad_values=True,
        keep_raw=False,
    )
    try:
        found = with_value_schema(wanted, options.broker)
        assert found.typed is not None
        if found.typed.value.kind == "BYTES":
            return None
        kind = found.typed.value.column.arrow
    except ConfigurationError:
        return None  # no schema, or one that columns cannot represent
    report.untyped = table.unite(kind)
    return None if report.untyped else found


def _commit_all(table: CopyTable, since: Since, files: Iterator[Written], report: Copied) -> bool:
    """Commit the slices' files in order. Return False if a concurrent copy has committed one of them first."""
    at = dict(table.ends)
    for piece, file in zip(since.pieces, files, strict=True):
        if not file.path:
            continue  # the commit of the next slice moves the end past this slice
        end = since.end_of(piece)
        if not table.commit(piece.partition, at.get(piece.partition), end, file.path):
            report.of_others += 1
            table.drop_file(file.path)
            return False
        at[piece.partition] = end
        report.slices += 1
        report.rows += file.rows
        report.bytes += file.bytes
        report.bad += file.bad
    return True


# -- a slice, in a task ----------------------------------------------------------------------------------


def write_file(options: Options, typed: Options | None, untyped: str, place: Place, piece: Piece) -> Written:
    """Write one slice as a Parquet file. No snapshot contains the file until it is committed."""
    values = None
    if typed is not None:
        values = Values(typed, piece.slice().origin.topic, options.broker)
    columns = (*schema.COLUMNS, schema.UNDECODED, schema.SCHEMA_VERSION)
    path = f"{place.location}/{piece.file.removesuffix('.parquet')}-{uuid4()}.parquet"
    writer: RowGroups | None = None
    rows = bad = 0
    output = load_file_io(dict(place.io), path).new_output(path)
    with mapped(f"file {path}"), ExitStack() as stack:
        for batch in read_slice(piece.slice(), replace(options, columns=columns)):
            found = rows_of(batch, values, untyped)
            if writer is None:
                stream = stack.enter_context(output.create())
                writer = RowGroups(stream, found.schema)
                stack.callback(writer.close)
            writer.write(found)
            rows += found.num_rows
            bad += found.num_rows - found.column(ERROR).null_count
        if writer is not None:
            writer.finish()
    with mapped(f"file {path}"):
        return Written(path, rows, len(output), bad) if rows else Written("", 0, 0, 0)


def rows_of(batch: pa.RecordBatch, values: Values | None, untyped: str) -> pa.RecordBatch:
    """Convert messages to rows of the table, each with its typed value or its error."""
    undecoded = batch.column(schema.UNDECODED)
    envelope = [batch.column(name) for name in schema.COLUMNS]
    if values is None:
        has_value = pc.and_(pc.is_valid(batch.column("value")), pc.is_null(undecoded))
        why = pc.if_else(has_value, pa.scalar(untyped or None, pa.string()), pa.scalar(None, pa.string()))
        return pa.RecordBatch.from_arrays([*envelope, pc.coalesce(undecoded, why)], schema=ENVELOPE)
    found = values.typed(batch)
    value, error = found.column("value"), found.column(schema.VALUE_ERROR)
    numbers = np.arange(batch.num_rows)
    raw = pc.is_valid(undecoded).to_numpy(zero_copy_only=False)
    typed = value.take(pa.array(numbers, mask=raw))
    return pa.RecordBatch.from_arrays(
        [*envelope, pc.coalesce(undecoded, error), typed],
        schema=ENVELOPE.append(pa.field(TYPED, typed.type)),
    )
