"""The outside world of a storage node: two directories, a home for the index, and helper threads.

`real_disks` is this machine's; `storage_sim` has one that crashes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from quire.bookie.index import Index
from quire.bookie.index_lmdb import LmdbIndex
from quire.bookie.settings import BookieSettings
from quire.runtime.disk import Disk, DiskThread, RealDisk, Worker

INDEX_DIRECTORY: Final = "index"


class IndexHome(Protocol):
    """Where the index lives."""

    def open(self) -> Index:
        """The index, an empty one when there was none. Raises `CorruptionError` when it is damaged."""
        ...

    def discard(self) -> None:
        """Put a damaged or incomplete index out of the way; the next `open` makes an empty one."""
        ...


class LmdbHome:
    """The index in a directory beside the entry logs. What is discarded is kept under another name, once."""

    def __init__(self, disk: RealDisk) -> None:
        self._disk = disk

    def open(self) -> Index:
        return LmdbIndex(self._disk.path(INDEX_DIRECTORY))

    def discard(self) -> None:
        self._disk.make_directory(INDEX_DIRECTORY)
        for name in self._disk.names(INDEX_DIRECTORY):
            if not name.startswith("discarded-"):
                self._disk.rename(f"{INDEX_DIRECTORY}/{name}", f"{INDEX_DIRECTORY}/discarded-{name}")
        self._disk.sync_directory(INDEX_DIRECTORY)


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
