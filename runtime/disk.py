"""Disk access for storage code: a directory tree, files with direct I/O in whole pages, and helper threads.

`Disk` is one directory tree; names are relative to its root, with `/` between parts. `File` is one open file. Their
methods block, so call them on helper threads (`Worker`), or during start-up.

I/O bypasses the page cache (`O_DIRECT`) if the filesystem supports it: filling page cache costs seconds of CPU per GiB,
and dirty pages of one file delay the fdatasync of another by 100 ms. So every offset and length is a multiple of
`PAGE_BYTES` and buffers come from `aligned_buffer`. On a filesystem without direct I/O, the same calls use the page
cache. In both cases, and in `testing.disk.SimulatedDisk`:

- A write is durable after `sync`, or when a call with `durable=True` returns (one system call, RWF_DSYNC). Before that,
  a crash may keep, drop or tear it, in units of 512 bytes.
- `allocate` reserves space: later writes within it do not fail with ENOSPC. Unwritten space reads as zeros.
- A create, rename or remove is durable after `sync_directory` of its directory.
- After a failed `sync` or durable write, the contents of the disk are unknown: a successful retry proves nothing
  ([fsyncgate](https://wiki.postgresql.org/wiki/Fsync_Errors)).

Errors: `DiskFull` (no durability was promised), `NotFound` (no such name), `ConfigurationError` (permission denied, or
locked by another process), `DiskError` (all others; the bytes may or may not be written). Each contains the file and,
for I/O, the offset.

A `Worker` runs blocking work on another thread, and calls back on the event loop. `DiskThread` is one thread with a
queue, so it runs its work in order.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Thread
from typing import Final, NamedTuple, Protocol, TypeVar

from quire.runtime.errors import ConfigurationError, DiskError, DiskFull, NotFound, QuireError

Buffer = bytes | bytearray | memoryview | mmap.mmap
T = TypeVar("T")

PAGE_BYTES: Final = 4096
"""Alignment of every offset, length and buffer address."""

log = logging.getLogger(__name__)


class Space(NamedTuple):
    """Size of a disk's filesystem, and its space available to this process, in bytes."""

    total_bytes: int
    free_bytes: int


class File(Protocol):
    """An open file, implemented by `_RealFile`. Offsets and lengths are multiples of `PAGE_BYTES`."""

    name: str

    def write(self, buffer: Buffer, offset: int, *, durable: bool = False) -> None:
        """Write all of `buffer` (from `aligned_buffer`) at `offset`. Raises `DiskFull`, `DiskError`."""
        ...

    def read_into(self, buffer: Buffer, offset: int) -> int:
        """Read into `buffer` (from `aligned_buffer`) from `offset` on.

        Return the number of bytes read, which is less than the buffer's size only at the end of the file.
        """
        ...

    def sync(self) -> None:
        """Make the file's size and all bytes written so far durable. Raises `DiskError`."""
        ...

    def allocate(self, size_bytes: int) -> None:
        """Extend the file to at least `size_bytes`, and reserve the space. Durable after `sync`. Raises `DiskFull`."""
        ...

    def size_bytes(self) -> int: ...

    def close(self) -> None: ...


class Disk(Protocol):
    """A directory tree."""

    root: str
    """Path of the directory, for messages."""

    def open(self, name: str, *, create: bool = False) -> File:
        """Open a file for reading and writing.

        With `create`, a missing file is created empty; without it, a missing file raises `NotFound`.
        """
        ...

    def exists(self, name: str) -> bool: ...

    def names(self, directory: str = "") -> list[str]:
        """Return the sorted names of files and directories in `directory`; empty if it does not exist."""
        ...

    def make_directory(self, directory: str = "") -> None:
        """Create `directory` (and the root) durably, if it does not exist."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Rename a file within its directory, replacing a file of the new name. Raises `NotFound`."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file. Raises `NotFound`."""
        ...

    def sync_directory(self, directory: str = "") -> None: ...

    def read_bytes(self, name: str) -> bytes:
        """Read a small file. Raises `NotFound`."""
        ...

    def write_bytes(self, name: str, content: bytes) -> None:
        """Replace a small file's content, durably and atomically: after a crash it has the old or the new content."""
        ...

    def space(self) -> Space: ...

    def lock(self) -> None:
        """Lock the directory against other processes, until `close`.

        Raises `ConfigurationError` if another process has locked it.
        """
        ...

    def close(self) -> None:
        """Release the lock."""
        ...


