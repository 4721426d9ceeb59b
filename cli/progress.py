"""Progress of long commands on a terminal: a bar if the total is known, else the elapsed time.

Progress is shown only on terminals. Ctrl-C ends a command, but a broker still finishes the requested work; `followed`
informs the user of that.
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
"""Seconds after which the elapsed time of a command is shown."""

LOOK_S: Final = 1.0

Show = Callable[[int, int], None]
"""Function that takes the number done and the total."""

_ON_THE_TERMINAL = threading.Lock()
"""Held by the progress that is being shown, because a terminal shows one at a time."""


@contextmanager
def bar(of_what: str) -> Iterator[Show]:
    """Yield a function that shows a bar for the number done and the total."""
    with phases(of_what) as show:
        yield lambda done, of: show(of_what, done, of)


@contextmanager
def phases(first: str = "") -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function that shows a bar for a step of the work: its name, the number done and the total."""
    if not sys.stderr.isatty():
        yield lambda _what, _done, _of: None
        return
    with _ON_THE_TERMINAL, _display("{task.completed}/{task.total} {task.description}") as shown:
        task = shown.add_task(first, total=None)
        yield lambda what, done, of: shown.update(task, description=what, completed=done, total=of or None)


@contextmanager
def patience() -> Iterator[None]:
    """Show the elapsed time after `PATIENCE_S`, unless another progress is being shown."""
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
        begin.join()  # otherwise the timer might start the display after it was stopped
        shown.stop()
        _ON_THE_TERMINAL.release()


@contextmanager
def followed(of_what: str, look: Callable[[], tuple[int, int]], *, goes_on: str) -> Iterator[None]:
    """Show the progress of the `with` block, polled by `look`; print `goes_on` if the user interrupts it."""
    end = threading.Event()

    def follow(show: Show) -> None:
        while not end.wait(LOOK_S):
            try:
                show(*look())
            except QuireError:
                pass  # the request itself raises it as well

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
