"""`quire archive`: move sealed segments to the archive now, see what lies where, verify it, and repair it."""

from __future__ import annotations

import click

from quire.cli.noun import Noun
from quire.cli.output import Answer, Table
from quire.runtime.errors import CorruptionError, QuireError, Unavailable
from quire.runtime.rest import Admin


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
    """


@command.verb("run", timeout_s=3600)
@click.option("--seal", is_flag=True, help="Seal the active segments first, so that everything is archived.")
def run(admin: Admin, seal: bool) -> Answer:
    """Archive every sealed segment now, at all brokers, and wait until it is done."""
    report = admin.post(f"/quire/v1/archive/run?seal={str(seal).lower()}")
    error = None
    if report["failed"]:
        error = Unavailable(f"{report['failed']} segments could not be archived now: {report['errors'][0]}")
    shown = {name: value for name, value in report.items() if name != "errors"}
    return Answer(report, shown, error=error)


@command.verb("status", timeout_s=600)
def status(admin: Admin) -> Answer:
    """Count the segments of all topics by state, and show what is under way."""
    answer = admin.get("/quire/v1/archive/status")
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
    report = admin.post(f"/quire/v1/archive/verify?delete_orphans={str(delete_orphans).lower()}")
    damaged, orphans = report.get("damaged", ()), report.get("orphans", ())
    error = None
    if damaged:
        error = CorruptionError(
            f"{_segments(damaged)} damaged or missing; `quire archive repair` uploads again what bookies still have"
        )
    return Answer(
        report,
        {name: value for name, value in report.items() if not isinstance(value, list)},
        *(f"damaged: {one}" for one in damaged),
        *(f"orphan: {one}" for one in orphans),
        error=error,
    )


@command.verb("repair", timeout_s=3600)
def repair(admin: Admin) -> Answer:
    """Read every archived segment, and upload again what is damaged or missing, of what bookies and it still have.

    Look first whether the archive is where it should be: one that is not mounted has lost everything.
    """
    report = admin.post("/quire/v1/archive/repair")
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


def _segments(lines: list[str]) -> str:
    return "one archived segment is" if len(lines) == 1 else f"{len(lines)} archived segments are"
