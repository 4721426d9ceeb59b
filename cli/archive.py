"""`quire archive`: move sealed segments to the archive now, see what lies where, verify it, and repair it."""

from __future__ import annotations

import click

from quire.cli.http import admin_url_option, json_option
from quire.cli.output import print_fields, print_json, print_table
from quire.runtime.errors import CorruptionError, Unavailable
from quire.runtime.rest import Admin


@click.group("archive")
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


@command.command("run")
@click.option("--seal", is_flag=True, help="Seal the active segments first, so that everything is archived.")
@admin_url_option
@json_option
def run(seal: bool, admin_url: str, as_json: bool) -> None:
    """Archive every sealed segment now, at all brokers, and wait until it is done."""
    report = Admin(admin_url, timeout_s=3600).post(f"/quire/v1/archive/run?seal={str(seal).lower()}")
    if as_json:
        print_json(report)
    else:
        print_fields({name: value for name, value in report.items() if name != "errors"})
    if report["failed"]:
        raise Unavailable(f"{report['failed']} segments could not be archived now: {report['errors'][0]}")


@command.command("status")
@admin_url_option
@json_option
def status(admin_url: str, as_json: bool) -> None:
    """Count the segments of all topics by state, and show what is under way."""
    answer = Admin(admin_url, timeout_s=600).get("/quire/v1/archive/status")
    if as_json:
        print_json(answer)
        return
    states = answer["segments"]
    print_table(
        ("state", "segments", "bytes"),
        [(state, one["segments"], one["bytes"]) for state, one in states.items()],
        right=("segments", "bytes"),
    )
    click.echo()
    print_fields({name: value for name, value in answer.items() if not isinstance(value, dict | list)})
    for state in ("running", "failing"):
        for one in answer[state]:
            click.echo(f"{state}: {one}")


@command.command("verify")
@click.option("--delete-orphans", is_flag=True, help="Delete objects that no segment names.")
@admin_url_option
@json_option
def verify(delete_orphans: bool, admin_url: str, as_json: bool) -> None:
    """Read every archived segment and check every byte; find objects that belong to none."""
    flag = str(delete_orphans).lower()
    report = Admin(admin_url, timeout_s=3600).post(f"/quire/v1/archive/verify?delete_orphans={flag}")
    if as_json:
        print_json(report)
    else:
        print_fields({name: value for name, value in report.items() if not isinstance(value, list)})
        for damage in report.get("damaged", ()):
            click.echo(f"damaged: {damage}")
        for orphan in report.get("orphans", ()):
            click.echo(f"orphan: {orphan}")
    if report.get("damaged"):
        raise CorruptionError(
            f"{_segments(report['damaged'])} damaged or missing; `quire archive repair` uploads again what bookies "
            "still have"
        )


@command.command("repair")
@admin_url_option
@json_option
def repair(admin_url: str, as_json: bool) -> None:
    """Read every archived segment, and upload again what is damaged or missing, of what bookies and it still have.

    Look first whether the archive is where it should be: one that is not mounted has lost everything.
    """
    report = Admin(admin_url, timeout_s=3600).post("/quire/v1/archive/repair")
    if as_json:
        print_json(report)
    else:
        print_fields({name: report[name] for name in ("segments", "repaired")})
        for kind in ("damaged", "errors"):
            for line in report[kind]:
                click.echo(f"{kind.removesuffix('s')}: {line}")
    if report["damaged"]:
        raise CorruptionError(
            f"{_segments(report['damaged'])} damaged, and no bookie has that whole any more: the lines above say more"
        )
    if report["errors"]:
        raise Unavailable(f"not all could be looked at now: {report['errors'][0]}")


def _segments(lines: list[str]) -> str:
    return "one archived segment is" if len(lines) == 1 else f"{len(lines)} archived segments are"
