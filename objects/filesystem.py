"""Object store in a directory: one file per object. Its path below the root is the object's name.

    ROOT/segments/…         objects, read-only
    ROOT/.uploading/…       uploads in progress

An upload is written to a temporary file, synced, and then linked to its name: the link appears in one step, and fails
if the name is taken. The name's directory is synced before `finish` returns, so that the name is durable. A crashed
process leaves at most one temporary file per upload, which `sweep` removes.

If the file system is unmounted, an empty directory takes the place of the root. So a process records the identity of
the root when it first reads or writes an object. It checks the root again before it writes, lists or deletes, and
before it reports an object as missing. If the root is missing, or is another directory, it raises `Unavailable`.

A bookie may use the same disk, so uploads leave a reserve of free space (`room_bytes`), and are refused or aborted at
that limit. Without the reserve, acknowledgements and deletions could not be written, so no space could be freed.

Reads and writes bypass the page cache (`O_DIRECT`): objects are written once and mostly read once, and new pages in the
page cache cost a second of CPU or more per GiB. Reads return views of pooled buffers. A buffer is reused when no view
of it is left, because allocating memory costs nearly as much as the page cache (0.4 µs per KiB).
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import shutil
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from uuid import uuid4

from quire.objects.store import ObjectInfo, ObjectStore
from quire.runtime.disk import PAGE_BYTES, aligned_buffer, map_error, mapped_errors, pages_up
from quire.runtime.errors import (
    AlreadyExists,
    ConfigurationError,
    CorruptionError,
    DiskError,
    DiskFull,
    NotFound,
    OutcomeUnknown,
    Unavailable,
    Unreadable,
)
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
"""Maximum bytes of pooled buffers: for the cache, uploads in progress, and a few responses being sent."""

_MEDIUM_ERRORS: Final = {errno.EIO, errno.ENODATA, errno.EUCLEAN, errno.EBADMSG, errno.EREMOTEIO}
"""`errno` values for bytes that the medium cannot read, although the process and the file system work."""

POOLED_BYTES_MIN: Final = MIB + ARCHIVE_INDEX_RUN_BYTES + 2 * PAGE_BYTES
"""Minimum size of a pooled buffer, into which nearly all chunks of the archive fit (`tiering.read_back`).

