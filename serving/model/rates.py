"""Rates for `stats`, computed when somebody asks (no timer, no work on the data path), and totals for metrics."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

from quire.runtime.metrics import Histogram

WINDOW_S: Final = 10.0
"""A rate is over the time since the last look, but at least over this long, once a counter is that old."""


@dataclass(slots=True)
class Totals:
    """What all topics of a bundle did since the broker started; unlike a topic's own counters these never fall."""

    bytes_in: int = 0
    messages_out: int = 0
    bytes_out: int = 0
    redelivered: int = 0
    acked: int = 0
    publish_s: Histogram = field(default_factory=Histogram)
    """Of each message: so it knows how many there were."""
    dispatch_s: Histogram = field(default_factory=Histogram)
    ack_s: Histogram = field(default_factory=Histogram)

    @property
    def messages_in(self) -> int:
        return self.publish_s.count

    def add(self, other: Totals) -> None:
        """Count what `other` counted as well."""
        self.bytes_in += other.bytes_in
        self.messages_out += other.messages_out
        self.bytes_out += other.bytes_out
        self.redelivered += other.redelivered
        self.acked += other.acked
        self.publish_s.add(other.publish_s)
        self.dispatch_s.add(other.dispatch_s)
        self.ack_s.add(other.ack_s)


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

    def count_for(self, totals: Totals) -> None:
        """The topic is of another bundle from now on."""
        self._totals = totals

    def count(self, messages: int, byte_count: int, took_s: float) -> None:
        """A block; `took_s` from the arrival of its oldest message on."""
        self.messages += messages
        self.bytes += byte_count
        totals = self._totals
        totals.bytes_in += byte_count
        publish_s = totals.publish_s  # as `observe` does it, without a call for each block
        publish_s.counts[bisect_left(publish_s.bounds, took_s)] += messages
        publish_s.sum += took_s * messages

    def per_second(self, now: float) -> tuple[float, ...]:
        """Messages and bytes. `now` in seconds, monotonic."""
        return self._rate.per_second(now, self.messages, self.bytes)
