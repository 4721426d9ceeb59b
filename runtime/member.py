"""Member: a process's report on its faults and its current work.

    doctor    the findings of its checks: its machine, its disks, its certificates, its counters
    support   its settings without secrets, the stacks of its threads and tasks, the last lines of its log, its metrics

Brokers and bookies serve both reports over HTTP, to `quire doctor` and `quire support-bundle`. If authentication is on,
only superusers may read them. A check that fails or hangs is itself a finding. Concurrent requests share one report, so
that frequent requests are cheap.
"""

from __future__ import annotations

import asyncio
import io
import os
import platform
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final

from quire import __version__
from quire.runtime import log
from quire.runtime.findings import Finding, error
from quire.runtime.machine import Machine
from quire.runtime.redaction import without_secrets
from quire.runtime.settings import Loaded, shown
from quire.runtime.threads import DaemonThreads

DOCTOR: Final = "/quire/v1/doctor"
SUPPORT: Final = "/quire/v1/support"

CHECK_S: Final = 5.0
TASKS_SHOWN_MAX: Final = 500
TASKS_A_TURN: Final = 20
CALLS_SHOWN: Final = 12

Check = Callable[[], Awaitable[Iterable[Finding]]]


async def _no_metrics() -> str:
    return ""


class Member:
    """Report of one process. `kind` and `name` are for display: the kind of process, and its address."""

    def __init__(
        self,
        kind: str,
        name: str,
        *,
        machine: Machine | None = None,
        checks: Mapping[str, Check] | None = None,
        settings: Sequence[Loaded[Any]] = (),
        more: Mapping[str, Any] | None = None,
    ) -> None:
        """Create the report.

        `checks` are keyed by subject; `more` is added to the support report, and must have no secrets.
        """
        self.kind = kind
        self.name = name
        self.metrics: Callable[[], Awaitable[str]] = _no_metrics
        """Source of Prometheus' text, set by the process that serves metrics."""
        self._machine = machine
        self._thread = DaemonThreads(1, "quire-doctor")
        """A single thread, because a hanging disk blocks it; later requests then report a time-out."""
        self._checks = dict(checks or {})
        self._settings = settings
        self._more = dict(more or {})
        self._under_way: dict[str, asyncio.Task[dict[str, Any]]] = {}
        if machine is not None:
            self._checks = {"this machine": self._look_at_machine, **self._checks}

    async def doctor(self) -> dict[str, Any]:
        """Return the findings of all checks as JSON."""
        return await self._once(DOCTOR, self._doctor)

    async def support(self) -> dict[str, Any]:
        """Return the support report as JSON, without secrets."""
        return await self._once(SUPPORT, self._support)

    async def _once(
        self, what: str, ask: Callable[[], Coroutine[Any, Any, dict[str, Any]]]
    ) -> dict[str, Any]:
        task = self._under_way.get(what)
        if task is None:
            task = self._under_way[what] = asyncio.create_task(ask())
            task.add_done_callback(lambda _: self._under_way.pop(what))
        return await asyncio.shield(task)

    async def _doctor(self) -> dict[str, Any]:
        found = await asyncio.gather(*(_bounded(what, check) for what, check in self._checks.items()))
        return {
            **self._named(),
            "nowMs": time.time_ns() // 1_000_000,
            "findings": [one.to_json() for some in found for one in some],
        }

    async def _support(self) -> dict[str, Any]:
        return {
            **self._named(),
            "pid": os.getpid(),
            "python": sys.version,
            "platform": platform.platform(),
            "settings": {
                name: {"value": value, "source": source}
                for loaded in self._settings
                for name, value, source in shown(loaded)
            },
            **self._more,
            "stacks": stacks(),
            "tasks": await task_stacks(),
            "log": [without_secrets(line) for line in log.recent_lines()],
            "metrics": await self.metrics(),
        }

    def _named(self) -> dict[str, Any]:
        return {"kind": self.kind, "name": self.name, "version": __version__}

    async def _look_at_machine(self) -> list[Finding]:
        assert self._machine is not None
        return await self._thread.run(self._machine.findings)


async def _bounded(what: str, check: Check) -> list[Finding]:
    try:
        async with asyncio.timeout(CHECK_S):
            return list(await check())
    except TimeoutError:
        return [error(f"checking {what} takes more than {CHECK_S:g} s", f"find out whether {what} hangs")]
    except Exception as problem:
        return [
            error(
                f"checking {what} failed: {problem}",
                f"check that {what} can be accessed, and run the command again",
            )
        ]


def stacks() -> dict[str, str]:
    """Return the stacks of all threads, by thread name."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return {
        f"{names.get(number, '?')} ({number})": "".join(traceback.format_stack(frame))
        for number, frame in sys._current_frames().items()
    }


async def task_stacks() -> list[str]:
    """Return the stacks of at most `TASKS_SHOWN_MAX` tasks, `TASKS_A_TURN` in each iteration of the event loop."""
    tasks = asyncio.all_tasks()
    found = [f"{len(tasks)} tasks"]
    for number, task in enumerate(list(tasks)[:TASKS_SHOWN_MAX]):
        text = io.StringIO()
        task.print_stack(limit=CALLS_SHOWN, file=text)
        found.append(f"{task.get_name()}: {text.getvalue()}")
        if number % TASKS_A_TURN == 0:
            await asyncio.sleep(0)
    return found