A chunk consists of one stretch and the rest of the last run that begins in it.
"""


class FilesystemBlockingStore:
    """`BlockingStore` in the directory `root`."""

    def __init__(self, root: Path) -> None:
        self.url = f"file://{root.absolute()}"
        self.read_bytes_best = MIB
        self._root = root.absolute()
        self._root_id: tuple[int, int] | None = None
        """Device and inode of the root when an object was first read or written; None before that."""
        self._pool = BufferPool(POOL_BYTES_MAX)

    def prepare(self) -> None:
        """Check the root without creating anything; the first upload creates the directories."""
        uploads = self._root / UPLOADS
        with _mapped_read_errors("look at", str(uploads)):
            there = next(path for path in (uploads, *uploads.parents) if path.exists())
        if not there.is_dir():
            raise ConfigurationError(f"directory {self._root} cannot be created: {there} is a file")
        if not os.access(there, os.W_OK):
            raise ConfigurationError(f"directory {there} is not writable; change its permissions")

    def room_bytes(self) -> int:
        with _mapped_read_errors("look at", str(self._root)):
            there = next(path for path in (self._root, *self._root.parents) if path.exists())
            disk = shutil.disk_usage(there)
        return disk.free - min(OBJECT_RESERVE_BYTES, disk.total // OBJECT_RESERVE_SHARE)

    def begin(self, name: str) -> _FileUpload:
        self._prove_root()
        self._make_directory(self._root / UPLOADS)
        self._remember_root()
        temporary = self._root / UPLOADS / uuid4().hex
        with _mapped_read_errors("create", str(temporary)):
            return _FileUpload(self, temporary, name)

    def get_range(self, name: str, offset: int, length: int) -> Buffer:
        path = str(self._path(name))
        start = offset - offset % PAGE_BYTES
        size = pages_up(offset + length - start)
        view = self._pool.take(size)[:size]
        with self._proving_absence(), _mapped_read_errors("open", path):
            fd = _open_direct(path, os.O_RDONLY)
        try:
            with _mapped_read_errors("read", path, offset):
                count = _read_full(fd, view, start)
        finally:
            os.close(fd)
        self._remember_root()
        if count < offset + length - start:
            raise CorruptionError(f"the object ends before byte {offset + length}", path, start + count)
        return view[offset - start : offset - start + length].toreadonly()

    def size(self, name: str) -> int:
        with self._proving_absence(), _mapped_read_errors("look at", str(self._path(name))):
            found = self._path(name).stat()
        self._remember_root()
        return found.st_size

    def delete(self, name: str) -> None:
        path = self._path(name)
        self._prove_root()
        with mapped_errors("delete", str(path)):
            path.unlink(missing_ok=True)
            if path.parent.exists():
                _sync_directory(path.parent)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        folder = prefix.rpartition("/")[0]
        self._prove_root()
        with _mapped_read_errors("list", str(self._root / folder)):
            names = sorted(_names_below(self._root, folder))
        for name in names:
            if name.startswith(prefix) and not name.startswith(UPLOADS):
                try:
                    with _mapped_read_errors("look at", name):
                        stat = self._path(name).stat()
                except NotFound:
                    continue  # deleted meanwhile
                yield ObjectInfo(name, stat.st_size, stat.st_mtime_ns // 1_000_000)

    def sweep(self, before_ms: int) -> int:
        swept = 0
        self._prove_root()
        with mapped_errors("sweep", str(self._root / UPLOADS)):
            for path in (self._root / UPLOADS).glob("*"):
                if path.stat().st_mtime_ns // 1_000_000 < before_ms:
                    path.unlink(missing_ok=True)
                    swept += 1
        return swept

    def close(self) -> None:
        pass

    def appear(self, temporary: Path, name: str) -> None:
        """Link a finished upload to its name, durably. Raises `AlreadyExists`, `OutcomeUnknown`, `Unavailable`."""
        path = self._path(name)
        self._prove_root()
        self._make_directory(path.parent)
        try:
            os.link(temporary, path)
        except FileExistsError:
            raise AlreadyExists(f"object {path} already exists") from None
        except FileNotFoundError as error:
            self._prove_root()
            raise DiskError(
                f"cannot link {path}: another process deleted its upload or its directory; try again"
            ) from error
        except OSError as error:
            raise map_error(error, "link", str(path)) from error
        try:
            _sync_directory(path.parent)
        except OSError as error:
            raise OutcomeUnknown(f"cannot sync the directory of {path}: {error}") from error
        self._prove_root()
        temporary.unlink(missing_ok=True)

    def _prove_root(self) -> None:
        """Check that the root is still the same directory. Raises `Unavailable`."""
        if self._root_id is None:
            return
        try:
            found = self._look_at_root()
        except NotFound:
            raise Unavailable(
                f"directory {self._root}, which this process has used, is missing: mount it again"
            ) from None
        if found != self._root_id:
            raise Unavailable(
                f"directory {self._root} is not the one that this process has used: mount the former one again, or "
                "restart the process"
            )

    def _remember_root(self) -> None:
        if self._root_id is None:
            self._root_id = self._look_at_root()

    def _look_at_root(self) -> tuple[int, int]:
        with _mapped_read_errors("look at", str(self._root)):
            found = self._root.stat()
        return found.st_dev, found.st_ino

    @contextmanager
    def _proving_absence(self) -> Iterator[None]:
        """Raise `Unavailable` instead of `NotFound` if the root is another directory now."""
        try:
            yield
        except NotFound:
            self._prove_root()
            raise

    def _path(self, name: str) -> Path:
        assert not name.startswith((".", "/")) and ".." not in name
        return self._root / name

    def _make_directory(self, path: Path) -> None:
        """Create a directory and its missing parents, and sync the parent of each."""
        if path.is_dir():
            return
        if path.parent != path:
            self._make_directory(path.parent)
        try:
            path.mkdir(exist_ok=True)
            _sync_directory(path.parent)
        except FileNotFoundError as error:
            raise DiskError(
                f"cannot create directory {path}: another process deleted its parent; try again"
            ) from error
        except OSError as error:
            raise map_error(error, "make directory", str(path)) from error


class FilesystemStore(ObjectStore):
    """`ObjectStore` in a directory."""

    def __init__(self, root: Path) -> None:
        super().__init__(FilesystemBlockingStore(root))


class _FileUpload:
    """Upload in progress to a temporary file. It writes whole pages; `finish` truncates the file to its length."""

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
            pass  # `sweep` removes it later

    def _flush(self) -> None:
        if self._store.room_bytes() < self._fill:
            raise DiskFull(
                f"cannot write {self._temporary}: the disk is full except for its reserve; free space"
            )
        with mapped_errors("write", str(self._temporary), self._offset):
            view = self._view[: pages_up(self._fill)]
            while view:
                count = os.pwrite(self._fd, view, self._offset)
                if count == 0:
                    raise DiskFull(f"cannot write {self._temporary}: the disk is full")
                view = view[count:]
                self._offset += count
        self._fill = 0

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class BufferPool:
    """Pool of aligned buffers. A buffer is reused after its last view is released.

    A buffer is lent as a view of a `ctypes` array over it. Every slice and cast keeps that array alive, so the array's
    finalizer returns the buffer to the pool after the last view. This works in all versions of CPython, unlike
    reference counts. The pool keeps at most `bytes_max`; further buffers are freed after use.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._free: deque[mmap.mmap] = deque()
        """Returned buffers. Finalizers append to it on any thread, at any time, so it is used without the lock."""
        self._lock = threading.Lock()

    def take(self, size_bytes: int) -> memoryview:
        """Return a view of a buffer of at least `size_bytes`, whose content is arbitrary."""
        for _ in range(len(self._free)):
            try:
                buffer = self._free.popleft()
            except IndexError:
                break
            if len(buffer) >= size_bytes:
                return self._lend(buffer)
            self._free.append(buffer)
        made = aligned_buffer(max(size_bytes, POOLED_BYTES_MIN))
        with self._lock:
            if self._bytes + len(made) > self._bytes_max:
                return memoryview(made)
            self._bytes += len(made)
        return self._lend(made)

    def _lend(self, buffer: mmap.mmap) -> memoryview:
        lease = (ctypes.c_ubyte * len(buffer)).from_buffer(buffer)
        weakref.finalize(lease, self._free.append, buffer).atexit = False
        return memoryview(lease).cast("B")


