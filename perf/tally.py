"""Tally of messages: their number, bytes and latencies, in a worker since its last report, or in all workers.

A worker sends what happened since its last report, and the parent adds it up. So the report of an interrupted run has
all that was measured before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.perf.histogram import LatencyHistogram


class Tally:
    """Messages that were published, or consumed. `all_messages` also counts the warm-up."""

    def __init__(self) -> None:
        self.all_messages = 0
        self.messages = 0
        self.bytes = 0
        self.failed = 0
        self.failure = ""
        """First error of a message."""
        self.last_ns = 0
        """Time of the last counted receipt, failure or arrival, in ns since 1970."""
        self.latencies = LatencyHistogram()

    def count(self, size: int, now_ns: int, latency_ns: int | None) -> None:
        """Count a message after the warm-up. A consumed message of another program has no latency."""
        self.all_messages += 1
        self.messages += 1
        self.bytes += size
        self.last_ns = now_ns
        if latency_ns is not None:
            self.latencies.record(latency_ns)

    def fail(self, messages: int, now_ns: int, error: str) -> None:
        """Count messages that the broker refused, or that got no receipt. The time of waiting for it counts."""
        self.failed += messages
        self.last_ns = now_ns
        self.failure = self.failure or error

    def add(self, other: Tally) -> None:
        """Add the messages of another tally."""
        self.all_messages += other.all_messages
        self.messages += other.messages
        self.bytes += other.bytes
        self.failed += other.failed
        self.failure = self.failure or other.failure
        self.last_ns = max(self.last_ns, other.last_ns)
        self.latencies.add(other.latencies)

    def as_json(self) -> dict[str, Any]:
        """Return the tally for another process."""
        return vars(self) | {"latencies": self.latencies.as_json()}

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Tally:
        """Return the tally that `as_json` described."""
        made = cls()
        vars(made).update(given)
        made.latencies = LatencyHistogram.from_json(given["latencies"])
        return made


def taken(tallies: dict[str, Tally]) -> dict[str, Any]:
    """Return the tallies for another process, and begin new ones."""
    found = {name: one.as_json() for name, one in tallies.items()}
    tallies.update({name: Tally() for name in tallies})
    return found
