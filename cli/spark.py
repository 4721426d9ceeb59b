"""`quire spark`: runs jobs of `quire.spark_source.jobs` over the whole history of a topic."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quire.cli import moments
from quire.cli.noun import Noun, topic_argument
from quire.cli.output import Answer, Column, Found, Shown, size, table_of
from quire.cli.progress import bar
from quire.runtime import log
from quire.runtime.credentials import OPTIONS as CREDENTIALS_OPTIONS
from quire.runtime.errors import ConfigurationError, Unavailable
from quire.runtime.installation import pip_install
from quire.runtime.rest import Admin

if TYPE_CHECKING:
    from quire.spark_source.jobs.compact import Compacted
    from quire.spark_source.jobs.iceberg import Standing
    from quire.spark_source.jobs.iceberg_table import CopyTable
    from quire.spark_source.jobs.replay import Replayed

ROWS_SHOWN_MAX = 50
"""Maximum number of rows to print in a table; `--json` prints all."""


@click.group("spark", cls=Noun)
def command() -> None:
    """Run jobs over the whole history of a topic.

    Without --master they run in this process; with it they are tasks of Spark, local[4] or a cluster's.

    \b
    Examples:
      quire spark export orders /data/orders
      quire spark export orders /data/orders --master 'local[4]' --json
      quire spark audit orders
      quire spark profile orders --html orders.html
      quire spark replay orders orders-again /data/replay --start 2026-11-01 --enable-deduplication
      quire spark compact orders /data/latest
      quire spark iceberg orders shop.orders --catalog /data/iceberg
      quire spark follow-iceberg --catalog /data/iceberg
    """


_dry_run = click.option("--dry-run", is_flag=True, help="Show what would be done, without doing it.")
_archive = click.option(
    "--archive",
    metavar="URL",
    help="URL of the archive, if it differs from the brokers' setting on this machine.",
)
_master = click.option(
    "--master", metavar="URL", help="Run on this Spark cluster: local[4], spark://HOST:7077."
)
_start = click.option(
    "--start", metavar="PLACE", help="earliest, LEDGER:ENTRY or a publish time.  [earliest]"
)
_end = click.option("--end", metavar="PLACE", help="latest, LEDGER:ENTRY or a publish time.  [latest]")
_catalog_option = click.option(
    "--catalog-option",
    "given",
    multiple=True,
    metavar="NAME=VALUE",
    help="pyiceberg's: warehouse, token, …; name is the catalog's own.  [name=quire]",
)
_on_data_loss = click.option(
    "--on-data-loss", type=click.Choice(["fail", "report"]), default="fail", show_default=True
)


def _options(admin: Admin, topic: str, words: Mapping[str, Any]) -> dict[str, str]:
    """Return the options for reading `topic`: those of the broker, and the command's options that were given."""
    given = {name: str(word) for name, word in words.items() if word is not None}
    return _service(admin) | {"topic": topic} | given


def _service(admin: Admin, url: str = "") -> dict[str, str]:
    """Return the options for the REST interface at `url`, by default that of the command's broker."""
    tls = {
        "tls_trust_certs": admin.tls.authority,
        "tls_certificate": admin.tls.certificate,
        "tls_key": admin.tls.key,
    }
    own = {name: getattr(admin.credentials, name) for name in CREDENTIALS_OPTIONS}
    return {"service_url": url or admin.url} | {name: file for name, file in {**tls, **own}.items() if file}


@contextmanager
def _needed(extra: str = "spark") -> Iterator[None]:
    """Convert a failed import of optional packages to an error that says what to install."""
    try:
        yield
    except ImportError as error:
        raise ConfigurationError(f"this needs PySpark and more ({error}): {pip_install(extra)}") from None


