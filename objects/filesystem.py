"""The object store in a directory: one file per object, below the root, by its name.

    ROOT/segments/…         objects, read-only
    ROOT/.uploading/…       uploads on their way

An upload is written to a file of its own, synced, and then linked to its name: the link appears in one step and fails
when the name is taken. The name is durable when its directory has been synced, which is done before `finish`
returns. A process that dies leaves one temporary file at most, which `sweep` removes.

The disk may be a bookie's as well, so an upload leaves a reserve of it (`room_bytes`) and is refused, or broken off,
where that would be touched: without room for acknowledgements and deletions nothing could ever be freed.

Bytes go past the page cache in both directions, through `O_DIRECT`: objects are written once and mostly read once, and
fresh page cache costs a second of CPU and more per GiB. Reads return views into buffers that are used again when
no view of them is left, because fresh memory costs nearly as much (0.4 µs per KiB).
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final
from uuid import uuid4

from quire.objects.store import ObjectInfo, ObjectStore
from quire.runtime.disk import PAGE_BYTES, aligned_buffer, map_error, mapped_errors, pages_up
from quire.runtime.errors import AlreadyExists, ConfigurationError, CorruptionError, DiskFull, OutcomeUnknown
from quire.runtime.limits import (
    ARCHIVE_CACHE_BYTES,
    ARCHIVE_INDEX_RUN_BYTES,
    MIB,
    OBJECT_PART_BYTES,
    OBJECT_RESERVE_BYTES,
    OBJECT_RESERVE_SHARE,
)
from quire.wire.block import Buffer

UPLOADS: Final = ".uploading"
POOL_BYTES_MAX: Final = ARCHIVE_CACHE_BYTES + 32 * MIB
"""What the cache holds on to, what is on its way, and some that is just being sent."""

POOLED_BYTES_MIN: Final = MIB + ARCHIVE_INDEX_RUN_BYTES + 2 * PAGE_BYTES
"""A chunk is a stretch and what its last run has beyond it, so buffers of this size fit nearly all."""


class FilesystemBlockingStore:
    """A `BlockingStore` in the directory `root`."""

    def __init__(self, root: Path) -> None:
        self.url = f"file://{root.absolute()}"
        self.read_bytes_best = MIB
        self._root = root.absolute()
        self._pool = BufferPool(POOL_BYTES_MAX)

    def prepare(self) -> None:
        """Makes nothing: the directories appear with the first upload."""
        uploads = self._root / UPLOADS
        there = next(path for path in (uploads, *uploads.parents) if path.exists())
        if not there.is_dir():
            raise ConfigurationError(f"directory {self._root} cannot be made: {there} is a file")
        if not os.access(there, os.W_OK):
            raise ConfigurationError(f"directory {there} cannot be written; change its permissions")

    def room_bytes(self) -> int:
        there = next(path for path in (self._root, *self._root.parents) if path.exists())
        with mapped_errors("look at", str(there)):
            disk = shutil.disk_usage(there)
        return disk.free - min(OBJECT_RESERVE_BYTES, disk.total // OBJECT_RESERVE_SHARE)

    def begin(self, name: str) -> _FileUpload:
        self._make_directory(self._root / UPLOADS)
        temporary = self._root / UPLOADS / uuid4().hex
        with mapped_errors("create", str(temporary)):
            return _FileUpload(self, temporary, name)

    def get_range(self, name: str, offset: int, length: int) -> Buffer:
        path = str(self._path(name))
        start = offset - offset % PAGE_BYTES
        buffer = self._pool.take(pages_up(offset + length - start))
        view = memoryview(buffer)[: pages_up(offset + length - start)]
        with mapped_errors("open", path):
            fd = _open_direct(path, os.O_RDONLY)
        try:
            with mapped_errors("read", path, offset):
                count = _read_full(fd, view, start)
        finally:
            os.close(fd)
        if count < offset + length - start:
            raise CorruptionError(f"an object ends before {offset + length}", path, start + count)
        return view[offset - start : offset - start + length].toreadonly()

    def size(self, name: str) -> int:
        with mapped_errors("look at", str(self._path(name))):
            return self._path(name).stat().st_size

    def delete(self, name: str) -> None:
        path = self._path(name)
        with mapped_errors("delete", str(path)):
            path.unlink(missing_ok=True)
            if path.parent.exists():
                _sync_directory(path.parent)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        with mapped_errors("list", str(self._root)):
            files = sorted(
                str(path.relative_to(self._root)) for path in self._root.rglob("*") if path.is_file()
            )
        for name in files:
            if name.startswith(prefix) and not name.startswith(UPLOADS):
                try:
                    stat = self._path(name).stat()
                except FileNotFoundError:
                    continue  # deleted since
                yield ObjectInfo(name, stat.st_size, stat.st_mtime_ns // 1_000_000)

    def sweep(self, before_ms: int) -> int:
        swept = 0
        with mapped_errors("sweep", str(self._root / UPLOADS)):
            for path in (self._root / UPLOADS).glob("*"):
                if path.stat().st_mtime_ns // 1_000_000 < before_ms:
                    path.unlink(missing_ok=True)
                    swept += 1
        return swept

    def close(self) -> None:
        pass

    def appear(self, temporary: Path, name: str) -> None:
        """Give a finished upload its name, durably. `AlreadyExists`, `OutcomeUnknown`."""
        path = self._path(name)
        self._make_directory(path.parent)
        try:
            os.link(temporary, path)
        except FileExistsError:
            raise AlreadyExists(f"object {path} exists already") from None
        except OSError as error:
            raise map_error(error, "link", str(path)) from error
        try:
            _sync_directory(path.parent)
        except OSError as error:
            raise OutcomeUnknown(f"cannot sync the directory of {path}: {error}") from error
        temporary.unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        assert not name.startswith((".", "/")) and ".." not in name
        return self._root / name

    def _make_directory(self, path: Path) -> None:
        """Make a directory and the ones above it, each durable in its parent."""
        if path.is_dir():
            return
        if path.parent != path:
            self._make_directory(path.parent)
        try:
            path.mkdir(exist_ok=True)
            _sync_directory(path.parent)
        except OSError as error:
            raise ConfigurationError(f"directory {path} cannot be made: {error.strerror}") from error


class FilesystemStore(ObjectStore):
    """A store in a directory, for the event loop."""

    def __init__(self, root: Path) -> None:
        super().__init__(FilesystemBlockingStore(root))


class _FileUpload:
    """Gathers what comes in whole pages; the last, odd one is cut to length at the end."""

    def __init__(self, store: FilesystemBlockingStore, temporary: Path, name: str) -> None:
        self._store = store
        self._temporary = temporary
        self._name = name
        self._buffer = aligned_buffer(OBJECT_PART_BYTES)
        self._view = memoryview(self._buffer)
        self._fill = 0
        self._offset = 0
        self._fd = _open_direct(str(temporary), os.O_WRONLY | os.O_CREAT | os.O_EXCL)

    def write(self, parts: Sequence[Buffer]) -> None:
        for part in parts:
            rest = memoryview(part)
            while rest:
                count = min(len(rest), OBJECT_PART_BYTES - self._fill)
                self._view[self._fill : self._fill + count] = rest[:count]
                self._fill += count
                rest = rest[count:]
                if self._fill == OBJECT_PART_BYTES:
                    self._flush()

    def finish(self) -> None:
        size = self._offset + self._fill
        self._flush()
        with mapped_errors("sync", str(self._temporary)):
            os.ftruncate(self._fd, size)
            os.fchmod(self._fd, 0o444)
            os.fsync(self._fd)
        self._close()
        self._store.appear(self._temporary, self._name)

    def abort(self) -> None:
        self._close()
        try:
            self._temporary.unlink(missing_ok=True)
        except OSError:
            pass  # `sweep` will find it

    def _flush(self) -> None:
        if self._store.room_bytes() < self._fill:
            raise DiskFull(f"cannot write {self._temporary}: the disk is full but for its reserve")
        with mapped_errors("write", str(self._temporary), self._offset):
            view = self._view[: pages_up(self._fill)]
            while view:
                count = os.pwrite(self._fd, view, self._offset)
                if count == 0:
                    raise DiskFull(f"cannot write {self._temporary}: nothing more fits")
                view = view[count:]
                self._offset += count
        self._fill = 0

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class BufferPool:
    """Aligned buffers that are used again once nobody looks at them any more.

    A view keeps its buffer's reference count up, so a buffer that only the pool refers to is free. CPython's own
    counting does the work; the pool holds `bytes_max` at most, beyond that buffers are made and dropped.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._buffers: deque[mmap.mmap] = deque()
        self._lock = threading.Lock()

    def take(self, size_bytes: int) -> mmap.mmap:
        """A buffer of at least `size_bytes`; its old content is still in it."""
        with self._lock:
            for _ in range(len(self._buffers)):
                buffer = self._buffers.popleft()
                self._buffers.append(buffer)
                # Three: the deque's reference, this frame's, and the argument's. A view would be a fourth.
                if sys.getrefcount(buffer) == 3 and len(buffer) >= size_bytes:
                    return buffer
            made = aligned_buffer(max(size_bytes, POOLED_BYTES_MIN))
            if self._bytes + len(made) <= self._bytes_max:
                self._bytes += len(made)
                self._buffers.append(made)
            return made


def _open_direct(path: str, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_CLOEXEC | os.O_DIRECT, 0o600)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    if flags & os.O_CREAT:
        Path(path).unlink(missing_ok=True)  # some filesystems make the file and then refuse
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _read_full(fd: int, view: memoryview, offset: int) -> int:
    total = 0
    while total < len(view):
        count = os.preadv(fd, (view[total:],), offset + total)
        total += count
        if count == 0 or count % PAGE_BYTES:
            break  # the end of the file
    return total


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
