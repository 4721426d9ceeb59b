"""The outside world of a storage node: two directories, a home for the index, and helper threads.

`real_disks` is this machine's; `testing.node` has one that crashes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quire.bookie.index_home import IndexHome, LmdbHome
from quire.bookie.settings import BookieSettings
from quire.runtime.disk import Disk, DiskThread, RealDisk, Worker


@dataclass(frozen=True)
class BookieDisks:
    """The outside world of a storage node. `worker(name)` makes a helper; it is called when the loop runs."""

    journal: Disk
    entries: Disk
    index: IndexHome
    worker: Callable[[str], Worker]


def real_disks(settings: BookieSettings) -> BookieDisks:
    """This machine's directories and threads."""
    entries = RealDisk(settings.entry_log)
    return BookieDisks(RealDisk(settings.journal), entries, LmdbHome(entries), DiskThread)