@command.verb("export")
@topic_argument
@click.argument("directory", metavar="DIRECTORY")
@_dry_run
@click.option("--columns", metavar="NAMES", help="Columns, separated by commas (by default all).")
@_on_data_loss
@_archive
@_master
def export(
    admin: Admin, topic: str, directory: str, dry_run: bool, master: str | None, **words: Any
) -> Answer:
    """Copy the messages of TOPIC that DIRECTORY lacks into Parquet files by date.

    Every message is copied once, also when the command is killed and started again: it goes on where the last one
    ended, and finishes what that had begun.

    \b
    Examples:
      quire spark export orders /data/orders
      quire spark export orders /data/orders --master 'local[4]' --json
    """
    with _needed():
        from quire.spark_source.jobs.export import export
    options = _options(admin, topic, words)
    with _session(None if dry_run else master) as spark, bar("slices") as progress:
        done = export(directory, options, spark=spark, dry_run=dry_run, progress=progress)
    if dry_run:
        return Answer(
            {"topic": done.topic, "directory": done.directory, "slices": done.files, "resumes": done.resumed},
            f"{done.files:,} slices of {done.topic} are to be copied into {done.directory}"
            + ("; some are of a run that was killed" if done.resumed else ""),
        )
    said = f"copied {done.rows:,} messages of {done.topic} into {done.directory}: "
    said += f"{done.files:,} files, {size(done.bytes)}"
    return Answer(asdict(done), said + ("; a run that was killed is finished" if done.resumed else ""))


@command.verb("audit")
@topic_argument
@_dry_run
@_archive
@_master
def audit(admin: Admin, topic: str, dry_run: bool, master: str | None, **words: Any) -> Answer:
    """Check all entries of TOPIC: checksums, order, gaps, duplicates, and counts against the metadata.

    Exit code 4: something is not as it should be. Nothing is changed.

    \b
    Example:
      quire spark audit orders
    """
    with _needed():
        from quire.spark_source.jobs.audit import audit
    options = _options(admin, topic, words)
    with _session(None if dry_run else master) as spark, bar("slices") as progress:
        report = audit(options, spark=spark, dry_run=dry_run, progress=progress)
    if dry_run:
        said = f"{report.slices:,} slices of {len(report.topics)} partitions are to be read"
        return Answer({"topics": report.topics, "slices": report.slices}, said)
    segments = [asdict(one) for one in report.segments]
    columns: dict[str, Column] = {
        "partition": "partition",
        "segment": "ledger",
        "state": "state",
        "entries": lambda row: f"{row['entries']:,}",
        "messages": lambda row: f"{row['messages']:,}",
        "size": lambda row: size(row["bytes"]),
        "findings": lambda row: "trimmed meanwhile" if row["trimmed"] else row["findings"] or "",
    }
    rows = [row for row in segments if row["findings"]] + [row for row in segments if not row["findings"]]
    more = len(rows) - ROWS_SHOWN_MAX
    count = len(report.findings) + report.more_findings
    shown: list[Shown] = [
        table_of(rows[:ROWS_SHOWN_MAX], columns, right=("segment", "entries", "messages", "size")),
        *([f"… and {more:,} segments without findings"] if more > 0 else []),
        "",
        f"{report.messages:,} messages in {report.entries:,} entries of {report.producers:,} producers, "
        f"{size(report.bytes)}"
        + (f"; {report.encrypted:,} entries are encrypted" if report.encrypted else ""),
        *map(str, report.findings),
        *([f"… and {report.more_findings:,} more of slices with very many"] if report.more_findings else []),
    ]
    if not count:
        return Answer(report.as_dict(), *shown, "all is as it should be")
    what = "one thing is not as it" if count == 1 else f"{count:,} things are not as they"
    return Answer(report.as_dict(), *shown, error=Found(f"{what} should be in {topic}"))


