"""One process of a cluster, as it tells of itself to whoever helps: what is wrong with it, and what it does just now.

    doctor    the findings of its checks: its machine, its disks, its certificates, what it counts
    support   its settings without secrets, the stacks of its threads and tasks, the last lines of its log, its metrics

Brokers and bookies answer with them over HTTP, to superusers where people log in; `quire doctor` and
`quire support-bundle` ask. A check that fails or hangs is itself a finding: silence would look like health.
Who asks while somebody else does gets the same answer, so that asking often costs no more.
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
    """`kind` is what was started, `name` what others call it; both for people."""

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
        """`checks` by what they look at; `more` is told to support as it is: it has no secrets."""
        self.kind = kind
        self.name = name
        self.metrics: Callable[[], Awaitable[str]] = _no_metrics
        """As Prometheus' text; to be set by whoever serves them."""
        self._machine = machine
        self._thread = DaemonThreads(1, "quire-doctor")
        """One, and no more of them: a disk that hangs keeps it, and whoever asks again is told so."""
        self._checks = dict(checks or {})
        self._settings = settings
        self._more = dict(more or {})
        self._under_way: dict[str, asyncio.Task[dict[str, Any]]] = {}
        if machine is not None:
            self._checks = {"this machine": self._look_at_machine, **self._checks}

    async def doctor(self) -> dict[str, Any]:
        """JSON: the findings of all checks."""
        return await self._once(DOCTOR, self._doctor)

    async def support(self) -> dict[str, Any]:
        """JSON, without secrets."""
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
        return [error(f"looking at {what} takes more than {CHECK_S:g} s", f"see whether {what} hangs")]
    except Exception as problem:
        return [error(f"looking at {what} failed: {problem}", f"see that {what} can be had, and ask again")]


def stacks() -> dict[str, str]:
    """What each thread does, by its name."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return {
        f"{names.get(number, '?')} ({number})": "".join(traceback.format_stack(frame))
        for number, frame in sys._current_frames().items()
    }


async def task_stacks() -> list[str]:
    """What the tasks of the event loop wait for, `TASKS_SHOWN_MAX` of them, a few in a turn of the loop."""
    tasks = asyncio.all_tasks()
    found = [f"{len(tasks)} tasks"]
    for number, task in enumerate(list(tasks)[:TASKS_SHOWN_MAX]):
        text = io.StringIO()
        task.print_stack(limit=CALLS_SHOWN, file=text)
        found.append(f"{task.get_name()}: {text.getvalue()}")
        if number % TASKS_A_TURN == 0:
            await asyncio.sleep(0)
    return found
