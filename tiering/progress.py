"""Progress of long commands on the archive, for operators."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Progress:
    """Progress of one command: `done` of `of` segments; 0 of 0 while the total is unknown."""

    what: str
    """Name of the command: run, verify or repair."""
    done: int = 0
    of: int = 0


class UnderWay:
    """Commands in progress on one broker."""

    def __init__(self) -> None:
        self.works: list[Progress] = []

    @contextmanager
    def work(self, what: str) -> Iterator[Progress]:
        """Register a command for the duration of the context."""
        progress = Progress(what)
        self.works.append(progress)
        try:
            yield progress
        finally:
            self.works.remove(progress)
