"""Runs `quire` on a machine whose wall clock and disks a test turns: `python faulty.py CONTROL COMMAND [FLAGS…]`.

CONTROL is a file of 16 bytes that the test and the process both map, so a turn is felt at the next call:

    bytes   8   how far the wall clock is off, in ns, signed; the monotonic clock is never off
            8   1: the disks are full

What a full disk does here is what a filesystem does: `posix_fallocate` and writes beyond a file's end fail with
ENOSPC, writes into room that a file has already go well, and `statvfs` tells that nothing is free. It does not reach
LMDB, which grows its file from C.

The process is the one that users run, by the same command: nothing in it knows of this file, which only stands between
it and the operating system. `Control` is the test's side.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_LAYOUT = struct.Struct("<qq")


class Control:
    """The file, mapped. With `create` it is made, all well."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        if create:
            path.write_bytes(bytes(_LAYOUT.size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _LAYOUT.size)

    @property
    def clock_off_ns(self) -> int:
        found: int = _LAYOUT.unpack_from(self._map)[0]
        return found

    @property
    def is_disk_full(self) -> bool:
        return bool(_LAYOUT.unpack_from(self._map)[1])

    def set_clock(self, off_s: float) -> None:
        _LAYOUT.pack_into(self._map, 0, int(off_s * 1e9), self.is_disk_full)

    def set_disk_full(self, is_full: bool) -> None:
        _LAYOUT.pack_into(self._map, 0, self.clock_off_ns, is_full)


def turn_clock(control: Control) -> None:
    """Let `time.time` and `time.time_ns` answer as the control says."""
    real_ns = time.time_ns

    def now_ns() -> int:
        return real_ns() + control.clock_off_ns

    time.time_ns = now_ns
    time.time = lambda: now_ns() / 1e9


def fill_disk(control: Control) -> None:
    """Let what needs new room fail while the control says so."""
    statvfs, allocate, write = os.statvfs, os.posix_fallocate, os.pwritev

    def room(fd: int, end: int) -> None:
        if control.is_disk_full and end > os.fstat(fd).st_size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def space(path: Any) -> os.statvfs_result:
        found = list(statvfs(path))
        if control.is_disk_full:
            found[3] = found[4] = 0  # blocks free, and free for us
        return os.statvfs_result(found)

    def allocate_if_room(fd: int, offset: int, length: int) -> None:
        room(fd, offset + length)
        allocate(fd, offset, length)

    def write_if_room(fd: int, buffers: Sequence[Any], offset: int, flags: int = 0) -> int:
        room(fd, offset + sum(map(len, buffers)))
        return write(fd, buffers, offset, flags)

    os.statvfs, os.posix_fallocate = space, allocate_if_room  # type: ignore[assignment]
    os.pwritev = write_if_room  # type: ignore[assignment]


def main() -> None:
    control = Control(Path(sys.argv.pop(1)))
    turn_clock(control)
    fill_disk(control)
    from quire.cli.main import main as quire

    quire()


if __name__ == "__main__":
    main()
