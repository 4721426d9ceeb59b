"""`quire ledgers`: what was lost for good, and recovering a ledger by hand, when damage stops its topic."""

from __future__ import annotations

import sys
from typing import Any

import click

from quire.cli.noun import Noun, wants_json
from quire.cli.output import Answer, fields
from quire.runtime.errors import GIVE_UP_COMMAND, ConfigurationError
from quire.runtime.rest import Admin

LEDGERS = "/quire/v1/ledgers"


@click.group("ledgers", cls=Noun)
def command() -> None:
    """See which ledgers lost something for good, and recover one by hand.

    A broker recovers ledgers by itself and stops at a damaged block, because giving up what was acknowledged is a
    person's decision.

    \b
    Examples:
      quire ledgers lost
      quire ledgers recover 102 --accept-loss
    """


@command.verb("lost")
def lost(admin: Admin) -> Answer:
    """List ledgers with entries that no bookie can give any more, as far as repair and that broker have met them.

    \b
    Example:
      quire ledgers lost
    """
    rows = admin.get(f"{LEDGERS}/lost")
    return Answer(rows, *losses(rows) or ["nothing that anybody looked for is lost"])


def losses(rows: list[dict[str, Any]]) -> list[str]:
    """A line for each ledger that lost something: whose it is, and how to go on."""
    return [f"{_whose(row)}: {row['what']}" for row in rows]


@command.verb("recover")
@click.argument("ledger", type=click.IntRange(min=0))
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Look at the whole ledger, say what is lost for good, and give that up. Nothing does so by itself.",
)
@click.option("--yes", is_flag=True, help="With --accept-loss: give it up without asking.")
def recover(admin: Admin, ledger: int, accept_loss: bool, yes: bool) -> Answer:
    """Fence LEDGER, find its end and close it.

    With --accept-loss everything that reads the ledger goes on after what was lost. That cannot be taken back.
    """
    if not accept_loss:
        return fields(admin.post(f"{LEDGERS}/{ledger}/recover"))
    if not yes:
        found = _found(admin.get(f"{LEDGERS}/{ledger}/loss"))
        if found.error is not None or _is_whole(found.value):
            return found
        found.say(as_json=False)
        click.confirm("Give it up? That cannot be taken back", abort=True)
    answer = admin.post(f"{LEDGERS}/{ledger}/recover?accept_loss=true")
    return Answer(
        answer,
        f"{_whose(answer)} is closed and ends with entry {answer['lastEntry']}",
        *[f"given up: {_told(hole)}" for hole in answer["holes"]] or ["nothing was given up"],
    )


def _found(loss: dict[str, Any]) -> Answer:
    """What would be given up; with an error where no person can be asked whether it may."""
    shown = [
        f"{_whose(loss)} is {loss['state']}",
        *(f"given up before: {_told(hole)}" for hole in loss["holes"]),
        *(f"lost for good: {_told(hole)}: {hole['why']}" for hole in loss["found"]),
    ]
    if loss["state"] != "closed":
        shown.append("it will be closed before the first damaged block after what is known to be confirmed")
    elif _is_whole(loss):
        other = "other " if loss["holes"] else ""
        shown.append(f"every {other}entry can be read: there is nothing to give up")
    error = None
    if not _is_whole(loss) and (wants_json() or not sys.stdin.isatty()):
        command = GIVE_UP_COMMAND.format(loss["ledgerId"])
        error = ConfigurationError(f"nothing was changed; `{command} --yes` gives it up")
    return Answer(loss, *shown, error=error)


def _is_whole(loss: dict[str, Any]) -> bool:
    return loss["state"] == "closed" and not loss["found"]


def _whose(row: dict[str, Any]) -> str:
    return f"ledger {row['ledgerId']} of {row['purpose']}"


def _told(hole: dict[str, Any]) -> str:
    cut_off = ", after the end" if hole["isCutOff"] else ""
    return f"entries {hole['firstEntry']} to {hole['lastEntry']} ({hole['messages']} messages{cut_off})"
