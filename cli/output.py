"""What the command prints: tables for people, JSON for programs, one sentence and an exit code for errors.

Exit codes: 0 done, 1 failed, 2 wrong use or configuration, 3 not found, 4 try again later.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click

from quire.runtime.errors import ConfigurationError, NotFound, OutcomeUnknown, QuireError, Unavailable

FAILED = 1
WRONG_USE = 2
NOT_FOUND = 3
TRY_AGAIN = 4


@contextmanager
def exit_with_one_sentence() -> Iterator[None]:
    """Run a command; end the process with the exit code of whatever it raised."""
    try:
        yield
    except click.ClickException as error:
        error.show()
        sys.exit(WRONG_USE)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(0)
    except QuireError as error:
        click.echo(f"quire: {error}", err=True)
        sys.exit(exit_code(error))


def exit_code(error: QuireError) -> int:
    """Which exit code tells a script what kind of error this was."""
    if isinstance(error, ConfigurationError):
        return WRONG_USE
    if isinstance(error, NotFound):
        return NOT_FOUND
    if isinstance(error, Unavailable | OutcomeUnknown):
        return TRY_AGAIN
    return FAILED


def size(count: int) -> str:
    """Bytes for people, to three digits: 0 B, 812 KiB, 1.50 GiB."""
    amount, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if amount < 999.5:
            break
        amount, unit = amount / 1024, larger
    digits = 0 if unit == "B" or amount >= 99.95 else 1 if amount >= 9.995 else 2
    return f"{amount:.{digits}f} {unit}"


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, sort_keys=False))


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], *, right: Sequence[str] = (), err: bool = False
) -> None:
    """A table as wide as its content; the columns named in `right` are numbers; `err`: on standard error."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(escape(str(cell)) for cell in row))
    console = Console(stderr=err)
    if not console.is_terminal:
        console = Console(stderr=err, width=240)
    console.print(table)


def print_rows(
    rows: Sequence[Mapping[str, Any]],
    as_json: bool,
    columns: Mapping[str, str | Callable[[Mapping[str, Any]], Any]],
    *,
    right: Sequence[str] = (),
) -> None:
    """A broker's rows: as they are to programs, to people as a table whose `columns` name a key or make a cell."""
    if as_json:
        print_json(rows)
        return
    cells = [[row[of] if isinstance(of, str) else of(row) for of in columns.values()] for row in rows]
    print_table(list(columns), cells, right=right)


def print_done(as_json: bool, said: str, **values: Any) -> None:
    """What was done: `said` to people, `values` to programs."""
    print_json(values) if as_json else click.echo(said)


def print_answer(values: Mapping[str, Any], as_json: bool) -> None:
    """One thing with its fields: JSON to programs, names and values to people."""
    print_json(values) if as_json else print_fields(values)


def print_fields(values: Mapping[str, Any]) -> None:
    """Names and values below each other."""
    width = max((len(name) for name in values), default=0)
    for name, value in values.items():
        click.echo(f"{name:<{width}}  {value}")
