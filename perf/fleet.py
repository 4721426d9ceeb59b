"""Child processes of one run: started and stopped together, their measurements added up.

Each child is a `worker` in its own session, so that Ctrl-C reaches only the parent, which stops the children in order.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final

import msgspec

from quire.perf.job import KINDS, LINE_BYTES_MAX, Job, encode
from quire.perf.tally import Tally
from quire.process.child import QUIRE
from quire.runtime.errors import QuireError, Unavailable

BEGIN_S: Final = 0.1
"""Seconds from the last child's readiness to the begin, which all of them need to know before."""

STOP_S: Final = 10.0
"""Seconds after which a child that was stopped is killed."""


@dataclass
class Measured:
    """Measurements of all children so far."""

    begin_ns: int = 0
    """End of the warm-up in ns since 1970; 0 before the begin."""
    tallies: dict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))
    cores: dict[int, float] = field(default_factory=dict)
    """Share of a core that each child uses, since the warm-up."""

    def seconds(self, name: str) -> float:
        """Return the time from the end of the warm-up to the last counted message of a tally."""
        return max(0.0, (self.tallies[name].last_ns - self.begin_ns) / 1e9)

    def add(self, number: int, report: dict[str, Any]) -> None:
        """Add the report of a child."""
        for name, one in report["tallies"].items():
            self.tallies[name].add(Tally.from_json(one))
        if report["wall_s"] > 0:
            self.cores[number] = report["cpu_s"] / report["wall_s"]


class _Child:
    def __init__(self, number: int, job: Job) -> None:
        self.number = number
        self.job = job
        self.is_ready = asyncio.Event()
        self.process: asyncio.subprocess.Process
        self.ended: asyncio.Task[None]

    def write(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line)

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()


class Fleet:
    """Children of a run, in `async with`, which starts them, and stops those that still run."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.measured = Measured()
        self._waiting = [_Child(number, job) for number, job in enumerate(jobs, 1)]
        self._children: list[_Child] = []

    async def __aenter__(self) -> Fleet:
        try:
            for child in self._waiting:
                await self._start(child)
                self._children.append(child)
            await self._until_ready()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _start(self, child: _Child) -> None:
        child.process = await asyncio.create_subprocess_exec(
            *(*QUIRE, "bench", "worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
            limit=LINE_BYTES_MAX,
        )
        child.write(encode(child.job))
        child.ended = asyncio.create_task(self._follow(child))

    async def _follow(self, child: _Child) -> None:
        """Add up the reports of a child until it ends. Raises its error, and `Unavailable` if it was killed."""
        assert child.process.stdout is not None
        error: QuireError | None = None
        async for line in child.process.stdout:
            report = msgspec.json.decode(line)
            if "error" in report:
                error = KINDS.get(report["kind"], QuireError)(report["error"])
            elif "tallies" in report:
                self.measured.add(child.number, report)
            else:
                child.is_ready.set()
        code = await child.process.wait()
        if error is None and code != 0:
            error = Unavailable(f"process {child.number} of the benchmark ended with code {code}")
        if error is not None:
            raise error

    async def _until_ready(self) -> None:
        ready = asyncio.create_task(self._all_ready())
        ended = [child.ended for child in self._children]
        await asyncio.wait([ready, *ended], return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            if task.done():
                ready.cancel()
                task.result()
                raise Unavailable("a process of the benchmark ended before its begin")

    async def _all_ready(self) -> None:
        for child in self._children:
            await child.is_ready.wait()

    def begin(self) -> None:
        """Let all children begin at the same time."""
        begin_ns = time.time_ns() + round(BEGIN_S * 1e9)
        for child in self._children:
            child.write(b"%d\n" % begin_ns)
        self.measured.begin_ns = begin_ns + round(max(child.job.warm_up_s for child in self._children) * 1e9)

    async def ended(self, role: str = "") -> None:
        """Wait until all children, or those of a role, are done. Raises the first error of any child."""
        waiting = {child.ended for child in self._children if not role or child.job.role == role}
        watched = {child.ended for child in self._children}
        while not all(task.done() for task in waiting):
            done, watched = await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        for task in waiting:
            task.result()

    async def stop(self) -> None:
        """Let the children settle their messages and report; kill those that do not end in `STOP_S`. Raises nothing."""
        for child in self._children:
            child.stop()
        ended = {child.ended: child for child in self._children}
        if ended:
            _, late = await asyncio.wait(ended, timeout=STOP_S)
            for task in late:
                ended[task].process.kill()
            await asyncio.gather(*ended, return_exceptions=True)
