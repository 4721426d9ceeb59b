"""What a terminal shows of a command that takes long: a bar where it is known how far it is, else the time.

Nothing of it is shown elsewhere than on a terminal. Ctrl-C ends any command; what a broker was asked to do it does to
its end all the same, and `followed` says so.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from quire.runtime.errors import QuireError

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE_S: Final = 2.0
"""A wait is shown when it has taken so long."""

LOOK_S: Final = 1.0

Show = Callable[[int, int], None]
"""Takes how many are done, and of how many."""

_ON_THE_TERMINAL = threading.Lock()
"""Held by what is shown: a terminal has room for one."""


@contextmanager
def bar(of_what: str) -> Iterator[Show]:
    """Gives what to call with how many are done, and of how many."""
    with phases(of_what) as show:
        yield lambda done, of: show(of_what, done, of)


@contextmanager
def phases(first: str = "") -> Iterator[Callable[[str, int, int], None]]:
    """As `bar`, for work in steps: what is called is told of what, too."""
    if not sys.stderr.isatty():
        yield lambda _what, _done, _of: None
        return
    with _ON_THE_TERMINAL, _display("{task.completed}/{task.total} {task.description}") as shown:
        task = shown.add_task(first, total=None)
        yield lambda what, done, of: shown.update(task, description=what, completed=done, total=of or None)


@contextmanager
def patience() -> Iterator[None]:
    """Whoever waits longer than `PATIENCE_S` inside, and is shown nothing else, sees for how long."""
    if not sys.stderr.isatty() or not _ON_THE_TERMINAL.acquire(blocking=False):
        yield
        return
    shown = _display("the broker works")
    shown.add_task("", total=None)
    begin = threading.Timer(PATIENCE_S, shown.start)
    begin.daemon = True
    begin.start()
    try:
        yield
    finally:
        begin.cancel()
        begin.join()  # else it might begin to show after its end
        shown.stop()
        _ON_THE_TERMINAL.release()


@contextmanager
def followed(of_what: str, look: Callable[[], tuple[int, int]], *, goes_on: str) -> Iterator[None]:
    """Shows how far what is done inside is, as `look` says now and then; `goes_on` is told to whoever ends it."""
    end = threading.Event()

    def follow(show: Show) -> None:
        while not end.wait(LOOK_S):
            try:
                show(*look())
            except QuireError:
                pass  # who waits for the work itself hears of it

    try:
        with bar(of_what) as show:
            if sys.stderr.isatty():
                threading.Thread(target=follow, args=(show,), daemon=True).start()
            yield
    except KeyboardInterrupt:
        click.echo(goes_on, err=True)
        raise
    finally:
        end.set()


def _display(text: str) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), TextColumn(text), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)
