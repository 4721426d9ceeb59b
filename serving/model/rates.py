"""Rates for `stats`, and totals for metrics.

Rates are computed on request, without a timer or work on the data path.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

from quire.runtime.metrics import Histogram

WINDOW_S: Final = 10.0
"""Minimum duration, in seconds, over which a rate is measured, unless measuring began later."""


@dataclass(slots=True)
class Totals:
    """Totals over all topics of a bundle since the broker started.

    They never decrease, unlike a topic's own counters, which start at 0 at each load.
    """

    bytes_in: int = 0
    messages_out: int = 0
    bytes_out: int = 0
    redelivered: int = 0
    acked: int = 0
    publish_s: Histogram = field(default_factory=Histogram)
    """Histogram of publish latencies.

    It has one observation per message, so its count is the number of messages received.
    """
    dispatch_s: Histogram = field(default_factory=Histogram)
    ack_s: Histogram = field(default_factory=Histogram)

    @property
    def messages_in(self) -> int:
        return self.publish_s.count

    def add(self, other: Totals) -> None:
        """Add the totals of `other`."""
        self.bytes_in += other.bytes_in
        self.messages_out += other.messages_out
        self.bytes_out += other.bytes_out
        self.redelivered += other.redelivered
        self.acked += other.acked
        self.publish_s.add(other.publish_s)
        self.dispatch_s.add(other.dispatch_s)
        self.ack_s.add(other.ack_s)


class Rate:
    """Rates per second of counters that only increase."""

    __slots__ = ("_marks",)

    def __init__(self) -> None:
        self._marks: list[tuple[float, tuple[int, ...]]] = []

    def per_second(self, now: float, *counts: int) -> tuple[float, ...]:
        """Return the growth of each of `counts` per second. `now` is monotonic time in seconds."""
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
    """Counters of messages and bytes that one topic received since it was loaded. Its bundle's totals include them."""

    __slots__ = ("_rate", "_totals", "bytes", "messages")

    def __init__(self, totals: Totals) -> None:
        self.messages = 0
        self.bytes = 0
        self._rate = Rate()
        self._totals = totals

    def count_for(self, totals: Totals) -> None:
        """Count in the totals of another bundle from now on, because the topic was moved to it."""
        self._totals = totals

    def count(self, messages: int, byte_count: int, took_s: float) -> None:
        """Count a published block; `took_s` is the time since its oldest message arrived."""
        self.messages += messages
        self.bytes += byte_count
        totals = self._totals
        totals.bytes_in += byte_count
        publish_s = totals.publish_s  # `Histogram.observe`, inlined: a call for each block costs too much
        publish_s.counts[bisect_left(publish_s.bounds, took_s)] += messages
        publish_s.sum += took_s * messages

    def per_second(self, now: float) -> tuple[float, ...]:
        """Return messages and bytes per second. `now` is monotonic time in seconds."""
        return self._rate.per_second(now, self.messages, self.bytes)


class Sent:
    """Totals of one producer since it was opened."""

    __slots__ = ("_rate", "bytes", "entries", "messages")

    def __init__(self) -> None:
        self.entries = 0
        self.messages = 0
        self.bytes = 0
        self._rate = Rate()

    def count(self, entries: int, messages: int, byte_count: int) -> None:
        self.entries += entries
        self.messages += messages
        self.bytes += byte_count

    def per_second(self, now: float) -> tuple[float, ...]:
        """Return messages and bytes per second. `now` is monotonic time in seconds."""
        return self._rate.per_second(now, self.messages, self.bytes)
