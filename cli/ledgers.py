"""`quire ledgers`: recover a ledger by hand, when a damaged block stops its topic."""

from __future__ import annotations

import click

from quire.cli.http import Admin, admin_url_option, json_option
from quire.cli.output import print_answer


@click.group("ledgers")
def command() -> None:
    """Recover a ledger by hand.

    A broker recovers ledgers by itself and stops at a damaged block, because giving up what was acknowledged is a
    person's decision.

    \b
    Examples:
      quire ledgers recover 102
      quire ledgers recover 102 --accept-loss
    """


@command.command("recover")
@click.argument("ledger", type=click.IntRange(min=0))
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Close the ledger before its first damaged block, and say what was lost. Nothing does so by itself.",
)
@admin_url_option
@json_option
def recover(ledger: int, accept_loss: bool, admin_url: str, as_json: bool) -> None:
    """Fence LEDGER, find its end and close it."""
    flag = str(accept_loss).lower()
    answer = Admin(admin_url).post(f"/quire/v1/ledgers/{ledger}/recover?accept_loss={flag}")
    print_answer(answer, as_json)