def aligned_buffer(size_bytes: int) -> mmap.mmap:
    """Allocate zeroed memory for direct I/O.

    Slices of its memoryview at multiples of `PAGE_BYTES` are aligned as well.
    """
    assert size_bytes > 0
    return mmap.mmap(-1, pages_up(size_bytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def pages_up(size_bytes: int) -> int:
    """Round `size_bytes` up to whole pages."""
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


def read_around(file: File, buffer: Buffer, offset: int, pages_max: int) -> tuple[int, dict[int, str]]:
    """Read like `File.read_into`, with zeros for unreadable pages. Return the byte count, and errors by page offset.

    One bad sector fails a large read entirely, so a failed read is repeated page by page. Raises `DiskError` if more
    than `pages_max` pages are unreadable: then the disk is broken. Errors are returned as text, because an exception
    would keep the buffer in memory.
    """
    try:
        return file.read_into(buffer, offset), {}
    except DiskError:
        return _read_by_page(file, memoryview(buffer), offset, pages_max)


def _read_by_page(file: File, view: memoryview, offset: int, pages_max: int) -> tuple[int, dict[int, str]]:
    unreadable: dict[int, str] = {}
    for at in range(0, len(view), PAGE_BYTES):
        page = view[at : at + PAGE_BYTES]
        try:
            count = file.read_into(page, offset + at)
        except DiskError as error:
            if len(unreadable) == pages_max:
                raise
            unreadable[offset + at] = str(error)
            page[:] = bytes(PAGE_BYTES)
        else:
            if count < PAGE_BYTES:  # end of the file
                return at + count, unreadable
    return len(view), unreadable


@contextmanager
def mapped_errors(what: str, file: str, offset: int = -1) -> Iterator[None]:
    """Map an OSError of the `with` block to a QuireError with the operation, the file and the offset."""
    try:
        yield
    except OSError as error:
        raise map_error(error, what, file, offset) from error


def map_error(error: OSError, what: str, file: str, offset: int = -1) -> QuireError:
    """Map `error` of the operation `what` on the file to a QuireError."""
    place = f" at offset {offset}" if offset >= 0 else ""
    message = f"cannot {what} {file}{place}: {error.strerror or error}"
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return DiskFull(message)
        case errno.ENOENT:
            return NotFound(message)
        case errno.EACCES | errno.EPERM | errno.EROFS | errno.ENOTDIR | errno.EEXIST | errno.ENAMETOOLONG:
            return ConfigurationError(message)
        case _:
            return DiskError(message)


class RealDisk:
    """Directory of this machine. With `direct=False`, it uses the page cache, to compare the costs of both."""

    def __init__(self, root: str | os.PathLike[str], *, direct: bool = True) -> None:
        self.root = os.fspath(root)
        self._direct = direct
        self._lock_fd = -1

    def path(self, name: str = "") -> str:
        """Return the path of `name` on this machine."""
        return os.path.join(self.root, name) if name else self.root

    def open(self, name: str, *, create: bool = False) -> File:
        path = self.path(name)
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        with mapped_errors("open", path):
            if self._direct:
                try:
                    return _RealFile(path, os.open(path, flags | os.O_DIRECT, 0o644))
                except OSError as error:
                    if error.errno != errno.EINVAL:
                        raise
                    log.warning(
                        "%s: the filesystem does not support direct I/O; using the page cache", self.root
                    )
                    self._direct = False
            return _RealFile(path, os.open(path, flags, 0o644))

    def exists(self, name: str) -> bool:
        return os.path.exists(self.path(name))

    def names(self, directory: str = "") -> list[str]:
        with mapped_errors("list", self.path(directory)):
            try:
                return sorted(os.listdir(self.path(directory)))
            except FileNotFoundError:
                return []

    def make_directory(self, directory: str = "") -> None:
        path = self.path(directory)
        with mapped_errors("make directory", path):
            if not os.path.isdir(path):
                os.makedirs(path, exist_ok=True)
                _sync_directory(os.path.dirname(os.path.abspath(path)))

    def rename(self, old: str, new: str) -> None:
        assert os.path.dirname(old) == os.path.dirname(new)
        with mapped_errors("rename", self.path(old)):
            os.replace(self.path(old), self.path(new))

    def remove(self, name: str) -> None:
        with mapped_errors("remove", self.path(name)):
            os.unlink(self.path(name))

    def sync_directory(self, directory: str = "") -> None:
        with mapped_errors("sync directory", self.path(directory)):
            _sync_directory(self.path(directory))

    def read_bytes(self, name: str) -> bytes:
        path = self.path(name)
        with mapped_errors("read", path), open(path, "rb") as file:
            return file.read()

    def write_bytes(self, name: str, content: bytes) -> None:
        path, temporary = self.path(name), self.path(name) + ".new"
        with mapped_errors("write", path):
            with open(temporary, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            _sync_directory(os.path.dirname(path))

    def space(self) -> Space:
        with mapped_errors("get the free space of", self.root):
            stat = os.statvfs(self.root)
            return Space(stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize)

    def lock(self) -> None:
        path = self.path("lock")
        with mapped_errors("open", path):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            raise ConfigurationError(
                f"data directory {self.root} is in use by another process; stop it or choose another directory"
            ) from error
        self._lock_fd = fd

    def close(self) -> None:
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1


def _sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class _RealFile:
    def __init__(self, name: str, fd: int) -> None:
        self.name = name
        self._fd = fd

    def write(self, buffer: Buffer, offset: int, *, durable: bool = False) -> None:
        view = memoryview(buffer)
        assert offset % PAGE_BYTES == 0 and len(view) % PAGE_BYTES == 0
        flags = os.RWF_DSYNC if durable else 0
        with mapped_errors("write", self.name, offset):
            while view:
                written = os.pwritev(self._fd, (view,), offset, flags)
                view, offset = view[written:], offset + written

    def read_into(self, buffer: Buffer, offset: int) -> int:
        view = memoryview(buffer)
        assert offset % PAGE_BYTES == 0 and len(view) % PAGE_BYTES == 0
        total = 0
        with mapped_errors("read", self.name, offset):
            while view:
                count = os.preadv(self._fd, (view,), offset + total)
                total += count
                if count == 0 or count % PAGE_BYTES:  # end of the file
                    break
                view = view[count:]
        return total

    def sync(self) -> None:
        with mapped_errors("sync", self.name):
            os.fdatasync(self._fd)

    def allocate(self, size_bytes: int) -> None:
        with mapped_errors(f"allocate {size_bytes} bytes for", self.name):
            if size_bytes > self.size_bytes():
                os.posix_fallocate(self._fd, 0, size_bytes)

    def size_bytes(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


Done = Callable[[T | None, BaseException | None], None]
"""Callback on the event loop. Its arguments are the work's result and None, or None and the work's exception."""


class Worker(Protocol):
    """Runs blocking work away from the event loop, in order of submission. Implemented by `DiskThread`."""

    def submit(self, work: Callable[[], T], done: Done[T]) -> None:
        """Run `work()`, then call `done(result, None)` or `done(None, error)` on the loop."""
        ...

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work()`; return its result or raise its error."""
        ...

    async def close(self) -> None:
        """Wait for all submitted work. No work may be submitted afterwards."""
        ...


class DiskThread:
    """Worker with one thread. Create it on the event loop on which its callbacks run.

    Each piece of work costs one `call_soon_threadsafe`, so combine small pieces.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], T], done: Done[T]) -> None:
        def step() -> None:
            try:
                result = work()
            except BaseException as error:
                self._report(done, None, error)
            else:
                self._report(done, result, None)

        self._queue.put(step)

    async def run(self, work: Callable[[], T]) -> T:
        return await run_on(self, work)

    async def close(self) -> None:
        await self.run(lambda: None)
        self._queue.put(None)
        self._thread.join()

    def _report(self, done: Done[T], result: T | None, error: BaseException | None) -> None:
        try:
            self._loop.call_soon_threadsafe(done, result, error)
        except RuntimeError:  # the loop is closed, so no task waits for the result
            log.debug("%s: result dropped: its event loop is closed", self._thread.name)

    def _main(self) -> None:
        while (step := self._queue.get()) is not None:
            step()


async def run_on(worker: Worker, work: Callable[[], T]) -> T:
    """Submit `work` to a worker, and return its result.

    If the caller is cancelled, the work still completes.
    """
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def done(result: T | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # None only where T allows it

    worker.submit(work, done)
    return await future
