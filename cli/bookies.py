"""`quire bookies`: the cluster's storage nodes; drain one, give one up, and follow repair."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import quote

import click

from quire.cli.http import admin_url_option, json_option
from quire.cli.ledgers import LEDGERS, print_lost
from quire.cli.output import print_answer, print_fields, print_json, print_rows, size
from quire.runtime.errors import NotFound
from quire.runtime.rest import Admin

BOOKIES = "/quire/v1/bookies"
REPAIR = "/quire/v1/repair"
_LOOK_S = 1.0


@click.group("bookies")
def command() -> None:
    """See the cluster's bookies, drain one, and follow repair.

    BOOKIE is a UUID, the beginning of one, or an address.

    \b
    Examples:
      quire bookies list
      quire bookies decommission bookie-3:3181 --wait
    """


@command.command("list")
@admin_url_option
@json_option
def list_bookies(admin_url: str, as_json: bool) -> None:
    """List every bookie that was not retired, then the ledgers that lost something for good.

    Damaged copies are those of ledgers that were reported of this bookie, until repair has made others. What no copy
    has any more is lost for good: a line for each ledger, as `quire ledgers lost` has them.

    \b
    Example:
      quire bookies list
    """
    admin = Admin(admin_url)
    print_rows(
        admin.get(BOOKIES),
        as_json,
        {
            "bookie": "uuid",
            "address": "address",
            "rack": "rack",
            "state": "state",
            "free": lambda row: size(row["freeBytes"]),
            "of": lambda row: size(row["totalBytes"]),
            "damaged copies": "damagedCopies",
            "to leave": "ledgersLeft",
            "what to do": "note",
        },
        right=("free", "of", "damaged copies", "to leave"),
    )
    print_lost(admin.get(f"{LEDGERS}/lost"), err=True)


@command.command("show")
@click.argument("bookie")
@admin_url_option
@json_option
def show(bookie: str, admin_url: str, as_json: bool) -> None:
    """Show BOOKIE, with the damage that was reported of it.

    \b
    Example:
      quire bookies show bookie-1:3181
    """
    row = Admin(admin_url).get(_path(bookie))
    if as_json:
        print_json(row)
        return
    print_fields({name: value for name, value in row.items() if name != "damage"})
    for each in row["damage"]:
        click.echo(f"damage: ledger {each['ledger']} from entry {each['entry']}: {each['what']}")


@command.command("decommission")
@click.argument("bookie")
@click.option("--wait", is_flag=True, help="Show progress until the bookie is retired.")
@admin_url_option
@json_option
def decommission(bookie: str, wait: bool, admin_url: str, as_json: bool) -> None:
    """Drain BOOKIE: it takes nothing new, what it holds is copied to others, then it may be stopped for good.

    Open ledgers leave it by themselves. Take it back with `quire bookies keep`.

    \b
    Example:
      quire bookies decommission bookie-3:3181 --wait
    """
    admin = Admin(admin_url)
    row = admin.put(f"{_path(bookie)}/decommission")
    if wait:
        _follow(admin, row["uuid"])
        row = {"uuid": row["uuid"], "state": "retired"}
    print_answer(row, as_json)


@command.command("recover")
@click.argument("bookie")
@admin_url_option
@json_option
def recover(bookie: str, admin_url: str, as_json: bool) -> None:
    """Copy at once what BOOKIE held, which is not up, instead of waiting whether it comes back.

    \b
    Example:
      quire bookies recover 5f0c
    """
    print_answer(Admin(admin_url).put(f"{_path(bookie)}/recover"), as_json)


@command.command("keep")
@click.argument("bookie")
@admin_url_option
@json_option
def keep(bookie: str, admin_url: str, as_json: bool) -> None:
    """Take back what `decommission` or `recover` asked for BOOKIE.

    \b
    Example:
      quire bookies keep bookie-3:3181
    """
    print_answer(Admin(admin_url).put(f"{_path(bookie)}/keep"), as_json)


@command.command("repair")
@click.option("--run", is_flag=True, help="Have every ledger looked at now.")
@admin_url_option
@json_option
def repair(run: bool, admin_url: str, as_json: bool) -> None:
    """Show what repair does.

    \b
    Example:
      quire bookies repair --run
    """
    admin = Admin(admin_url)
    if run:
        admin.post(f"{REPAIR}/run")
    print_answer(admin.get(REPAIR), as_json)


def _path(bookie: str) -> str:
    return f"{BOOKIES}/{quote(bookie, safe='')}"


def _follow(admin: Admin, uuid: str) -> None:
    """Tell progress on standard error until the bookie's record is gone."""
    told = ""
    while True:
        try:
            row = admin.get(_path(uuid))
        except NotFound:
            return
        now = _progress(row, admin.get(REPAIR))
        if now != told:
            click.echo(now, err=True)
            told = now
        time.sleep(_LOOK_S)


def _progress(row: dict[str, Any], repair: dict[str, Any]) -> str:
    open_ledgers = f", {repair['open']} still open" if repair["open"] else ""
    return (
        f"{repair['checked']} of {repair['ledgers']} ledgers looked at, {repair['repaired']} copied "
        f"({size(repair['bytesCopied'])}), {row['ledgersLeft']} left{open_ledgers}"
    )
