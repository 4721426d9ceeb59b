"""A bar that shows how far a long command is, on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def bar(of_what: str) -> Iterator[Callable[[int, int], None]]:
    """Gives what to call with how many are done, and of how many. Nothing is shown elsewhere than on a terminal."""
    if not sys.stderr.isatty():
        yield lambda _done, _of: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), TextColumn(f"{{task.completed}}/{{task.total}} {of_what}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("", total=None)
        yield lambda done, of: shown.update(task, completed=done, total=of)
