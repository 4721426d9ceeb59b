"""`quire ledgers`: list lost entries, and recover a ledger manually when damage stops its topic."""

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
    """List ledgers that lost entries, and recover a ledger manually.

    Brokers recover ledgers automatically, but stop at damaged entries, because only an operator may decide to
    discard acknowledged messages.

    \b
    Examples:
      quire ledgers lost
      quire ledgers recover 102 --accept-loss
    """


@command.verb("lost")
def lost(admin: Admin) -> Answer:
    """List ledgers with entries that no bookie has any more, as found by repair and by the broker that answers.

    \b
    Example:
      quire ledgers lost
    """
    rows = admin.get(f"{LEDGERS}/lost")
    return Answer(rows, *losses(rows) or ["no lost entries were found"])


def losses(rows: list[dict[str, Any]]) -> list[str]:
    """Return a line for each ledger that lost entries, with its owner and the next step."""
    return [f"{_whose(row)}: {row['what']}" for row in rows]


@command.verb("recover")
@click.argument("ledger", type=click.IntRange(min=0))
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Check the whole ledger, list the lost entries, and discard them. This never happens automatically.",
)
@click.option("--yes", is_flag=True, help="With --accept-loss: do not ask for confirmation.")
def recover(admin: Admin, ledger: int, accept_loss: bool, yes: bool) -> Answer:
    """Fence LEDGER, find its end and close it.

    With --accept-loss, readers of the ledger continue after the lost entries. This cannot be undone.

    \b
    Examples:
      quire ledgers recover 102
      quire ledgers recover 102 --accept-loss
    """
    if not accept_loss:
        return fields(admin.post(f"{LEDGERS}/{ledger}/recover"))
    if not yes:
        found = _found(admin.get(f"{LEDGERS}/{ledger}/loss"))
        if found.error is not None or _is_whole(found.value):
            return found
        found.say(as_json=False)
        click.confirm("Discard these entries? This cannot be undone", abort=True)
    answer = admin.post(f"{LEDGERS}/{ledger}/recover?accept_loss=true")
    return Answer(
        answer,
        f"{_whose(answer)} is closed and ends with entry {answer['lastEntry']}",
        *[f"discarded: {_told(hole)}" for hole in answer["holes"]] or ["no entries were discarded"],
    )


def _found(loss: dict[str, Any]) -> Answer:
    """Describe the entries to be discarded; the answer has an error if there is no terminal to ask for confirmation."""
    shown = [
        f"{_whose(loss)} is {loss['state']}",
        *(f"discarded before: {_told(hole)}" for hole in loss["holes"]),
        *(f"lost: {_told(hole)}: {hole['why']}" for hole in loss["found"]),
    ]
    if loss["state"] != "closed":
        shown.append("it will be closed before the first damaged entry after the last confirmed one")
    elif _is_whole(loss):
        other = "other " if loss["holes"] else ""
        shown.append(f"all {other}entries are readable: there is nothing to discard")
    error = None
    if not _is_whole(loss) and (wants_json() or not sys.stdin.isatty()):
        command = GIVE_UP_COMMAND.format(loss["ledgerId"])
        error = ConfigurationError(f"nothing was changed; run `{command} --yes` to discard these entries")
    return Answer(loss, *shown, error=error)


def _is_whole(loss: dict[str, Any]) -> bool:
    return loss["state"] == "closed" and not loss["found"]


def _whose(row: dict[str, Any]) -> str:
    return f"ledger {row['ledgerId']} of {row['purpose']}"


def _told(hole: dict[str, Any]) -> str:
    cut_off = ", after the end" if hole["isCutOff"] else ""
    return f"entries {hole['firstEntry']} to {hole['lastEntry']} ({hole['messages']} messages{cut_off})"
