"""`quire ledgers`: what was lost for good, and recovering a ledger by hand, when damage stops its topic."""

from __future__ import annotations

import sys
from typing import Any

import click

from quire.cli.http import admin_url_option, json_option
from quire.cli.output import print_answer, print_json
from quire.runtime.errors import GIVE_UP_COMMAND, ConfigurationError
from quire.runtime.rest import Admin

LEDGERS = "/quire/v1/ledgers"


@click.group("ledgers")
def command() -> None:
    """See which ledgers lost something for good, and recover one by hand.

    A broker recovers ledgers by itself and stops at a damaged block, because giving up what was acknowledged is a
    person's decision.

    \b
    Examples:
      quire ledgers lost
      quire ledgers recover 102 --accept-loss
    """


@command.command("lost")
@admin_url_option
@json_option
def lost(admin_url: str, as_json: bool) -> None:
    """List ledgers with entries that no bookie can give any more, as far as repair and that broker have met them.

    \b
    Example:
      quire ledgers lost
    """
    rows = Admin(admin_url).get(f"{LEDGERS}/lost")
    if as_json:
        print_json(rows)
    elif not rows:
        click.echo("nothing that anybody looked for is lost")
    else:
        print_lost(rows)


def print_lost(rows: list[dict[str, Any]], *, err: bool = False) -> None:
    """A line for each ledger that lost something: whose it is, and how to go on."""
    for row in rows:
        click.echo(f"{_whose(row)}: {row['what']}", err=err)


@command.command("recover")
@click.argument("ledger", type=click.IntRange(min=0))
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Look at the whole ledger, say what is lost for good, and give that up. Nothing does so by itself.",
)
@click.option("--yes", is_flag=True, help="With --accept-loss: give it up without asking.")
@admin_url_option
@json_option
def recover(ledger: int, accept_loss: bool, yes: bool, admin_url: str, as_json: bool) -> None:
    """Fence LEDGER, find its end and close it.

    With --accept-loss everything that reads the ledger goes on after what was lost. That cannot be taken back.
    """
    admin = Admin(admin_url)
    if not accept_loss:
        print_answer(admin.post(f"{LEDGERS}/{ledger}/recover"), as_json)
        return
    if not yes and not _is_given_up(admin.get(f"{LEDGERS}/{ledger}/loss"), as_json):
        return
    answer = admin.post(f"{LEDGERS}/{ledger}/recover?accept_loss=true")
    if as_json:
        print_json(answer)
        return
    click.echo(f"{_whose(answer)} is closed and ends with entry {answer['lastEntry']}")
    for hole in answer["holes"]:
        click.echo(f"given up: {_told(hole)}")
    if not answer["holes"]:
        click.echo("nothing was given up")


def _is_given_up(found: dict[str, Any], as_json: bool) -> bool:
    """Say what would be given up; True when a person agrees, False when there is nothing to decide."""
    ledger = found["ledgerId"]
    is_whole = found["state"] == "closed" and not found["found"]
    if as_json:
        print_json(found)
    else:
        click.echo(f"{_whose(found)} is {found['state']}")
        for hole in found["holes"]:
            click.echo(f"given up before: {_told(hole)}")
        for hole in found["found"]:
            click.echo(f"lost for good: {_told(hole)}: {hole['why']}")
        if found["state"] != "closed":
            click.echo("it will be closed before the first damaged block after what is known to be confirmed")
        elif is_whole:
            other = "other " if found["holes"] else ""
            click.echo(f"every {other}entry can be read: there is nothing to give up")
    if is_whole:
        return False
    if as_json or not sys.stdin.isatty():
        raise ConfigurationError(f"nothing was changed; `{GIVE_UP_COMMAND.format(ledger)} --yes` gives it up")
    click.confirm("Give it up? That cannot be taken back", abort=True)
    return True


def _whose(row: dict[str, Any]) -> str:
    return f"ledger {row['ledgerId']} of {row['purpose']}"


def _told(hole: dict[str, Any]) -> str:
    cut_off = ", after the end" if hole["isCutOff"] else ""
    return f"entries {hole['firstEntry']} to {hole['lastEntry']} ({hole['messages']} messages{cut_off})"
