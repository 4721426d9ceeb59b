"""A run over the slices of a history that may be killed at any moment and started again.

    DIRECTORY/_quire/run.json     what is asked, the slices, and the name it writes under: before its first row
    DIRECTORY/_quire/done.log     a line of JSON for each slice that is done

What a slice gives is a function of `run.json` alone. A slice that is not in the log is done again, whole; whoever takes
its rows drops what it has. A topic does so by the run's name, the slice's number and sequence ids (`sink`), for as
long as it remembers the name. So a run that stood still longer than `FORGOTTEN_MS` is not gone on with silently.

A finished run stays finished: the same call does nothing more.
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
"""Brokers forget a producer after six hours of silence; its last word may be a while before the run's."""


class Done(NamedTuple):
    """A slice that is done. `repeated` rows had been written before."""

    number: int
    rows: int
    bytes: int
    repeated: int
    at_ms: int


class Run:
    """One run: its slices, and which of them are done. For one process at a time (`state.alone`)."""

    def __init__(self, root: Path, plan: Mapping[str, Any]) -> None:
        self.name: str = plan["name"]
        self.asked: Mapping[str, Any] = plan["asked"]
        self.pieces = [Piece(*one) for one in plan["pieces"]]
        self.begun_ms: int = plan["begun_ms"]
        self._log = root / "_quire" / "done.log"
        self.done = {one.number: one for one in _lines(self._log)}

    @property
    def todo(self) -> list[tuple[int, Piece]]:
        return [(number, piece) for number, piece in enumerate(self.pieces) if number not in self.done]

    def finish(self, number: int, rows: int, size: int, repeated: int) -> None:
        """A slice is done; durable when it returns."""
        one = Done(number, rows, size, repeated, _now_ms())
        with self._log.open("ab") as log:
            log.write(json.dumps(one).encode() + b"\n")
            log.flush()
            os.fsync(log.fileno())
        self.done[number] = one

    def check_remembered(self) -> None:
        """Raise `ConfigurationError` where brokers may have forgotten what they were given of slices under way."""
        if not self.todo:
            return
        heard_ms = max([self.begun_ms, *(one.at_ms for one in self.done.values())])
        if _now_ms() - heard_ms > FORGOTTEN_MS:
            raise ConfigurationError(
                f"this run stood still for hours after {len(self.done)} of {len(self.pieces)} slices, and brokers "
                "forget after six hours which rows of the next ones they have: go on with --accept-copies, which may "
                "write rows of those slices a second time, or begin anew with an empty directory and another topic"
            )


def load(root: Path, asked: Mapping[str, Any]) -> Run | None:
    """The directory's run; None when there is none. Raises `ConfigurationError` where another one is there."""
    plan = state.load(root / "_quire" / "run.json")
    if plan is None:
        return None
    if plan.get("asked") != json.loads(json.dumps(asked)):
        other = plan.get("asked") or {}
        names = [name for name in {**other, **asked} if other.get(name) != asked.get(name)]
        raise ConfigurationError(
            f"{root} has a run with another {' and '.join(sorted(names)) or 'plan'}: say the same as then to go on "
            "with it, or give another directory"
        )
    return Run(root, plan)


def begin(root: Path, asked: Mapping[str, Any], prefix: str, pieces: Callable[[], Iterable[Piece]]) -> Run:
    """The directory's run, or a new one over these slices."""
    found = load(root, asked)
    if found is not None:
        return found
    plan = {
        "asked": asked,
        "name": f"{prefix}-{uuid4()}",
        "begun_ms": _now_ms(),
        "pieces": [list(one) for one in pieces()],
    }
    state.store(root / "_quire" / "run.json", plan)
    return Run(root, plan)


def _lines(path: Path) -> list[Done]:
    """The log; the last line is cut off where a kill left it unfinished."""
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
        raise CorruptionError(f"{path} is damaged; begin anew in an empty directory") from None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
