"""A broker's own builder of sidecars: its process, and what waits for it.

    Offloader, in every round ─▶ look: all archived segments that bookies still have
                                   │  those that are new wait
                                   ▼
                 a thread, one job at a time ◀─▶ `worker`, a process

The process begins with the first job, and ends when there was none for a minute: it takes its memory along. One that
dies is begun again. So is a job, later, after a pause that grows; what makes the process die three times is left
without a sidecar, as what fails for good is: with a warning and a count. Readers do without.

Nothing is kept of what waits. A broker that is killed, or gives a topic away, leaves the segments of the last hour (the
archive's lag) to whoever has the topic next, since these are told in every round; older ones that are left out are
found by `quire archive sidecars build`.

The thread starts the process since the event loop must not: its way copies the page tables of the whole broker, a tenth
of a second for each GiB. This here is the standard library's, which shares them until the program begins.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from queue import Empty, SimpleQueue
from typing import Any, Final

from quire.runtime.limits import SIDECARS_WAITING_MAX
from quire.tiering.archive import location_of
from quire.tiering.offload import Archived

WORKER: Final = (sys.executable, "-P", "-m", "quire.spark_source.sidecar.worker")
ENVIRONMENT: Final = {"ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
"""Small, and within a limit of memory that is the process's, not a pool's that reserves it."""

IDLE_S: Final = 60.0
PAUSE_FIRST_S: Final = 1.0
PAUSE_MAX_S: Final = 300.0
DEATHS_MAX: Final = 3
STOP_S: Final = 1.0

log = logging.getLogger(__name__)


def is_possible() -> bool:
    """Whether what building needs is installed."""
    return all(find_spec(name) is not None for name in ("numpy", "pyarrow"))


@dataclass
class Job:
    """A segment that may lack a sidecar."""

    name: str
    """Of its object."""
    segment: str
    """For people."""
    line: bytes
    """For the process: `topic`, `ledger`, `end_entry`, `archived` (the object), and `archive`, the URL to reach it."""
    deaths: int = 0


class SidecarBuilder:
    """One per process; `archive_url` is the archive's, with what it takes to reach it."""

    def __init__(
        self,
        archive_url: str,
        *,
        argv: Sequence[str] = WORKER,
        idle_s: float = IDLE_S,
        pause_s: float = PAUSE_FIRST_S,
    ) -> None:
        self._archive_url = archive_url
        self._argv = argv
        self._idle_s = idle_s
        self._pause_s = pause_s
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        """Of all below, which the loop and the thread use."""
        self._waiting: set[str] = set()
        self._settled: set[str] = set()
        self._stopping = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._troubles = 0
        """In a row."""
        self.built = self.bytes = self.failed = 0

    @property
    def pid(self) -> int | None:
        """Of the process, while there is one."""
        child = self._child
        return None if child is None else child.pid

    def start(self) -> None:
        threading.Thread(target=self._run, name="quire-sidecars", daemon=True).start()

    async def stop(self) -> None:
        """End the process, and what it is doing, within a second."""
        self._stopping.set()
        self._queue.put(None)
        with self._lock:
            child = self._child
        if child is not None:
            child.terminate()
            try:
                await asyncio.to_thread(child.wait, STOP_S)
            except subprocess.TimeoutExpired:
                child.kill()

    def metrics(self) -> Mapping[str, float]:
        return {
            "quire_tiering_sidecars_built_total": self.built,
            "quire_tiering_sidecars_built_bytes_total": self.bytes,
            "quire_tiering_sidecars_failed_total": self.failed,
            "quire_tiering_sidecars_waiting": len(self._waiting),
        }

    def look(self, archived: Sequence[Archived]) -> None:
        """All segments that may lack one. What was done is remembered while it is among them."""
        names = {one.segment.archive.name for one in archived if one.segment.archive is not None}
        with self._lock:
            self._settled &= names
            new = names - self._settled - self._waiting
            for one in archived:
                if len(self._waiting) >= SIDECARS_WAITING_MAX:
                    return  # in a later round
                if one.segment.archive is not None and one.segment.archive.name in new:
                    job = self._job(one)
                    self._waiting.add(job.name)
                    self._queue.put(job)

    def _job(self, one: Archived) -> Job:
        segment, pointer = one.segment, one.segment.archive
        assert pointer is not None
        is_ours = location_of(pointer.store) == location_of(self._archive_url)
        said = {
            "topic": one.topic,
            "ledger": segment.ledger_id,
            "end_entry": segment.last_entry + 1,
            "archived": {
                "store": pointer.store,
                "name": pointer.name,
                "bytes": pointer.bytes,
                "crc": pointer.crc,
            },
            "archive": self._archive_url if is_ours else None,
        }
        return Job(
            pointer.name, f"segment {segment.ledger_id} of {one.topic}", json.dumps(said).encode() + b"\n"
        )

    # -- the thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                job = self._queue.get(timeout=self._idle_s)
            except Empty:
                self._end()
                continue
            if job is not None:
                self._work(job)
        self._end()

    def _work(self, job: Job) -> None:
        answer = self._ask(job)
        if self._stopping.is_set():
            return
        if answer["state"] == "died":
            job.deaths += 1
            if job.deaths == DEATHS_MAX:
                self._settle(job, {"state": "failed", "why": answer["why"]})
                return
        elif answer["state"] != "later":
            if self._troubles:
                log.info("sidecars are built again")
            self._troubles = 0
            self._settle(job, answer)
            return
        self._queue.put(job)
        if not self._troubles:
            log.warning("the sidecar of %s will be built later: %s", job.segment, answer["why"])
        self._troubles += 1
        self._stopping.wait(min(self._pause_s * 2 ** (self._troubles - 1), PAUSE_MAX_S))

    def _settle(self, job: Job, answer: Mapping[str, Any]) -> None:
        with self._lock:
            self._waiting.discard(job.name)
            self._settled.add(job.name)
        if answer["state"] == "built":
            self.built += 1
            self.bytes += answer["bytes"]
        elif answer["state"] == "without":
            log.info("%s has no sidecar: %s", job.segment, answer["why"])
        elif answer["state"] == "failed":
            self.failed += 1
            log.warning(
                "%s stays without a sidecar: %s; `quire archive sidecars build` tries again",
                job.segment,
                answer["why"],
            )

    def _ask(self, job: Job) -> dict[str, Any]:
        """What the process answers; `died` when it does not."""
        with self._lock:
            if self._stopping.is_set():
                return {"state": "died", "why": ""}
            child = self._child = self._child or self._begin()
        assert child.stdin is not None and child.stdout is not None
        line = b""
        with suppress(OSError):
            child.stdin.write(job.line)
            child.stdin.flush()
            line = child.stdout.readline()
        if line.endswith(b"\n"):
            answer: dict[str, Any] = json.loads(line)
            return answer
        code = self._end()
        return {"state": "died", "why": f"the process that builds it ended with exit code {code}"}

    def _begin(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self._argv, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | ENVIRONMENT,
            start_new_session=True,
        )

    def _end(self) -> int | None:
        """Let go of the process; its exit code, when it has ended by itself."""
        with self._lock:
            child, self._child = self._child, None
        if child is None:
            return None
        assert child.stdin is not None and child.stdout is not None
        with suppress(OSError):
            child.stdin.close()
        code = child.wait()
        child.stdout.close()
        return code