@command.verb("profile")
@topic_argument
@click.option(
    "--html", type=click.Path(dir_okay=False, path_type=Path), help="Write an HTML page with charts."
)
@_start
@_end
@_dry_run
@_on_data_loss
@_archive
@_master
def profile(
    admin: Admin, topic: str, html: Path | None, dry_run: bool, master: str | None, **words: Any
) -> Answer:
    """Summarize TOPIC: rates and sizes over time, keys and the most frequent ones, producers, partitions.

    \b
    Example:
      quire spark profile orders --html orders.html
    """
    with _needed():
        from quire.spark_source.jobs.page import render
        from quire.spark_source.jobs.profile import profile
    options = _options(admin, topic, words)
    with _session(None if dry_run else master) as spark, bar("slices") as progress:
        found = profile(options, spark=spark, dry_run=dry_run, progress=progress)
    if dry_run:
        return Answer({"slices": found.slices}, f"{found.slices:,} slices of {found.topics} are to be read")
    if html is not None:
        html.write_text(render(found))
    value = found.as_dict()
    seconds, keys = value["interval_ms"] / 1000, value["keys"]
    over_time: dict[str, Column] = {
        "from": lambda row: moments.shown(row["start_ms"]),
        "messages": lambda row: f"{row['messages']:,}",
        "per second": lambda row: f"{row['messages'] / seconds:,.1f}",
        "bytes per second": lambda row: size(round(row["bytes"] / seconds)),
    }
    counted: dict[str, Column] = {"messages": lambda row: f"{row['messages']:,}"}
    return Answer(
        value,
        {
            "messages": f"{value['messages']:,} in {value['entries']:,} entries",
            "values": f"{size(value['value_bytes'])}, {value['null_values']:,} are null",
            "sizes": ", ".join(
                f"{name} {size(value['sizes'][name])}" for name in ("mean", "p50", "p90", "p99", "max")
            ),
            "keys": ("" if keys["distinct_is_exact"] else "about ") + f"{keys['distinct']:,} different",
        },
        "",
        table_of(value["over_time"], over_time, right=[*over_time][1:]),
        "",
        table_of(keys["hot"], {"hot key": "key", **counted}, right=("messages",)),
        "",
        table_of(value["producers"], {"producer": "producer", **counted}, right=("messages",)),
        "",
        table_of(value["partitions"], {"partition": "partition", **counted}, right=("messages",)),
        *([] if html is None else ["", f"pictures: {html}"]),
    )


@command.verb("replay")
@topic_argument
@click.argument("target", metavar="TARGET")
@click.argument("directory", metavar="DIRECTORY")
@_start
@_end
@click.option(
    "--filter", "where", metavar="SQL", help="Only rows for which this is true, as \"key like 'eu-%'\"."
)
@click.option("--key", metavar="SQL", help="Their keys, as \"properties['customer']\".")
@click.option("--rate", type=float, metavar="N", help="Maximum number of messages/s.")
@click.option(
    "--value-schema", metavar="VERSION", help="auto or a version: values are typed, and encoded again."
)
@click.option("--compression", type=click.Choice(["none", "lz4", "zlib", "zstd", "snappy"]), default="none")
@click.option(
    "--enable-deduplication", is_flag=True, help="Make TARGET, or let it drop duplicates from now on."
)
@click.option("--to-url", metavar="URL", help="HTTP address of TARGET's broker, if it differs.")
@click.option(
    "--accept-copies",
    is_flag=True,
    help="Continue a run that was interrupted for hours, although messages may be duplicated.",
)
@_dry_run
@_on_data_loss
@_archive
@_master
def replay(
    admin: Admin,
    topic: str,
    target: str,
    directory: str,
    dry_run: bool,
    master: str | None,
    **words: Any,
) -> Answer:
    """Copy the history of TOPIC, or a part of it, into the topic TARGET.

    Every message is written once, also when the command is killed and started again with the same words: DIRECTORY
    keeps how far it is. --filter and --key are Spark's SQL over the columns of docs/spark-reference.md, and start a
    Spark of this machine's cores where no --master is given.

    \b
    Example:
      quire spark replay orders orders-again /data/replay --start 2026-11-01 --enable-deduplication
    """
    with _needed():
        from quire.spark_source.jobs.replay import Wanted, replay
    into = _service(admin, words.pop("to_url")) | {"topic": target}
    into |= {"compression": words.pop("compression"), "chunking": "true"}
    into |= {"enable_deduplication": str(words.pop("enable_deduplication")).lower()}
    if words["value_schema"]:
        into["register_schema"] = "true"
    how = {name: words.pop(name) for name in ("where", "key", "accept_copies")}
    how["rows_per_second"] = words.pop("rate")
    wanted = Wanted(_options(admin, topic, words), into, **how)
    if wanted.where or wanted.key:
        master = master or "local[*]"
    with (
        _session(None if dry_run and not (wanted.where or wanted.key) else master) as spark,
        bar("slices") as progress,
    ):
        done = replay(directory, wanted, spark=spark, dry_run=dry_run, progress=progress)
    if dry_run:
        said = f"{done.slices_left:,} slices of {done.source} are to be written to {done.target}"
        return Answer(asdict(done), said + ("; a run is under way" if done.resumed else ""))
    return Answer(asdict(done), _replayed(done, done.source))


