"""What the broker says of a stream's partitions, asked at every trigger.

A trigger without news costs one small request for each partition: where it ends. Its list of segments is asked for only
when that has changed. Partitions that are added, and topics that begin to match a pattern, are looked for every
`DISCOVERY_S`.

An exception would end the query, so a broker that does not answer is asked again for `PATIENCE_S`: longer than the
restart of a broker takes, or the move of a topic to another one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from quire.runtime.errors import NotFound, Unavailable
from quire.spark_source.broker import Broker
from quire.spark_source.options import Options
from quire.spark_source.plan import topics_of, whole
from quire.spark_source.stream.offsets import Offset, Partition

DISCOVERY_S: Final = 30.0
PATIENCE_S: Final = 120.0
PAUSE_S: Final = 1.0

T = TypeVar("T")


def patiently(ask: Callable[[], T]) -> T:
    """What `ask` returns, once the broker can answer. Raises `Unavailable` when it cannot for too long."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return ask()
        except Unavailable:
            if time.monotonic() >= until:
                raise
            time.sleep(PAUSE_S)


class Partitions:
    """The partitions of a stream's topics, as they were when they were last looked at."""

    def __init__(self, options: Options, broker: Broker) -> None:
        self._options = options
        self._broker = broker
        self._names: list[str] = []
        self._discovered: float | None = None
        self._known: dict[str, tuple[tuple[int, int], Partition]] = {}
        """With the last confirmed entry for which that was answered."""

    def look(self) -> dict[str, Partition]:
        """All that are there now. Raises `NotFound` for a topic that was asked for by name and is not there."""
        now = time.monotonic()
        if self._discovered is None or now - self._discovered >= DISCOVERY_S:
            self._names = patiently(lambda: list(self._discover()))
            self._discovered = now
        found = {}
        for name in self._names:
            try:
                found[name] = patiently(lambda name=name: self._look_at(name))  # type: ignore[misc]
            except NotFound:
                if self._options.pattern is None:
                    raise
        return found

    def known(self, name: str) -> Partition | None:
        """As it was looked at last."""
        return self._known[name][1] if name in self._known else None

    def ends(self) -> dict[str, Offset]:
        """Where they ended then."""
        return {name: one.end for name, (_, one) in self._known.items()}

    def _discover(self) -> Iterator[str]:
        for topic in topics_of(self._options, self._broker):
            count = self._broker.partitions(topic)
            yield from [f"{topic}-partition-{i}" for i in range(count)] or [topic]

    def _look_at(self, name: str) -> Partition:
        last = self._broker.last_confirmed(name)
        if name not in self._known or self._known[name][0] != last:
            answer = whole(name, self._broker)
            end = answer["end"]["ledger"], answer["end"]["entry"]
            self._known[name] = end, partition_of(answer, self._broker)
        return self._known[name][1]


def partition_of(answer: dict[str, Any], broker: Broker) -> Partition:
    """A partition by the broker's answer for its segments."""
    name, segments, ledger_id = answer["topic"], answer["segments"], answer["end"]["ledger"]
    if segments:
        last = segments[-1]
        index = last["first_index"] + last["messages"]
        end = Offset(batch=0, entry=last["last_entry"] + 1, index=index, ledger=last["ledger_id"])
    else:
        end = Offset(batch=0, entry=0, index=broker.next_index(name), ledger=ledger_id)
    return Partition(name, tuple(segments), end)
