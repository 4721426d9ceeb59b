"""`quire bookies`: list the cluster's storage nodes, drain or recover them, and follow re-replication."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import click

from quire.cli import moments
from quire.cli.ledgers import LEDGERS, losses
from quire.cli.noun import Noun
from quire.cli.output import Answer, Column, fields, size, table_of
from quire.cli.progress import Show, bar
from quire.runtime.clock import iso_time
from quire.runtime.errors import NotFound, QuireError, Unavailable, WrongCluster
from quire.runtime.rest import Admin

BOOKIES = "/quire/v1/bookies"
REPAIR = "/quire/v1/repair"
_LOOK_S = 1.0


@click.group("bookies", cls=Noun)
def command() -> None:
    """List the cluster's bookies, drain or recover one, and follow repair.

    BOOKIE is a UUID, the beginning of a UUID, or an address.

    \b
    Examples:
      quire bookies list
      quire bookies decommission bookie-3:3181 --wait
    """


@command.verb("list")
def list_bookies(admin: Admin) -> Answer:
    """List the bookies except retired ones, then the ledgers that lost entries.

    "Damaged copies" counts reported ones of the bookie's ledgers until repair has replaced them. Entries without any
    copy are lost; there is a line for each such ledger, as in `quire ledgers lost`.

    \b
    Example:
      quire bookies list
    """
    rows = admin.get(BOOKIES)
    columns: dict[str, Column] = {
        "bookie": "uuid",
        "address": "address",
        "rack": "rack",
        "version": "version",
        "state": "state",
        "free": lambda row: size(row["freeBytes"]),
        "of": lambda row: size(row["totalBytes"]),
        "damaged copies": "damagedCopies",
        "to leave": "ledgersLeft",
        "what to do": "note",
    }
    table = table_of(rows, columns, right=("free", "of", "damaged copies", "to leave"))
    return Answer(rows, table, notes=losses(admin.get(f"{LEDGERS}/lost")))


@command.verb("show")
@click.argument("bookie")
def show(admin: Admin, bookie: str) -> Answer:
    """Show BOOKIE and its reported damage.

    \b
    Example:
      quire bookies show bookie-1:3181
    """
    row = admin.get(_path(bookie))
    return Answer(
        row,
        {name: value for name, value in row.items() if name != "damage"},
        *(
            f"damage: ledger {one['ledger']} from entry {one['entry']}: {one['what']}"
            for one in row["damage"]
        ),
    )


@command.verb("decommission")
@click.argument("bookie")
@click.option("--wait", is_flag=True, help="Show progress until the bookie is retired.")
def decommission(admin: Admin, bookie: str, wait: bool) -> Answer:
    """Drain BOOKIE: it gets no new ledgers, and its data are copied to other bookies; then it can be removed.

    Open ledgers move to other bookies automatically. Undo this with `quire bookies keep`.

    \b
    Example:
      quire bookies decommission bookie-3:3181 --wait
    """
    row = admin.put(f"{_path(bookie)}/decommission")
    if wait:
        _follow(admin, row["uuid"])
        row = {"uuid": row["uuid"], "state": "retired"}
    return fields(row)


@command.verb("recover")
@click.argument("bookie")
def recover(admin: Admin, bookie: str) -> Answer:
    """Copy the data of BOOKIE, which is down, to other bookies at once, instead of after the usual delay.

    \b
    Example:
      quire bookies recover 5f0c
    """
    return fields(admin.put(f"{_path(bookie)}/recover"))


@command.verb("keep")
@click.argument("bookie")
def keep(admin: Admin, bookie: str) -> Answer:
    """Cancel `decommission` or `recover` of BOOKIE.

    \b
    Example:
      quire bookies keep bookie-3:3181
    """
    return fields(admin.put(f"{_path(bookie)}/keep"))


@command.verb("repair")
@click.option("--run", is_flag=True, help="Check all ledgers now.")
def repair(admin: Admin, run: bool) -> Answer:
    """Show the state of repair, which replaces missing copies of entries: the numbers of the current or last pass.

    \b
    Example:
      quire bookies repair --run
    """
    if run:
        admin.post(f"{REPAIR}/run")
    row = admin.get(REPAIR)
    return Answer(row, _counts(row), *_lists(row))


def _counts(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of the current audit or repair, with the error only if a ledger failed."""
    shown = {
        "state": row["state"],
        "coordinator": row["coordinator"],
        "ledgers": row["ledgers"],
        "checked": row["checked"],
        "repaired": row["repaired"],
        "copied": size(row["bytesCopied"]),
        "open": row["open"],
        "unplaced": row["unplaced"],
        "failed": row["failed"],
        **({"last error": row["error"]} if row["failed"] else {}),
        **({"as of": moments.shown(row["updatedMs"])} if row["updatedMs"] else {}),
    }
    return {name: value for name, value in shown.items() if value != ""}


