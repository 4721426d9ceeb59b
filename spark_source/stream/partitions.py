"""State of a stream's partitions, requested from the broker at every trigger.

A trigger without new messages costs one small request for each partition, for its end. The list of segments is
requested only if the end has changed. Added partitions, and topics that newly match a pattern, are discovered every
`DISCOVERY_S`.

An exception would end the query, so requests are retried for `PATIENCE_S` if a broker does not answer. That is longer
than a restart of a broker, or a topic's move to another broker, takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from quire.runtime.errors import NotFound, Unavailable
from quire.spark_source.broker import Broker
from quire.spark_source.options import Options
from quire.spark_source.plan import load_segments, topics_of
from quire.spark_source.stream.offsets import Offset, Partition

DISCOVERY_S: Final = 30.0
PATIENCE_S: Final = 120.0
PAUSE_S: Final = 1.0

T = TypeVar("T")


def patiently(ask: Callable[[], T]) -> T:
    """Call `ask` until the broker answers. Raises `Unavailable` after `PATIENCE_S`."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return ask()
        except Unavailable:
            if time.monotonic() >= until:
                raise
            time.sleep(PAUSE_S)


class Partitions:
    """Partitions of a stream's topics, as of their last refresh."""

    def __init__(self, options: Options, broker: Broker) -> None:
        self._options = options
        self._broker = broker
        self._names: list[str] = []
        self._discovered: float | None = None
        self._known: dict[str, tuple[tuple[int, int], Partition]] = {}
        """Partitions by name, each with its last confirmed entry at the last refresh."""

    def refresh(self) -> dict[str, Partition]:
        """Return all partitions that exist now. Raises `NotFound` if a topic named in the options does not exist."""
        now = time.monotonic()
        if self._discovered is None or now - self._discovered >= DISCOVERY_S:
            self._names = patiently(lambda: list(self._discover()))
            self._discovered = now
        found = {}
        for name in self._names:
            try:
                found[name] = patiently(lambda name=name: self._refresh(name))  # type: ignore[misc]
            except NotFound:
                if self._options.pattern is None:
                    raise
        return found

    def known(self, name: str) -> Partition | None:
        """Return a partition as of its last refresh, if any."""
        return self._known[name][1] if name in self._known else None

    def ends(self) -> dict[str, Offset]:
        """Return the ends of the partitions as of their last refresh."""
        return {name: one.end for name, (_, one) in self._known.items()}

    def _discover(self) -> Iterator[str]:
        for topic in topics_of(self._options, self._broker):
            count = self._broker.partitions(topic)
            yield from [f"{topic}-partition-{i}" for i in range(count)] or [topic]

    def _refresh(self, name: str) -> Partition:
        last = self._broker.last_confirmed(name)
        if name not in self._known or self._known[name][0] != last:
            answer = load_segments(name, self._broker)
            end = answer["end"]["ledger"], answer["end"]["entry"]
            self._known[name] = end, partition_of(answer, self._broker)
        return self._known[name][1]


def partition_of(answer: dict[str, Any], broker: Broker) -> Partition:
    """Create a partition from the broker's list of its segments."""
    name, segments, ledger_id = answer["topic"], answer["segments"], answer["end"]["ledger"]
    generation = int(answer.get("generation", 0))
    if segments:
        last = segments[-1]
        index, ledger_id, entry = (
            last["first_index"] + last["messages"],
            last["ledger_id"],
            last["last_entry"] + 1,
        )
    else:
        index, entry = broker.next_index(name), 0
    end = Offset(batch=0, entry=entry, index=index, ledger=ledger_id, generation=generation)
    return Partition(name, tuple(segments), end, generation)
