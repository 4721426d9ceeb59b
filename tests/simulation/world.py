"""Simulated world: its event loop, random streams, trace, event counts, and the first violation.

Every simulated event is recorded as text. The records form the timeline for readers, and the hash by which two runs are
compared. With a timeline, log lines of production code are included. An error logged with a foreign exception is a bug,
even if the exception was caught.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, Final
from zlib import crc32

from quire.runtime.clock import Clock
from quire.runtime.errors import QuireError

from .loop import PROCESS, Process, SimulatedLoop

EPOCH_MS: Final = 1_700_000_000_000
TIMELINE_LINES: Final = 400


class Violation(AssertionError):
    """Violation of an invariant; `rule` is the invariant's short name."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(f"{rule}: {detail}")
        self.rule = rule


class SimulatedClock(Clock):
    """Clocks of a process. The wall clock may be wrong and jump; the monotonic clock runs slightly fast or slow."""

    def __init__(self, loop: SimulatedLoop, drift: float = 0.0, skew_ms: int = 0) -> None:
        self._loop = loop
        self._pace = 1 + drift
        self.skew_ms = skew_ms

    def now_ms(self) -> int:
        return EPOCH_MS + self.skew_ms + int(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time() * self._pace


class World:
    def __init__(self, seed: int | str, *, timeline: bool = False) -> None:
        self.seed = seed
        self.loop = SimulatedLoop(self.rng("loop"))
        self.context = self.loop.outside
        self.hash = 0
        self.lines: list[str] = []
        self.story: list[str] = []
        """Changes of each ledger, without times, for comparing histories after changes of the code."""
        self.seen: Counter[str] = Counter()
        self.violation: BaseException | None = None
        self.wants_timeline = timeline
        self.hidden_kept: list[Any] = []
        """Objects that must not be garbage-collected before the end of the history."""
        self._failed: asyncio.Future[None] | None = None
        self._processes = 0

    def rng(self, name: str) -> Random:
        """Return the random stream for `name`, which is independent of other streams."""
        return Random(f"{self.seed}/{name}")

    # -- events ----------------------------------------------------------------------------------------
    def note(self, what: str) -> None:
        line = f"{self.loop.time():10.4f}  {what}"
        self.hash = crc32(line.encode(), self.hash)
        if self.wants_timeline:
            self.lines.append(line)

    def saw(self, what: str) -> None:
        """Count an event of interest."""
        self.seen[what] += 1

    def check(self, holds: bool, rule: str, detail: Callable[[], str] | str = "") -> None:
        """Check an invariant. The first violation ends the history."""
        if not holds:
            self.fail(Violation(rule, detail() if callable(detail) else detail))

    def fail(self, error: BaseException) -> None:
        if self.violation is None:
            self.violation = error
            self.note(f"VIOLATION {error}")
            if self._failed is not None and not self._failed.done():
                self._failed.set_exception(error)

    def process(self, name: str, host: str = "") -> Process:
        self._processes += 1
        return Process(self.loop, name, host)

    def later(self, delay_s: float, act: Callable[..., Any], *args: Any) -> asyncio.TimerHandle:
        """Schedule an action of the world, which belongs to no process."""
        return self.loop.call_later(delay_s, act, *args, context=self.context)

    # -- running ---------------------------------------------------------------------------------------
    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` to its end or to the first violation, which is stored in `violation`, not raised."""
        with self._prepared():
            try:
                self.loop.run_until_complete(self._until_failed(work))
            except Exception as error:
                if self.violation is None:
                    self.violation = error

    async def _until_failed(self, work: Coroutine[Any, Any, None]) -> None:
        self._failed = self.loop.create_future()
        task = self.loop.create_task(work, context=self.context)
        done, _ = await asyncio.wait((task, self._failed), return_when=asyncio.FIRST_COMPLETED)
        if self._failed in done:
            self._failed.result()
        task.result()

    @contextmanager
    def _prepared(self) -> Any:
        handler = _Ears(self)
        root = logging.getLogger("quire")
        before = root.level, root.propagate, root.disabled
        root.setLevel(logging.INFO if self.wants_timeline else logging.ERROR)
        root.propagate = False
        root.addHandler(handler)
        aio = logging.getLogger("asyncio")
        aio_disabled, aio.disabled = aio.disabled, True
        self.loop.set_exception_handler(self._on_exception)
        try:
            yield
        finally:
            root.removeHandler(handler)
            root.level, root.propagate, root.disabled = before
            self._bury()
            aio.disabled = aio_disabled

    def _on_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Violation):
            self.fail(error)
        elif error is not None and not isinstance(error, QuireError | InjectedError):
            self.fail(_foreign(f"{context.get('message')}", error))

    def _bury(self) -> None:
        """Close the loop and drop remaining tasks, which no longer belong to the history."""
        loop = self.loop
        loop.set_exception_handler(lambda loop, context: None)
        with silence():
            for task in loop.everything:
                if not task.done():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
            loop.everything.clear()
            self.hidden_kept.clear()
            loop.forget_all()
            loop.close()


@contextmanager
def silence() -> Iterator[None]:
    """Silence log lines and warnings while a world is closed, because unfinished coroutines report a closed loop."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None
    logging.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # about coroutines that were never awaited
            yield
    finally:
        sys.unraisablehook = hook
        logging.disable(logging.NOTSET)


class InjectedError(Exception):
    """Foreign exception that a fault injects: production code may log it, and must survive it."""


def _foreign(what: str, error: BaseException) -> Violation:
    violation = Violation("nothing raises a foreign error", f"{what}: {error!r}")
    violation.__cause__ = error
    return violation


class _Ears(logging.Handler):
    """Log handler that adds lines to the timeline, and treats foreign exceptions as violations."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, Violation):
            self._world.fail(error)
        elif error is not None and not isinstance(error, QuireError | InjectedError):
            self._world.fail(_foreign(record.getMessage(), error))
        if self._world.wants_timeline:
            process = PROCESS.get()
            self._world.lines.append(
                f"{self._world.loop.time():10.4f}      {process}: {record.getMessage()}"[:220]
            )
