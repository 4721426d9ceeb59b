"""Builder of a broker's sidecars: its child process, and its queue of jobs.

    Offloader, in every round ─▶ look(all archived segments that bookies still have)
                                   │  new ones are queued
                                   ▼
                 a thread, one job at a time ◀─▶ `worker`, a process

The process starts with the first job, and ends after a minute without a job, which frees its memory. If it dies, it is
started again, and its job is retried after an exponential back-off. A job during which the process dies three times
counts as failed, with a warning. Readers work without the sidecar.

The queue is not persistent. If a broker is killed, or a topic moves to another broker, the topic's next broker queues
the segments of the last hour (the archive's lag), since its rounds list these. `quire archive sidecars build` finds
older ones.

The thread starts the process, not the event loop. uvloop would fork, which copies the page tables of the whole broker
and takes a tenth of a second per GiB. The standard library uses vfork, which shares them until the program starts.
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

from quire.objects.store import location_of
from quire.runtime.limits import SIDECARS_WAITING_MAX
from quire.tiering.offload import Archived

WORKER: Final = (sys.executable, "-P", "-m", "quire.spark_source.sidecar.worker")
ENVIRONMENT: Final = {"ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
"""Environment variables that save memory: the process has a memory limit, and a memory pool would reserve too much."""

IDLE_S: Final = 60.0
PAUSE_FIRST_S: Final = 1.0
PAUSE_MAX_S: Final = 300.0
DEATHS_MAX: Final = 3
STOP_S: Final = 1.0

log = logging.getLogger(__name__)


def is_possible() -> bool:
    """Return whether the packages for building are installed."""
    return all(find_spec(name) is not None for name in ("numpy", "pyarrow"))


@dataclass
class Job:
    """Job to build the sidecar of one segment, which may exist already."""

    name: str
    """Name of the segment's object."""
    segment: str
    """Description of the segment for log lines."""
    line: bytes
    """JSON request to the process: `topic`, `ledger`, `end_entry`, `archived` (the object), `archive` (its store)."""
    deaths: int = 0


class SidecarBuilder:
    """Builder of a broker's sidecars, one per broker. `archive_url` contains the archive's credentials, if any."""

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
        """Lock of the attributes below, which both the event loop and the thread use."""
        self._waiting: set[str] = set()
        self._settled: set[str] = set()
        self._stopping = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._failures = 0
        """Number of consecutive failures, for the back-off."""
        self.built = self.bytes = self.failed = 0

    @property
    def pid(self) -> int | None:
        """Id of the child process while it runs."""
        child = self._child
        return None if child is None else child.pid

    def start(self) -> None:
        threading.Thread(target=self._run, name="quire-sidecars", daemon=True).start()

    async def stop(self) -> None:
        """Stop the thread and the process within a second, even during a job."""
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
        """Queue the archived segments that may lack a sidecar.

        Segments whose jobs have ended are remembered as long as the offloader's rounds list them.
        """
        names = {one.segment.archive.name for one in archived if one.segment.archive is not None}
        with self._lock:
            self._settled &= names
            new = names - self._settled - self._waiting
            for one in archived:
                if len(self._waiting) >= SIDECARS_WAITING_MAX:
                    return  # a later round queues the others
                if one.segment.archive is not None and one.segment.archive.name in new:
                    job = self._job(one)
                    self._waiting.add(job.name)
                    self._queue.put(job)

    def _job(self, one: Archived) -> Job:
        segment, pointer = one.segment, one.segment.archive
        assert pointer is not None
        is_own = location_of(pointer.store) == location_of(self._archive_url)
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
            "archive": self._archive_url if is_own else None,
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
            if self._failures:
                log.info("sidecars are being built again")
            self._failures = 0
            self._settle(job, answer)
            return
        self._queue.put(job)
        if not self._failures:
            log.warning("%s: sidecar not built, retrying: %s", job.segment, answer["why"])
        self._failures += 1
        self._stopping.wait(min(self._pause_s * 2 ** (self._failures - 1), PAUSE_MAX_S))

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
                "%s: sidecar not built: %s; `quire archive sidecars build` tries again",
                job.segment,
                answer["why"],
            )

    def _ask(self, job: Job) -> dict[str, Any]:
        """Send a job to the process and return its response; state `died` if the process ended."""
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
        return {"state": "died", "why": f"the process that builds it exited with code {code}"}

    def _begin(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self._argv, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | ENVIRONMENT,
            start_new_session=True,
        )

    def _end(self) -> int | None:
        """Close the process's input, wait until it exits, and return its exit code."""
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
