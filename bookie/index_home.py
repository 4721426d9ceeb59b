"""Location of the index, and detection of an index whose damage crashes the process.

LMDB has no checksums. Some damage of its pages violates an assertion, which ends the process. If a sector of its file
is unreadable, an access to the memory map causes a SIGBUS. Neither can be caught. So a file `in-use` exists beside the
index while a process has the index open. If a starting process finds this file, the previous process has crashed. Then
a subprocess first reads the whole index (`python -m quire.bookie.index_home DIRECTORY`). If a signal such as SIGBUS
kills the subprocess, the index is damaged, and is rebuilt. If the subprocess finds no error, the index is not verified
again.
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
"""Signals that kill a process which reads a damaged index."""


class IndexHome(Protocol):
    """Location of an index, where it is opened or replaced."""

    def open(self) -> Index:
        """Open and verify the index; create an empty one if none exists.

        Raises `CorruptionError` if it is damaged, `DiskError`.
        """
        ...

    def discard(self) -> None:
        """Move a damaged or incomplete index aside; the next `open` creates an empty one."""
        ...


class LmdbHome:
    """Index in a directory beside the entry logs. One discarded index is kept under another name."""

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
    """Log errors of access to the `in-use` file; the bookie works without this file."""
    try:
        yield
    except QuireError as error:
        log.warning("%s", error)


def _prove(directory: str) -> bool:
    """Verify the index in a subprocess; return whether it is valid. Raises `CorruptionError` if a signal killed it."""
    command = [sys.executable, "-P", "-m", __name__, directory]
    try:
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)
    except OSError as error:
        log.warning("cannot start a subprocess to verify the index: %s", error)
        return False
    if -ended.returncode in _DEADLY:
        died_of = signal.Signals(-ended.returncode).name
        raise CorruptionError(
            f"a subprocess that read the index was killed by {died_of}", f"{directory}/data.mdb", 0
        )
    if ended.returncode:
        log.warning("the subprocess that verified the index ended with status %d", ended.returncode)
    return ended.returncode == 0


def read_all(directory: str) -> bool:
    """Read the whole index and LMDB's list of free pages; return whether they are valid."""
    try:
        index = LmdbIndex(directory)
        index.verify()
        index.try_to_write()
        index.close()
    except QuireError:
        return False  # the parent process finds the same error, and reports it
    return True


if __name__ == "__main__":
    sys.exit(not read_all(sys.argv[1]))
