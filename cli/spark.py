"""`quire spark`: jobs over the whole history of a topic, as `quire.spark_source.jobs` has them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from quire.cli.noun import Noun, topic_argument
from quire.cli.output import Answer, size
from quire.runtime.errors import ConfigurationError
from quire.runtime.rest import Admin

if TYPE_CHECKING:
    from quire.spark_source.jobs.slices import Progress


@click.group("spark", cls=Noun)
def command() -> None:
    """Jobs over the whole history of a topic.

    Without --master they run in this process; with it they are tasks of Spark, local[4] or a cluster's.

    \b
    Examples:
      quire spark export orders /data/orders
      quire spark export orders /data/orders --master 'local[4]' --json
    """


@command.verb("export")
@topic_argument
@click.argument("directory", metavar="DIRECTORY")
@click.option("--dry-run", is_flag=True, help="Say what would be copied, and copy nothing.")
@click.option("--columns", metavar="NAMES", help="Which columns, with commas between (all).")
@click.option("--on-data-loss", type=click.Choice(["fail", "report"]), default="fail", show_default=True)
@click.option("--archive", metavar="URL", help="URL of the archive, where it is another one from here.")
@click.option("--master", metavar="URL", help="Run as tasks of Spark: local[4], spark://HOST:7077.")
def export(
    admin: Admin, topic: str, directory: str, dry_run: bool, master: str | None, **words: Any
) -> Answer:
    """Copy what DIRECTORY lacks of TOPIC into Parquet files by date.

    Every message is copied once, also when the command is killed and started again: it goes on where the last one
    ended, and finishes what that had begun.
    """
    try:
        from quire.spark_source.jobs.export import export
    except ImportError as error:
        raise ConfigurationError(
            f"quire spark needs PySpark and more ({error}): pip install 'quire[spark]'"
        ) from None
    options = {"service_url": admin.url, "topic": topic}
    options |= {name: word for name, word in words.items() if word is not None}
    with _session(None if dry_run else master) as spark, _progress() as progress:
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


@contextmanager
def _session(master: str | None) -> Iterator[Any]:
    """A Spark session, where one is asked for."""
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


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda _done, _of: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), TextColumn("{task.completed}/{task.total} slices"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)
