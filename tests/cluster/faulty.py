"""Runner of `quire` with a faulty wall clock and disks: `python faulty.py CONTROL COMMAND [FLAGS…]`.

CONTROL is a small file that both the test and the process map into memory, so that a change affects the next call:

    bytes   8   offset of the wall clock in ns, signed; the monotonic clock has no offset
            8   1: the disks are full
       64 x 16  inode and number of an unreadable page; inode 0: none

A full disk behaves as in a file system: `posix_fallocate` and writes beyond a file's end fail with ENOSPC, writes into
allocated space succeed, and `statvfs` reports no free space. LMDB is not affected, because it grows its file in C.

A read ends before an unreadable page, and fails with EIO if it begins with one. Writing the page makes it readable
again, as on a disk with spare sectors.

The process runs the same command as users do. This module only patches functions of the operating system's interface.
`Control` is the test's side of the file.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

_LAYOUT = struct.Struct("<qq")
_PAGE = struct.Struct("<qq")
_PAGES_MAX = 64
_PAGE_BYTES = 4096


class Control:
    """Mapped control file. With `create`, it is created without faults."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        if create:
            path.write_bytes(bytes(_LAYOUT.size + _PAGES_MAX * _PAGE.size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)

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

    def spoil(self, file: Path, offset: int) -> None:
        """Make the page around `offset` of the file unreadable."""
        place = next(place for place, inode, _ in self._pages() if not inode)
        _PAGE.pack_into(self._map, place, file.stat().st_ino, offset // _PAGE_BYTES)

    def spoiled(self, fd: int, offset: int, size_bytes: int) -> list[int]:
        """Return the offsets of the unreadable pages in a range of the file."""
        found = (page * _PAGE_BYTES for _, page in self._spoiled(fd, offset, size_bytes))
        return sorted(found)

    def written(self, fd: int, offset: int, size_bytes: int) -> None:
        """Make all pages in a range of the file readable."""
        for place, _ in self._spoiled(fd, offset, size_bytes):
            _PAGE.pack_into(self._map, place, 0, 0)

    def _spoiled(self, fd: int, offset: int, size_bytes: int) -> list[tuple[int, int]]:
        inode = os.fstat(fd).st_ino
        pages = range(offset // _PAGE_BYTES, -(-(offset + size_bytes) // _PAGE_BYTES))
        return [(place, page) for place, of, page in self._pages() if of == inode and page in pages]

    def _pages(self) -> Iterator[tuple[int, int, int]]:
        for place in range(_LAYOUT.size, len(self._map), _PAGE.size):
            yield place, *_PAGE.unpack_from(self._map, place)


def turn_clock(control: Control) -> None:
    """Patch `time.time` and `time.time_ns` to add the control's clock offset."""
    real_ns = time.time_ns

    def now_ns() -> int:
        return real_ns() + control.clock_off_ns

    time.time_ns = now_ns
    time.time = lambda: now_ns() / 1e9


def fill_disk(control: Control) -> None:
    """Patch the functions that allocate space to fail while the control's disk is full."""
    statvfs, allocate, write = os.statvfs, os.posix_fallocate, os.pwritev

    def room(fd: int, end: int) -> None:
        if control.is_disk_full and end > os.fstat(fd).st_size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def space(path: Any) -> os.statvfs_result:
        found = list(statvfs(path))
        if control.is_disk_full:
            found[3] = found[4] = 0  # free blocks, and free blocks for unprivileged users
        return os.statvfs_result(found)

    def allocate_if_room(fd: int, offset: int, length: int) -> None:
        room(fd, offset + length)
        allocate(fd, offset, length)

    def write_if_room(fd: int, buffers: Sequence[Any], offset: int, flags: int = 0) -> int:
        room(fd, offset + sum(map(len, buffers)))
        return write(fd, buffers, offset, flags)

    os.statvfs, os.posix_fallocate = space, allocate_if_room  # type: ignore[assignment]
    os.pwritev = write_if_room  # type: ignore[assignment]


def wear_disk(control: Control) -> None:
    """Patch reads to fail at the control's unreadable pages, and writes to make pages readable again."""
    read, write = os.preadv, os.pwritev

    def read_up_to(fd: int, buffers: Sequence[Any], offset: int, flags: int = 0) -> int:
        (buffer,) = buffers
        bad = control.spoiled(fd, offset, len(buffer))
        if bad and bad[0] <= offset:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(fd, (memoryview(buffer)[: bad[0] - offset] if bad else buffer,), offset, flags)

    def write_anew(fd: int, buffers: Sequence[Any], offset: int, flags: int = 0) -> int:
        control.written(fd, offset, sum(map(len, buffers)))
        return write(fd, buffers, offset, flags)

    os.preadv, os.pwritev = read_up_to, write_anew  # type: ignore[assignment]


def main() -> None:
    control = Control(Path(sys.argv.pop(1)))
    turn_clock(control)
    fill_disk(control)
    wear_disk(control)
    from quire.cli.main import main as quire

    quire()


if __name__ == "__main__":
    main()
