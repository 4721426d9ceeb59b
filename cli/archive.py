"""`quire archive`: archive sealed segments now, list segments by state, verify the archive, and repair it.

`quire archive sidecars` gets the list of segments from a broker, but reads and writes the archive's object store
itself. This needs pyarrow, and the store's credentials or access to its directory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict

import click

from quire.cli.noun import Noun
from quire.cli.output import Answer, Table, size
from quire.cli.progress import bar, followed
from quire.runtime.errors import ConfigurationError, CorruptionError, QuireError, Unavailable, WrongCluster
from quire.runtime.installation import pip_install
from quire.runtime.rest import Admin

ARCHIVE = "/quire/v1/archive"


@click.group("archive", cls=Noun)
def command() -> None:
    """Move sealed segments to the archive, verify it, and repair it.

    Brokers archive segments automatically; these commands do it at once, and check the result.

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
    """Archive all sealed segments now, on all brokers, and wait until that is done.

    \b
    Example:
      quire archive run --seal
    """
    with _followed(admin, "run"):
        report = admin.post(f"{ARCHIVE}/run?seal={str(seal).lower()}")
    error = None
    if report["failed"]:
        error = Unavailable(f"{report['failed']} segments could not be archived now: {report['errors'][0]}")
    shown = {name: value for name, value in report.items() if name != "errors"}
    return Answer(report, shown, error=error)


@command.verb("status", timeout_s=600)
def status(admin: Admin) -> Answer:
    """Count the segments of all topics by state, and show the archiving in progress.

    \b
    Example:
      quire archive status --json
    """
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
    """Read all archived segments and verify their checksums; list objects that belong to no segment.

    Objects are deleted only with --delete-orphans, and only if the metadata are verified to be complete and current.

    \b
    Examples:
      quire archive verify
      quire archive verify --delete-orphans
    """
    with _followed(admin, "verify"):
        report = admin.post(f"{ARCHIVE}/verify?delete_orphans={str(delete_orphans).lower()}")
    damaged, unlabelled, orphans = (report.get(kind, ()) for kind in ("damaged", "unlabelled", "orphans"))
    error: QuireError | None = None
    if damaged:
        error = CorruptionError(
            f"{_segments(damaged)} damaged or missing; "
            "run `quire archive repair` to upload again the entries that bookies still have"
        )
    elif report.get("unproven"):
        error = WrongCluster(report["unproven"])
    return Answer(
        report,
        {name: value for name, value in report.items() if not isinstance(value, list | str)},
        *(f"damaged: {one}" for one in damaged),
        *(f"unlabelled: {one}; run `quire archive repair` to write the label again" for one in unlabelled),
        *(f"foreign: {one}" for one in report.get("foreign", ())),
        *(f"orphan: {one}" for one in orphans),
        error=error,
    )


@command.verb("repair", timeout_s=3600)
def repair(admin: Admin) -> Answer:
    """Read all archived segments, and upload damaged or missing ones again, from the entries that bookies still have.

    Damaged or missing labels are written again.

    First check that the archive is mounted, because otherwise all its segments are missing.

    \b
    Example:
      quire archive repair
    """
    with _followed(admin, "repair"):
        report = admin.post(f"{ARCHIVE}/repair")
    error: QuireError | None = None
    if report["damaged"]:
        error = CorruptionError(
            f"{_segments(report['damaged'])} damaged, and no bookie has all their entries; see the lines above"
        )
    elif report["errors"]:
        error = Unavailable(f"not all segments could be checked: {report['errors'][0]}")
    return Answer(
        report,
        {name: report[name] for name in ("segments", "repaired")},
        *(f"{kind.removesuffix('s')}: {line}" for kind in ("damaged", "errors") for line in report[kind]),
        error=error,
    )


def _followed(admin: Admin, what: str) -> AbstractContextManager[None]:
    """Show the brokers' progress with the operation `what`."""

    def look() -> tuple[int, int]:
        works = [work for work in admin.get(f"{ARCHIVE}/progress") if work["what"] == what]
        return sum(work["done"] for work in works), sum(work["of"] for work in works)

    return followed(
        "segments", look, goes_on=f"the brokers continue; `quire archive {what}` may be run again"
    )


def _segments(lines: list[str]) -> str:
    return "one archived segment is" if len(lines) == 1 else f"{len(lines)} archived segments are"


# -- sidecars ----------------------------------------------------------------------------------------------


@click.group("sidecars", cls=Noun)
def sidecars() -> None:
    """List and build sidecars: Parquet files beside archived segments, from which Spark reads columns.

    \b
    Examples:
      quire archive sidecars list orders
      quire archive sidecars build
    """


command.add_command(sidecars)

_topics = click.argument("topics", metavar="[TOPIC]...", nargs=-1)
_archive = click.option(
    "--archive",
    metavar="URL",
    help="URL of the archive, if it differs from the brokers' setting on this machine.",
)


@sidecars.verb("list")
@_topics
@_archive
def list_sidecars(admin: Admin, topics: tuple[str, ...], archive: str | None) -> Answer:
    """List the archived segments of TOPICs (by default all topics), with the state and size of their sidecars.

    Readers ignore a damaged sidecar, or that of another object; `build` writes it again.

    \b
    Example:
      quire archive sidecars list orders
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
@click.option("--rebuild", is_flag=True, help="Write existing sidecars again, too.")
@click.option("--dry-run", is_flag=True, help="Show how many sidecars would be written, without writing any.")
@_archive
def build_sidecars(
    admin: Admin, topics: tuple[str, ...], rebuild: bool, dry_run: bool, archive: str | None
) -> Answer:
    """Write the missing sidecars of archived segments of TOPICs (by default all topics).

    Existing sidecars are kept. The command may be killed at any time and run again, and may run on a schedule.

    \b
    Examples:
      quire archive sidecars build
      quire archive sidecars build orders --dry-run
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
    """Convert a failed import of optional packages to an error that says what to install."""
    try:
        yield
    except ImportError as error:
        raise ConfigurationError(
            f"sidecars need pyarrow and other packages ({error}): {pip_install('spark')}"
        ) from None
