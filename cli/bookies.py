"""`quire bookies`: the cluster's storage nodes; drain one, give one up, and follow repair."""

from __future__ import annotations

import sys
import time
from typing import Any
from urllib.parse import quote

import click

from quire.cli.ledgers import LEDGERS, losses
from quire.cli.noun import Noun
from quire.cli.output import Answer, Column, fields, size, table_of
from quire.cli.progress import Show, bar
from quire.runtime.errors import NotFound
from quire.runtime.rest import Admin

BOOKIES = "/quire/v1/bookies"
REPAIR = "/quire/v1/repair"
_LOOK_S = 1.0


@click.group("bookies", cls=Noun)
def command() -> None:
    """See the cluster's bookies, drain one, and follow repair.

    BOOKIE is a UUID, the beginning of one, or an address.

    \b
    Examples:
      quire bookies list
      quire bookies decommission bookie-3:3181 --wait
    """


@command.verb("list")
def list_bookies(admin: Admin) -> Answer:
    """List every bookie that was not retired, then the ledgers that lost something for good.

    Damaged copies are those of ledgers that were reported of this bookie, until repair has made others. What no copy
    has any more is lost for good: a line for each ledger, as `quire ledgers lost` has them.

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
    """Show BOOKIE, with the damage that was reported of it.

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
    """Drain BOOKIE: it takes nothing new, what it holds is copied to others, then it may be stopped for good.

    Open ledgers leave it by themselves. Take it back with `quire bookies keep`.

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
    """Copy at once what BOOKIE held, which is not up, instead of waiting whether it comes back.

    \b
    Example:
      quire bookies recover 5f0c
    """
    return fields(admin.put(f"{_path(bookie)}/recover"))


@command.verb("keep")
@click.argument("bookie")
def keep(admin: Admin, bookie: str) -> Answer:
    """Take back what `decommission` or `recover` asked for BOOKIE.

    \b
    Example:
      quire bookies keep bookie-3:3181
    """
    return fields(admin.put(f"{_path(bookie)}/keep"))


@command.verb("repair")
@click.option("--run", is_flag=True, help="Have every ledger looked at now.")
def repair(admin: Admin, run: bool) -> Answer:
    """Show what repair does.

    \b
    Example:
      quire bookies repair --run
    """
    if run:
        admin.post(f"{REPAIR}/run")
    return fields(admin.get(REPAIR))


def _path(bookie: str) -> str:
    return f"{BOOKIES}/{quote(bookie, safe='')}"


def _follow(admin: Admin, uuid: str) -> None:
    """Shows how far it is until the bookie's record is gone: a bar, or lines elsewhere than on a terminal."""
    try:
        with bar("ledgers copied") as show:
            _follow_on(admin, uuid, show)
    except KeyboardInterrupt:
        click.echo(f"the bookie drains on; `quire bookies keep {uuid[:8]}` takes it back", err=True)
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
        f"{repair['checked']} of {repair['ledgers']} ledgers looked at, {repair['repaired']} copied "
        f"({size(repair['bytesCopied'])}), {row['ledgersLeft']} left{open_ledgers}"
    )
