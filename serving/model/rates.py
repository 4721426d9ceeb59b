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


class Received:
    """What one topic took in since it was loaded; it counts for its bundle, too."""

    __slots__ = ("_rate", "_totals", "bytes", "messages")

    def __init__(self, totals: Totals) -> None:
        self.messages = 0
        self.bytes = 0
        self._rate = Rate()
        self._totals = totals

    def count(self, messages: int, byte_count: int) -> None:
        self.messages += messages
        self.bytes += byte_count
        self._totals.messages_in += messages
        self._totals.bytes_in += byte_count

    def per_second(self, now: float) -> tuple[float, ...]:
        """Messages and bytes. `now` in seconds, monotonic."""
        return self._rate.per_second(now, self.messages, self.bytes)