@command.verb("compact")
@topic_argument
@click.argument("directory", metavar="DIRECTORY")
@click.option("--to", "target", metavar="TARGET", help="Write into this topic, instead of Parquet files.")
@click.option("--compression", type=click.Choice(["none", "lz4", "zlib", "zstd", "snappy"]), default="none")
@click.option(
    "--enable-deduplication", is_flag=True, help="Make TARGET, or let it drop duplicates from now on."
)
@_end
@_dry_run
@_on_data_loss
@_archive
@_master
def compact(
    admin: Admin,
    topic: str,
    directory: str,
    target: str | None,
    dry_run: bool,
    master: str | None,
    **words: Any,
) -> Answer:
    """Write the latest message of each key in the whole history of TOPIC to Parquet files in DIRECTORY.

    With --to they go into another topic, and DIRECTORY keeps how far it is: started again after a kill, it writes
    what is missing. Keys whose latest message is a delete, and messages without a key, are left out.

    \b
    Examples:
      quire spark compact orders /data/latest
      quire spark compact orders /data/progress --to latest-orders --enable-deduplication
    """
    with _needed():
        from quire.spark_source.jobs.compact import compact
    sink = {name: words.pop(name) for name in ("compression", "enable_deduplication")}
    into = None
    if target is not None:
        into = {
            **_service(admin),
            "topic": target,
            "compression": sink["compression"],
            "chunking": "true",
        }
        into |= {"enable_deduplication": str(sink["enable_deduplication"]).lower()}
    options = _options(admin, topic, words)
    with _session(None if dry_run else master) as spark, bar("slices") as progress:
        done = compact(directory, options, into, spark=spark, dry_run=dry_run, progress=progress)
    if dry_run:
        return Answer(asdict(done), f"{done.slices_looked_at:,} slices of {done.source} are to be looked at")
    left_out = f"of {done.messages:,} messages; {done.deleted:,} keys are deleted, "
    left_out += f"{done.without_key:,} messages have none"
    return Answer(asdict(done), _replayed(done, done.source), left_out)


@command.verb("iceberg")
@topic_argument
@click.argument("table", metavar="NAMESPACE.TABLE")
@click.option(
    "--catalog",
    default="iceberg",
    show_default=True,
    metavar="URL",
    help="A directory (SQLite, tables beside it), sqlite:///FILE, postgresql://…, or https://… of a REST catalog.",
)
@_catalog_option
@click.option("--status", "shows_status", is_flag=True, help="Show how far the table is, without copying.")
@click.option("--resync", is_flag=True, help="Empty the table first, and copy the whole topic.")
@_dry_run
@_on_data_loss
@_archive
@_master
def iceberg(admin: Admin, topic: str, table: str, dry_run: bool, master: str | None, **words: Any) -> Answer:
    """Copy the messages of TOPIC that an Iceberg table lacks.

    Every message is there once, also when copies are killed or run side by side: how far the copy is lies in the
    table. Start it by a schedule to keep the table fresh.

    \b
    Example:
      quire spark iceberg orders shop.orders --catalog /data/iceberg
    """
    with _needed("iceberg"):
        from quire.spark_source.jobs import iceberg
    into = iceberg.Into(words.pop("catalog"), table, _pairs(words.pop("given")))
    shows_status, resync = words.pop("shows_status"), words.pop("resync")
    options = _options(admin, topic, words)
    if shows_status:
        return _standing(*iceberg.status(options, into))
    with _session(None if dry_run else master) as spark, bar("slices") as progress:
        done = iceberg.copy(options, into, spark=spark, dry_run=dry_run, resync=resync, progress=progress)
    if dry_run:
        return Answer(
            asdict(done), f"{done.slices_left:,} slices of {done.topic} are to be copied into {table}"
        )
    said = f"copied {done.rows:,} messages of {done.topic} into {table}: {done.slices:,} commits, {size(done.bytes)}"
    notes = [f"{done.bad:,} rows have an error in their column"] if done.bad else []
    notes += [f"values are bytes only: {done.untyped}"] if done.untyped else []
    return Answer(asdict(done), said, *notes)


