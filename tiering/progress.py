"""How far each of the long works is that operators asked of the archive: counted by who does it, read by who waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class Progress:
    """`done` of `of` segments; 0 of 0 until it is known how many there are."""

    what: str
    """The command: run, verify or repair."""
    done: int = 0
    of: int = 0


class UnderWay:
    """Those of one broker."""

    def __init__(self) -> None:
        self._works: list[Progress] = []

    @contextmanager
    def work(self, what: str) -> Iterator[Progress]:
        """Shown as long as this is entered."""
        progress = Progress(what)
        self._works.append(progress)
        try:
            yield progress
        finally:
            self._works.remove(progress)

    def as_list(self) -> list[dict[str, Any]]:
        return [asdict(one) for one in self._works]
