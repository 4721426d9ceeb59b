"""Run over the slices of a topic's history. It may be killed at any point and continued.

    DIRECTORY/_quire/run.json     the request, the slices, the run's producer name, and the routing of rows to the
                                  partitions of a topic; written before the run's first row
    DIRECTORY/_quire/done.log     a line of JSON for each slice that is done

`run.json` alone determines the rows of a slice. A slice that is not in the log is repeated as a whole, and the target
drops the rows that it already has. A topic recognizes them by the run's producer name, the slice's number and sequence
ids (`sink`), as long as brokers remember the name. So a run that paused longer than `FORGOTTEN_MS` is refused unless
the caller accepts duplicates.

If a run is finished, the same call does nothing.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import uuid4

from quire.runtime.errors import ConfigurationError, CorruptionError
from quire.spark_source.jobs import state
from quire.spark_source.jobs.slices import Piece

FORGOTTEN_MS: Final = 5 * 3_600_000
"""Longest pause of a run.

Brokers forget a producer after six hours without messages, which may begin before the run's last record.
"""

CLOCK_BACK_MS: Final = 30 * 60_000
"""Largest accepted step back of the clock. After a larger one, the duration of a pause is unknown."""


class Routes(NamedTuple):
    """Routing of a run's rows to the partitions of its topic. It stays the same if partitions are added."""

    partitions: int
    """Number of partitions; 0 for an unpartitioned topic."""
    keeps_partition: bool
    """True if rows go to the partition with the number of their source partition."""


class Done(NamedTuple):
    """Record of a slice that is done. `repeated` is the number of its rows that had been written before."""

    number: int
    rows: int
    bytes: int
    repeated: int
    at_ms: int


class Run:
    """A run: all its slices, and the slices that are done. Used by one process at a time (`state.lock_directory`)."""

    def __init__(self, root: Path, plan: Mapping[str, Any]) -> None:
        self.name: str = plan["name"]
        self.asked: Mapping[str, Any] = plan["asked"]
        self.pieces = [Piece(*one) for one in plan["pieces"]]
        self.begun_ms: int = plan["begun_ms"]
        self._routes = None if plan.get("routes") is None else Routes(*plan["routes"])
        self._log = root / "_quire" / "done.log"
        self.done = {one.number: one for one in _lines(self._log)}

    @property
    def todo(self) -> list[tuple[int, Piece]]:
        return [(number, piece) for number, piece in enumerate(self.pieces) if number not in self.done]

    def routes(self, now: Routes) -> Routes:
        """Return the recorded routing, or `now` if the run was begun by an older version, which did not record it.

        Raises `ConfigurationError` if the topic has fewer partitions than at the beginning of the run.
        """
        if self._routes is not None and self._routes.partitions > now.partitions:
            raise ConfigurationError(
                f"the topic had {self._routes.partitions} partitions when this run began, but has {now.partitions}: it "
                "was deleted and created again; begin with an empty directory"
            )
        return self._routes or now

    def finish(self, number: int, rows: int, size: int, repeated: int) -> None:
        """Record durably that a slice is done."""
        one = Done(number, rows, size, repeated, _now_ms())
        with self._log.open("ab") as log:
            log.write(json.dumps(one).encode() + b"\n")
            log.flush()
            os.fsync(log.fileno())
        self.done[number] = one

    def check_remembered(self) -> None:
        """Raise `ConfigurationError` if brokers may have forgotten the sequence ids of unfinished slices."""
        if not self.todo:
            return
        heard_ms = max([self.begun_ms, *(one.at_ms for one in self.done.values())])
        silent_ms = _now_ms() - heard_ms
        if silent_ms < -CLOCK_BACK_MS:
            raise ConfigurationError(
                f"this machine's clock is {-silent_ms // 60_000} minutes behind the last record of the run, so brokers "
                "may have forgotten its sequence ids: correct the clock, or continue with --accept-copies"
            )
        if silent_ms > FORGOTTEN_MS:
            raise ConfigurationError(
                f"this run paused for hours after {len(self.done)} of {len(self.pieces)} slices, but brokers forget "
                "after six hours which rows they have: continue with --accept-copies, which may write rows of the next "
                "slices a second time, or begin again with an empty directory and another topic"
            )


def load(root: Path, asked: Mapping[str, Any]) -> Run | None:
    """Load the directory's run, if any. Raises `ConfigurationError` if it was begun by a different request."""
    plan = state.load(root / "_quire" / "run.json")
    if plan is None:
        return None
    if plan.get("asked") != json.loads(json.dumps(asked)):
        other = plan.get("asked") or {}
        names = [name for name in {**other, **asked} if other.get(name) != asked.get(name)]
        raise ConfigurationError(
            f"{root} has a run with another {' and '.join(sorted(names)) or 'plan'}: set the same values to continue "
            "it, or another directory"
        )
    return Run(root, plan)


def begin(
    root: Path,
    asked: Mapping[str, Any],
    prefix: str,
    pieces: Callable[[], Iterable[Piece]],
    routes: Routes | None = None,
) -> Run:
    """Return the directory's run, or begin a run with these slices and routes."""
    found = load(root, asked)
    if found is not None:
        return found
    plan = {
        "asked": asked,
        "name": f"{prefix}-{uuid4()}",
        "begun_ms": _now_ms(),
        "routes": routes,
        "pieces": [list(one) for one in pieces()],
    }
    state.store(root / "_quire" / "run.json", plan)
    return Run(root, plan)


def _lines(path: Path) -> list[Done]:
    """Read the log of done slices. Truncate its last line if a kill left that incomplete."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        with path.open("r+b") as log:
            log.truncate(len(whole))
            os.fsync(log.fileno())
    try:
        return [Done(*json.loads(line)) for line in whole.splitlines()]
    except (ValueError, TypeError):
        raise CorruptionError(f"{path} is damaged; begin again in an empty directory") from None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