@contextmanager
def _mapped_read_errors(what: str, path: str, offset: int = -1) -> Iterator[None]:
    """Map errors of read-only calls: `Unreadable` if the medium fails, else `Unavailable`.

    A lack of file descriptors, or a network file system that is down, does not show that the bytes are damaged.
    """
    try:
        with mapped_errors(what, path, offset):
            yield
    except DiskError as error:
        cause = error.__cause__
        is_medium = isinstance(cause, OSError) and cause.errno in _MEDIUM_ERRORS
        raise (Unreadable if is_medium else Unavailable)(str(error)) from cause


def _names_below(root: Path, folder: str) -> Iterator[str]:
    """Yield the names of all files below `root/folder`. Raises `OSError` for an unreadable directory."""
    try:
        with os.scandir(root / folder) as found:
            entries = list(found)
    except FileNotFoundError:
        return  # there is no object yet, or all were deleted
    for entry in entries:
        name = f"{folder}/{entry.name}" if folder else entry.name
        if entry.is_dir(follow_symlinks=False):
            yield from _names_below(root, name)
        elif entry.is_file():
            yield name


def _open_direct(path: str, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_CLOEXEC | os.O_DIRECT, 0o600)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    if flags & os.O_CREAT:
        Path(path).unlink(missing_ok=True)  # some file systems create the file before they refuse O_DIRECT
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
