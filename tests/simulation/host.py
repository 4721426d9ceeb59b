"""A machine that runs one process at a time, as faults see it: killed, and started again after a while.

What its process does is a subclass's (`work`), and what of it dies with the process (`forget`). Bookies are more than
this, for they have disks (`machine`).
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from .faults import Cluster
from .loop import Process
from .metadata import SimulatedStore


class SimulatedHost:
    """A `faults.Host` but for its clock."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.world = cluster, cluster.world
        self.host = name
        self.rng = self.world.rng(name)
        self.process: Process | None = None
        self.store: SimulatedStore | None = None
        self._lives = 0

    def work(self, process: Process) -> Coroutine[Any, Any, None]:
        """What a new process runs."""
        raise NotImplementedError

    def forget(self) -> None:
        """The process is gone, and what it had in memory."""

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
