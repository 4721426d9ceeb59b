"""Child processes of `quire local`: start, supervision, and stop in order.

A child runs in its own session, so that Ctrl-C reaches only the parent, which stops its children in order. The kernel
kills a child if the parent is killed. Its output goes to a log file, except for the first line, `ready`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from quire.runtime.errors import Unavailable

QUIRE: Final = (sys.executable, "-P", "-m", "quire")
"""Command line of this program as a child. `-P` excludes the working directory from imports, because a clone of the
repository has a directory `quire`.
"""

START_S: Final = 60.0
STOP_S: Final = 8.0
_GUARD: Final = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""
"""Program that calls prctl(PR_SET_PDEATHSIG), and then executes the child's program.

A `preexec_fn` could deadlock: Python code between fork and exec may wait forever for a lock that another thread of the
parent held at the fork.
"""


class Child:
    """Child process. `name` is for display; tests choose a process to kill by `kind`."""

    def __init__(
        self,
        name: str,
        kind: str,
        argv: Sequence[str],
        log: Path,
        answers: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self.name = name
        self.kind = kind
        self.argv = list(argv)
        self.log = log
        self._answers = answers
        """Probe of a process that prints no `ready` line."""
        self.process: asyncio.subprocess.Process | None = None
        self.urls: list[str] = []

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    async def start(self) -> None:
        """Start the process, and wait until it is ready. Raises `Unavailable`."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", "-c", _GUARD, str(os.getpid())),
                *self.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log if self._answers else asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        try:
            async with asyncio.timeout(START_S):
                await (self._ready_line() if self._answers is None else self._asked(self._answers))
        except TimeoutError:
            raise Unavailable(f"{self.name} is not ready after {START_S:.0f} s; see {self.log}") from None

    async def _ready_line(self) -> None:
        assert self.process is not None and self.process.stdout is not None
        words = (await self.process.stdout.readline()).decode().split()
        if words[:1] != ["ready"]:
            raise Unavailable(f"{self.name} did not start: {self._last_words()}")
        self.urls = words[1:]

    async def _asked(self, answers: Callable[[], Awaitable[bool]]) -> None:
        assert self.process is not None
        while not await answers():
            if self.process.returncode is not None:
                raise Unavailable(f"{self.name} did not start: {self._last_words()}")
            await asyncio.sleep(0.05)

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "its log is empty"

    async def wait(self) -> int:
        """Wait for the end of the process; return its exit code."""
        assert self.process is not None
        return await self.process.wait()

    async def stop(self) -> None:
        """Send SIGTERM, also to a process that SIGSTOP has stopped, and SIGKILL if it does not exit in `STOP_S`."""
        if self.process is None or self.process.returncode is not None:
            return
        try:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(STOP_S):
                await self.process.wait()
        except ProcessLookupError:
            pass
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
