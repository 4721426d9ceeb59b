"""`quire archive`: move sealed segments to the archive now, see what lies where, verify it, and repair it.

`quire archive sidecars` is not answered by a broker: it reads and writes the archive's store from here, which needs the
store's credentials, or its directory, and pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict

import click

from quire.cli.noun import Noun
from quire.cli.output import Answer, Table, size
from quire.cli.progress import bar, followed
from quire.runtime.errors import ConfigurationError, CorruptionError, QuireError, Unavailable
from quire.runtime.rest import Admin

ARCHIVE = "/quire/v1/archive"


@click.group("archive", cls=Noun)
def command() -> None:
    """Move sealed segments to the archive, verify it, and repair it.

    A broker does so by itself; these commands are for those who cannot wait, or want to be sure.

    \b
    Examples:
      quire archive run --seal
      quire archive status --json
      quire archive verify
      quire archive repair
      quire archive sidecars build
    """


@command.verb("run", timeout_s=3600)
@click.option("--seal", is_flag=True, help="Seal the active segments first, so that everything is archived.")
def run(admin: Admin, seal: bool) -> Answer:
    """Archive every sealed segment now, at all brokers, and wait until it is done."""
    with _followed(admin, "run"):
        report = admin.post(f"{ARCHIVE}/run?seal={str(seal).lower()}")
    error = None
    if report["failed"]:
        error = Unavailable(f"{report['failed']} segments could not be archived now: {report['errors'][0]}")
    shown = {name: value for name, value in report.items() if name != "errors"}
    return Answer(report, shown, error=error)


@command.verb("status", timeout_s=600)
def status(admin: Admin) -> Answer:
    """Count the segments of all topics by state, and show what is under way."""
    answer = admin.get(f"{ARCHIVE}/status")
    states = [(state, one["segments"], one["bytes"]) for state, one in answer["segments"].items()]
    return Answer(
        answer,
        Table(("state", "segments", "bytes"), states, right=("segments", "bytes")),
        "",
        {name: value for name, value in answer.items() if not isinstance(value, dict | list)},
        *(f"{state}: {one}" for state in ("running", "failing") for one in answer[state]),
    )


@command.verb("verify", timeout_s=3600)
@click.option("--delete-orphans", is_flag=True, help="Delete objects that no segment names.")
def verify(admin: Admin, delete_orphans: bool) -> Answer:
    """Read every archived segment and check every byte; find objects that belong to none."""
    with _followed(admin, "verify"):
        report = admin.post(f"{ARCHIVE}/verify?delete_orphans={str(delete_orphans).lower()}")
    damaged, unlabelled, orphans = (report.get(kind, ()) for kind in ("damaged", "unlabelled", "orphans"))
    error = None
    if damaged:
        error = CorruptionError(
            f"{_segments(damaged)} damaged or missing; `quire archive repair` uploads again what bookies still have"
        )
    return Answer(
        report,
        {name: value for name, value in report.items() if not isinstance(value, list)},
        *(f"damaged: {one}" for one in damaged),
        *(f"unlabelled: {one}; `quire archive repair` puts its label anew" for one in unlabelled),
        *(f"orphan: {one}" for one in orphans),
        error=error,
    )


@command.verb("repair", timeout_s=3600)
def repair(admin: Admin) -> Answer:
    """Read every archived segment, and upload again what is damaged or missing, of what bookies and it still have.

    A label that is damaged or missing is put anew.

    Look first whether the archive is where it should be: one that is not mounted has lost everything.
    """
    with _followed(admin, "repair"):
        report = admin.post(f"{ARCHIVE}/repair")
    error: QuireError | None = None
    if report["damaged"]:
        error = CorruptionError(
            f"{_segments(report['damaged'])} damaged, and no bookie has that whole any more: the lines above say more"
        )
    elif report["errors"]:
        error = Unavailable(f"not all could be looked at now: {report['errors'][0]}")
    return Answer(
        report,
        {name: report[name] for name in ("segments", "repaired")},
        *(f"{kind.removesuffix('s')}: {line}" for kind in ("damaged", "errors") for line in report[kind]),
        error=error,
    )


def _followed(admin: Admin, what: str) -> AbstractContextManager[None]:
    """Shows how far brokers are with `what`."""

    def look() -> tuple[int, int]:
        works = [work for work in admin.get(f"{ARCHIVE}/progress") if work["what"] == what]
        return sum(work["done"] for work in works), sum(work["of"] for work in works)

    return followed("segments", look, goes_on=f"the brokers go on; `quire archive {what}` may be run again")


def _segments(lines: list[str]) -> str:
    return "one archived segment is" if len(lines) == 1 else f"{len(lines)} archived segments are"


# -- sidecars ----------------------------------------------------------------------------------------------


@click.group("sidecars", cls=Noun)
def sidecars() -> None:
    """What Spark and others read of archived segments instead of their values: a Parquet file beside each.

    \b
    Examples:
      quire archive sidecars list orders
      quire archive sidecars build
    """


command.add_command(sidecars)

_topics = click.argument("topics", metavar="[TOPIC]...", nargs=-1)
_archive = click.option(
    "--archive", metavar="URL", help="URL of the archive, where it is another one from here."
)


@sidecars.verb("list")
@_topics
@_archive
def list_sidecars(admin: Admin, topics: tuple[str, ...], archive: str | None) -> Answer:
    """Show which archived segments of TOPICs (all topics) have a sidecar, and how large it is.

    One that is damaged, or of another object, is passed over by readers, and written anew by `build`.
    """
    with _parts_of_spark():
        from quire.spark_source.broker import Broker
        from quire.spark_source.sidecar.archive import archived_segments, find
    found = [
        find(piece, archive)
        for piece in archived_segments(Broker(admin.url, admin.tls, admin.credentials), topics)
    ]
    lines = [
        {
            "topic": one.piece.origin.name,
            "ledger": one.piece.origin.ledger_id,
            "object_bytes": one.piece.archived.bytes if one.piece.archived else 0,
            "state": one.state.value,
            "bytes": one.bytes,
            "rows": one.rows,
            "error": one.error,
        }
        for one in found
    ]
    columns = ("topic", "ledger", "object_bytes", "state", "bytes", "rows")
    return Answer(
        lines,
        Table(
            columns, [[line[name] for name in columns] for line in lines], right=columns[1:3] + columns[4:]
        ),
        *(one.error for one in found if one.error),
    )


@sidecars.verb("build")
@_topics
@click.option("--rebuild", is_flag=True, help="Write those again that are there.")
@click.option("--dry-run", is_flag=True, help="Say how many would be written, and write none.")
@_archive
def build_sidecars(
    admin: Admin, topics: tuple[str, ...], rebuild: bool, dry_run: bool, archive: str | None
) -> Answer:
    """Write the sidecars that archived segments of TOPICs (all topics) lack.

    What is there stays. The command may be killed at any time and run again, also by a schedule.
    """
    with _parts_of_spark():
        from quire.spark_source.broker import Broker
        from quire.spark_source.sidecar.archive import build_all
    with bar("segments") as progress:
        done = build_all(
            Broker(admin.url, admin.tls, admin.credentials),
            topics,
            archive_url=archive,
            rebuild=rebuild,
            dry_run=dry_run,
            progress=progress,
        )
    said = f"{done.segments} archived segments: {done.there} have a sidecar, "
    said += f"{done.built} {'lack one' if dry_run and not rebuild else 'are to be written' if dry_run else 'written'}"
    if done.object_bytes:
        share = 100 * done.bytes / done.object_bytes
        said += f": {done.rows:,} rows, {size(done.bytes)}, {share:.2f} % of {size(done.object_bytes)}"
    error = None
    if done.errors:
        error = Unavailable(f"{len(done.errors)} could not be written now: {done.errors[0]}")
    return Answer(asdict(done), said, *(f"without: {line}" for line in done.without), error=error)


@contextmanager
def _parts_of_spark() -> Iterator[None]:
    """Imports what not every machine has."""
    try:
        yield
    except ImportError as error:
        raise ConfigurationError(
            f"sidecars are Parquet, which needs pyarrow and more ({error}): pip install 'quire[spark]'"
        ) from None