def _lists(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each bookie and ledger that needs attention."""
    for bookie, count in row["left"].items():
        yield f"draining: {count} ledgers still have to be copied from bookie {bookie}"
    for bookie in row["absent"]:
        yield f"down: bookie {bookie}, not yet for long enough to copy its data"
    for bookie in row["lost"]:
        yield f"lost: bookie {bookie}, whose data are copied to others"
    for ledger, error in row["lostLedgers"].items():
        yield f"lost entries: ledger {ledger}: {error}"


@command.verb("orphans", timeout_s=3600)
@click.option("--delete", is_flag=True, help="Delete the listed ledgers.")
def orphans(admin: Admin, delete: bool) -> Answer:
    """List ledgers older than an hour that their topic or state log does not list.

    Such ledgers are left by crashes of processes. With --delete they are deleted, but only if the metadata are
    verified to be complete and current. Each ledger's record and its owner's list are read again before its deletion.

    \b
    Example:
      quire bookies orphans
    """
    report = admin.post(f"{LEDGERS}/orphans?delete={str(delete).lower()}")
    rows = report["orphans"]
    columns: dict[str, Column] = {
        "ledger": "ledger",
        "of": "purpose",
        "bytes": lambda row: size(row["bytes"]),
        "created": lambda row: iso_time(row["createdMs"]),
    }
    error: QuireError | None = None
    if report["unproven"]:
        error = WrongCluster(report["unproven"])
    elif report["errors"]:
        error = Unavailable(f"not all ledgers could be deleted: {report['errors'][0]}")
    done = (
        f"{report['deleted']} ledgers were deleted" if delete else f"{len(rows)} ledgers that no owner lists"
    )
    return Answer(report, table_of(rows, columns, right=("ledger", "bytes")), done, error=error)


def _path(bookie: str) -> str:
    return f"{BOOKIES}/{quote(bookie, safe='')}"


def _follow(admin: Admin, uuid: str) -> None:
    """Show progress until the bookie's record is deleted: a bar on a terminal, otherwise lines."""
    try:
        with bar("ledgers copied") as show:
            _follow_on(admin, uuid, show)
    except KeyboardInterrupt:
        click.echo(f"draining continues; cancel it with `quire bookies keep {uuid[:8]}`", err=True)
        raise


def _follow_on(admin: Admin, uuid: str, show: Show) -> None:
    told, most = "", 0
    while True:
        try:
            row = admin.get(_path(uuid))
        except NotFound:
            return
        left = row["ledgersLeft"]
        most = max(most, left)
        show(most - left, most)
        now = _progress(row, admin.get(REPAIR))
        if now != told and not sys.stderr.isatty():
            click.echo(now, err=True)
            told = now
        time.sleep(_LOOK_S)


def _progress(row: dict[str, Any], repair: dict[str, Any]) -> str:
    open_ledgers = f", {repair['open']} still open" if repair["open"] else ""
    return (
        f"{repair['checked']} of {repair['ledgers']} ledgers checked, {repair['repaired']} copied "
        f"({size(repair['bytesCopied'])}), {row['ledgersLeft']} left{open_ledgers}"
    )
