"""Spark's protocol with a stream's source and its checkpoint, without Spark, and cut off between any two steps.

As `MicroBatchExecution` has it: a micro-batch's end is written down before it runs, that it is done after its sink has
it; the source hears of what is done one micro-batch late. A query that starts again does the last one again unless
it was done, from where the one before ended, or from the initial offset, which it asks for anew. The sink keeps
the last attempt at each micro-batch, as an idempotent one does.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from quire.spark_source.options import for_stream
from quire.spark_source.stream.reader import QuireStreamReader


class Killed(Exception):
    """The driver was killed."""


@dataclass
class Query:
    """A query with its checkpoint and its sink, which outlive the driver."""

    options: dict[str, str]
    ends: dict[int, str] = field(default_factory=dict)
    """The checkpoint's offset log."""
    done: set[int] = field(default_factory=set)
    """Its commit log."""
    sink: dict[int, list[Any]] = field(default_factory=dict)
    steps_left: int = 1 << 60
    """Until the driver is killed."""
    between: Callable[[], None] = lambda: None
    """What the world does between any two steps."""
    asks_end_first: bool = False
    """As PySpark 4.0 and 4.1 do, without saying where it begins."""

    def rows(self) -> list[Any]:
        return [row for batch in sorted(self.sink) for row in self.sink[batch]]

    def step(self) -> None:
        self.between()
        self.steps_left -= 1
        if self.steps_left < 0:
            raise Killed

    def run(self, value: Callable[[dict[str, Any]], Any], *, available_now: bool = True) -> None:
        """A driver's life, until nothing is new."""
        reader = QuireStreamReader(for_stream(self.options))
        if available_now and not self.asks_end_first:
            reader.prepareForTriggerAvailableNow()
        batch = max(self.ends, default=-1)
        if batch in self.done or batch < 0:
            batch += 1
        while True:
            if batch not in self.ends and not self._construct(reader, batch):
                return
            self._run_batch(reader, batch, value)
            batch += 1

    def _start(self, reader: QuireStreamReader, batch: int) -> dict[str, Any]:
        self.step()
        if batch - 1 in self.ends:
            found: dict[str, Any] = json.loads(self.ends[batch - 1])
            return found
        return _crossed(reader.initialOffset())

    def _construct(self, reader: QuireStreamReader, batch: int) -> bool:
        if self.asks_end_first:
            start = json.loads(self.ends[batch - 1]) if batch - 1 in self.ends else {}
            end = _crossed(reader.latestOffset())
        else:
            start = self._start(reader, batch)
            self.step()
            end = _crossed(reader.latestOffset(start, reader.getDefaultReadLimit()))
        if json.dumps(end) == json.dumps(start):
            return False
        self.step()
        self.ends[batch] = json.dumps(end)
        self.step()
        if batch - 1 in self.ends:
            reader.commit(json.loads(self.ends[batch - 1]))
        return True

    def _run_batch(
        self, reader: QuireStreamReader, batch: int, value: Callable[[dict[str, Any]], Any]
    ) -> None:
        start, end = self._start(reader, batch), json.loads(self.ends[batch])
        self.step()
        plan = pickle.loads(pickle.dumps(reader.partitions(start, end)))
        task = pickle.loads(pickle.dumps(reader))
        self.step()
        self.sink[batch] = [
            value(row) for part in plan for found in task.read(part) for row in found.to_pylist()
        ]
        self.step()
        self.done.add(batch)


def _crossed(offset: dict[str, Any]) -> dict[str, Any]:
    """As it comes back through Spark."""
    found: dict[str, Any] = json.loads(json.dumps(offset))
    assert json.dumps(found) == json.dumps(found, sort_keys=True)
    return found
