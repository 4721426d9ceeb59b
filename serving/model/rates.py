"""Rates for `stats`, computed when somebody asks (no timer, no work on the data path), and totals for metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

WINDOW_S: Final = 10.0
"""A rate is over the time since the last look, but at least over this long, once a counter is that old."""


@dataclass(slots=True)
class Totals:
    """What all topics of a bundle took in since the broker started; unlike a topic's own counters these never fall."""

    messages_in: int = 0
    bytes_in: int = 0


class Rate:
    """Turns counters that only grow into rates per second."""

    __slots__ = ("_marks",)

    def __init__(self) -> None:
        self._marks: list[tuple[float, tuple[int, ...]]] = []

    def per_second(self, now: float, *counts: int) -> tuple[float, ...]:
        """The growth of each of `counts` per second. `now` in seconds, monotonic."""
        marks = self._marks
        while len(marks) > 1 and now - marks[1][0] >= WINDOW_S:
            del marks[0]
        if not marks:
            marks.append((now, counts))
            return tuple(0.0 for _ in counts)
        since, before = marks[0]
        if now - marks[-1][0] >= 1.0:
            marks.append((now, counts))
        elapsed = now - since
        if elapsed <= 0:
            return tuple(0.0 for _ in counts)
        return tuple((count - old) / elapsed for count, old in zip(counts, before, strict=True))
