"""Host that runs one process at a time, which faults kill and restart.

A subclass defines the work of the process (`work`), and the state that is lost with it (`forget`). Bookies have disks
in addition (`machine`).
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from .faults import Cluster
from .loop import Process
from .metadata import SimulatedStore


class SimulatedHost:
    """`faults.Host` without a clock, which subclasses add."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.world = cluster, cluster.world
        self.host = name
        self.rng = self.world.rng(name)
        self.process: Process | None = None
        self.store: SimulatedStore | None = None
        self._lives = 0

    def work(self, process: Process) -> Coroutine[Any, Any, None]:
        """Return the coroutine that a new process runs."""
        raise NotImplementedError

    def forget(self) -> None:
        """Drop the state that was in the dead process's memory."""

    def start_if_down(self) -> None:
        if self.process is None:
            self._lives += 1
            self.process = Process(self.world.loop, f"{self.host}/{self._lives}", self.host)
            self.process.start(self.work(self.process))

    def kill(self, restart_s: float) -> None:
        process, self.process = self.process, None
        self.forget()
        if process is not None:
            self.world.note(f"{process} is gone")
            self.world.hidden_kept.append(process)
            process.kill()
            self.cluster.network.died(process, silently=self.rng.random() < 0.3)
            self.world.later(restart_s, self.start_if_down)
