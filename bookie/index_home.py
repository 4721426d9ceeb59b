"""Where the index lives, and how a start learns that reading it ends processes.

LMDB has no checksums. Some damage of its pages it meets with an assertion that ends the process, and where a sector of
its file cannot be read, touching the memory map is a SIGBUS. Neither can be caught. So a file named `in-use` lies
beside the index while a process has it open. Who finds that file comes after one that died, of whatever: it lets a
process of its own read the whole index first (`python -m quire.bookie.index_home DIRECTORY`), and when that one dies of
such a signal the index is damaged, and can be rebuilt. When that one found nothing wrong, nobody reads it all again.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from quire.bookie.index import Index
from quire.bookie.index_lmdb import LmdbIndex
from quire.runtime.disk import RealDisk
from quire.runtime.errors import CorruptionError, QuireError

log = logging.getLogger(__name__)

INDEX_DIRECTORY: Final = "index"
IN_USE: Final = f"{INDEX_DIRECTORY}/in-use"
_DEADLY: Final = {signal.SIGABRT, signal.SIGBUS, signal.SIGSEGV, signal.SIGFPE, signal.SIGILL}


class IndexHome(Protocol):
    """Where the index lives."""

    def open(self) -> Index:
        """The index, which was verified; an empty one when there was none.

        Raises `CorruptionError` when it is damaged, `DiskError`.
        """
        ...

    def discard(self) -> None:
        """Put a damaged or incomplete index out of the way; the next `open` makes an empty one."""
        ...


class LmdbHome:
    """The index in a directory beside the entry logs. What is discarded is kept under another name, once."""

    def __init__(self, disk: RealDisk) -> None:
        self._disk = disk

    def open(self) -> Index:
        directory = self._disk.path(INDEX_DIRECTORY)
        is_verified = self._disk.exists(IN_USE) and _prove(directory)
        self._disk.make_directory(INDEX_DIRECTORY)
        with _only_logged():
            self._disk.write_bytes(IN_USE, b"")
        index = LmdbIndex(directory, on_close=self._closed)
        try:
            if not is_verified:
                index.verify()
        except BaseException:
            index.close()
            raise
        return index

    def _closed(self) -> None:
        with _only_logged():
            self._disk.remove(IN_USE)

    def discard(self) -> None:
        self._disk.make_directory(INDEX_DIRECTORY)
        for name in self._disk.names(INDEX_DIRECTORY):
            if not name.startswith("discarded-"):
                self._disk.rename(f"{INDEX_DIRECTORY}/{name}", f"{INDEX_DIRECTORY}/discarded-{name}")
        self._disk.sync_directory(INDEX_DIRECTORY)


@contextmanager
def _only_logged() -> Iterator[None]:
    """What is wrong with the mark is no reason not to serve."""
    try:
        yield
    except QuireError as error:
        log.warning("%s", error)


def _prove(directory: str) -> bool:
    """Have another process read the index: whether it is sound. Raises `CorruptionError` when it dies of that."""
    command = [sys.executable, "-P", "-m", __name__, directory]
    try:
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)
    except OSError as error:
        log.warning("cannot start a process that reads the index first: %s", error)
        return False
    if -ended.returncode in _DEADLY:
        died_of = signal.Signals(-ended.returncode).name
        raise CorruptionError(f"a process that read the index died of {died_of}", f"{directory}/data.mdb", 0)
    if ended.returncode:
        log.warning("a process that was to read the index first ended with %d", ended.returncode)
    return ended.returncode == 0


def read_all(directory: str) -> bool:
    """Read the index in the directory wholly, and what it has free: whether nothing is wrong with it."""
    try:
        index = LmdbIndex(directory)
        index.verify()
        index.try_to_write()
        index.close()
    except QuireError:
        return False  # whoever asked meets it again, and says what it is
    return True


if __name__ == "__main__":
    sys.exit(not read_all(sys.argv[1]))
