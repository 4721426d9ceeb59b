"""Simulated machine of a bookie: two disks and an index that crash together, from one seed.

A test starts a `Storage` on `disks()` of a `SimulatedNode`, lets it work, calls `crash()`, and starts another
`Storage`. With `power.fail_after(n)` the machine loses power after n more operations on either disk.
"""

from __future__ import annotations

from random import Random

from quire.bookie.disks import BookieDisks
from quire.bookie.index import Index
from quire.bookie.settings import BookieSettings
from quire.runtime.limits import KIB, MIB
from quire.testing.disk import LoopWorker, Power, SimulatedDisk
from quire.testing.index import MemoryIndex

SMALL_SETTINGS = BookieSettings(
    journal="journal",
    entry_log="entries",
    memtable_bytes=32 * KIB,
    journal_segment_bytes=64 * KIB,
    journal_group_bytes_max=16 * KIB,
    entry_log_bytes=256 * KIB,
    flush_interval_ms=3_600_000,
    read_cache_bytes=1 * MIB,
    read_threads=1,
    disk_reserve_bytes=64 * KIB,
)
"""Settings with sizes a thousand times smaller, so that a short history rolls segments, memtables and entry logs."""


class MemoryHome:
    """Holder of a bookie's `MemoryIndex`, which outlives the process."""

    def __init__(self) -> None:
        self.index = MemoryIndex()

    def open(self) -> Index:
        self.index = self.index.crash()
        self.index.verify()
        return self.index

    def discard(self) -> None:
        self.index = MemoryIndex()


class SimulatedNode:
    """Machine of one bookie."""

    def __init__(self, seed: int = 0, capacity_bytes: int = 1 << 40) -> None:
        self.rng = Random(seed)
        self.power = Power()
        self.journal = SimulatedDisk(self.rng.getrandbits(32), "journal", capacity_bytes, self.power)
        self.entries = SimulatedDisk(self.rng.getrandbits(32), "entries", capacity_bytes, self.power)
        self.home = MemoryHome()
        self._workers: list[LoopWorker] = []

    def disks(self) -> BookieDisks:
        """Return the machine's disks and index for a new process."""
        return BookieDisks(self.journal, self.entries, self.home, self._worker)

    def _worker(self, name: str) -> LoopWorker:
        self._workers.append(LoopWorker())
        return self._workers[-1]

    def kill(self) -> None:
        """Kill the storage's process. Its writes are kept, synced or not, and another process may start."""
        for worker in self._workers:
            worker.kill()
        self._workers.clear()
        self.journal.close()
        self.entries.close()

    def crash(self) -> None:
        """Simulate a power cut and a restart of the machine. Its storage must not be used any more."""
        self.kill()
        self.journal.crash()
        self.entries.crash()
