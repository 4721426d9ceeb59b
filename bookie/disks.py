"""Environment of a storage node: two directories, the location of the index, and helper threads.

`real_disks` uses this machine's disks and threads; `testing.node` has an environment that simulates crashes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quire.bookie.index_home import IndexHome, LmdbHome
from quire.bookie.settings import BookieSettings
from quire.runtime.disk import Disk, DiskThread, RealDisk, Worker


@dataclass(frozen=True)
class BookieDisks:
    """Environment of a storage node. `worker(name)` creates a helper thread, and is called on the event loop."""

    journal: Disk
    entries: Disk
    index: IndexHome
    worker: Callable[[str], Worker]


def real_disks(settings: BookieSettings) -> BookieDisks:
    """Return an environment with this machine's directories and threads."""
    entries = RealDisk(settings.entry_log)
    return BookieDisks(RealDisk(settings.journal), entries, LmdbHome(entries), DiskThread)