@command.verb("follow-iceberg")
@click.option(
    "--catalog",
    required=True,
    metavar="URL",
    help="Catalog of the tables to keep fresh, as named in policies.",
)
@_catalog_option
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=60.0,
    show_default=True,
    help="Seconds between rounds.",
)
@click.option("--once", is_flag=True, help="Run one round only; exit code 4: not all tables are fresh.")
@click.option(
    "--allow-warehouse",
    multiple=True,
    metavar="NAME",
    help="Warehouse that policies may name, or prefix of such warehouses.",
)
@click.option(
    "--allow-namespace", multiple=True, metavar="NAME", help="Namespace with _ that policies may name."
)
@_on_data_loss
@_archive
def follow_iceberg(admin: Admin, catalog: str, given: tuple[str, ...], **words: Any) -> Answer:
    """Keep the Iceberg tables of CATALOG that are configured in topic policies fresh, until stopped.

    Of each topic it copies what is archived, a segment a commit. It may be killed at any time, and two of it copy every
    message once: start a second one where one must not fail. See `quire topics set-iceberg`.

    \b
    Example:
      quire spark follow-iceberg --catalog /data/iceberg
    """
    with _needed("iceberg"):
        from quire.spark_source.jobs.follow import Allowed, Follower
    once, interval_s = words.pop("once"), words.pop("interval")
    allowed = Allowed(words.pop("allow_warehouse"), words.pop("allow_namespace"))
    log.configure("info")
    reading = _service(admin) | {name: value for name, value in words.items() if value is not None}
    follower = Follower(admin, catalog, _pairs(given), reading, allowed)
    while True:
        done = follower.round()
        if once:
            said = f"copied {done.rows:,} messages of {done.topics:,} topics: {done.commits:,} commits"
            error = Unavailable(f"not fresh: {done.errors[0]}") if done.errors else None
            return Answer(asdict(done), said, *(f"not fresh: {one}" for one in done.errors), error=error)
        time.sleep(interval_s)


def _pairs(given: Iterable[str]) -> dict[str, str]:
    return {name: value for name, _, value in (one.partition("=") for one in given)}


def _standing(table: CopyTable, partitions: list[Standing]) -> Answer:
    rows = [asdict(one) for one in partitions]
    behind = sum(one.entries_behind for one in partitions)
    columns: dict[str, Column] = {
        "partition": "partition",
        "copied to": "copied_to",
        "topic ends": "topic_ends",
        "entries behind": "entries_behind",
    }
    when = "" if table.committed_ms is None else f", the last commit {moments.shown(table.committed_ms)}"
    return Answer(
        {"table": table.name, "rows": table.rows, "committed_ms": table.committed_ms, "partitions": rows},
        table_of(rows, columns, right=("copied to", "topic ends", "entries behind")),
        "",
        f"{table.name} has {table.rows:,} rows{when}, and is {behind:,} entries behind",
    )


def _replayed(done: Replayed | Compacted, what: str) -> str:
    said = f"wrote {done.rows:,} messages of {what} to {done.target}, {size(done.bytes)}"
    if done.repeated:
        said += f"; {done.repeated:,} of them had been written before, and are there once"
    return said + ("; a run that was begun is finished" if done.resumed else "")


@contextmanager
def _session(master: str | None) -> Iterator[Any]:
    """Start a Spark session if `master` is given."""
    if master is None:
        yield None
        return
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.master(master).appName("quire").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()
