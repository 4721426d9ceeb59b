"""Output of commands: tables for people, JSON for programs, one sentence and an exit code for errors.

Exit codes: 0 done, 1 failed, 2 wrong use or configuration, 3 not found, 4 try again later, or an audit's finding.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click

from quire.runtime.errors import ConfigurationError, NotFound, OutcomeUnknown, QuireError, Unavailable

FAILED = 1
WRONG_USE = 2
NOT_FOUND = 3
TRY_AGAIN = 4


class Found(QuireError):
    """An audit finished and found problems. Exit code 4."""


@contextmanager
def exit_with_one_sentence() -> Iterator[None]:
    """Run a command; end the process with the exit code for the raised error."""
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
    """Return the exit code for an error."""
    if isinstance(error, ConfigurationError):
        return WRONG_USE
    if isinstance(error, NotFound):
        return NOT_FOUND
    if isinstance(error, Unavailable | OutcomeUnknown | Found):
        return TRY_AGAIN
    return FAILED


def size(count: int) -> str:
    """Format a number of bytes with three digits: 0 B, 812 KiB, 1.50 GiB."""
    amount, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if amount < 999.5:
            break
        amount, unit = amount / 1024, larger
    digits = 0 if unit == "B" or amount >= 99.95 else 1 if amount >= 9.995 else 2
    return f"{amount:.{digits}f} {unit}"


def visible(text: str) -> str:
    """Escape control characters, such as \\x1b, for a terminal; tabs are kept."""
    return "".join(c if c.isprintable() or c == "\t" else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, sort_keys=False))


@dataclass(frozen=True)
class Table:
    """Table as wide as its content; the columns in `right` are right-aligned numbers."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    right: Sequence[str] = ()

    def print(self, *, err: bool = False) -> None:
        """Print the table; with `err`, on standard error."""
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in self.columns:
            table.add_column(column, justify="right" if column in self.right else "left", no_wrap=True)
        for row in self.rows:
            table.add_row(*(escape(str(cell)) for cell in row))
        console = Console(stderr=err)
        if not console.is_terminal:
            console = Console(stderr=err, width=240)
        console.print(table)


Row = Mapping[str, Any]
Column = str | Callable[[Row], Any]
"""Content of a column: a key of the row, or a function of the row."""

Shown = str | Mapping[str, Any] | Table


class Answer:
    """Result of a command: `value` for programs, as JSON; `shown` for people: lines, fields and tables.

    `notes` are lines on standard error. `error`, the reason why the result is incomplete, ends the command after
    printing.
    """

    def __init__(
        self, value: Any, *shown: Shown, notes: Iterable[str] = (), error: QuireError | None = None
    ) -> None:
        self.value = value
        self.shown = shown
        self.notes = notes
        self.error = error

    def say(self, as_json: bool) -> None:
        """Print the result. Raises its error, if any."""
        if as_json:
            print_json(self.value)
        else:
            _show(self.shown)
        for line in self.notes:
            click.echo(line, err=True)
        if self.error is not None:
            raise self.error


def _show(parts: Iterable[Shown]) -> None:
    for part in parts:
        if isinstance(part, str):
            click.echo(part)
        elif isinstance(part, Table):
            part.print()
        else:
            width = max((len(name) for name in part), default=0)
            for name, value in part.items():
                click.echo(f"{name:<{width}}  {value}")


def done(said: str, **values: Any) -> Answer:
    """Return an answer for a finished operation: `said` is printed, or `values` as JSON."""
    return Answer(values, said)


def fields(values: Mapping[str, Any]) -> Answer:
    """Return an answer with the fields of one object, one per line."""
    return Answer(values, values)


def table_of(rows: Iterable[Row], columns: Mapping[str, Column], *, right: Sequence[str] = ()) -> Table:
    """Return a table of rows from a broker; missing values are empty."""
    cells = [[row.get(of, "") if isinstance(of, str) else of(row) for of in columns.values()] for row in rows]
    return Table(list(columns), cells, right)
