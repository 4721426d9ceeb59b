"""The disk, as storage code sees it: one directory tree, files written and read in whole pages, and threads.

`Disk` is one directory tree; names are relative to its root, with `/` between parts. `File` is one open file.
Both block: they are called from helper threads (`Worker`), or in a start-up that has nothing else to do.

Bytes go past the page cache (`O_DIRECT`) where the filesystem allows it: fresh page cache costs seconds of CPU
per GiB, and dirty pages of one file make the fdatasync of another take a tenth of a second. So every offset and
length is a multiple of `PAGE_BYTES` and buffers come from `aligned_buffer`. Where a filesystem refuses direct
I/O the same calls go through the page cache. What holds in both cases, and in `testing.disk.SimulatedDisk`:

- A write is durable after `sync`, or when it was made with `durable=True` and returned (one system call,
  RWF_DSYNC). Until then a crash keeps, drops or tears it, in units of 512 bytes.
- `allocate` reserves room: later writes inside it do not fail for want of space. Unwritten room reads as zeros.
- A name (create, rename, remove) is durable after `sync_directory` of the directory it is in.
- After a failed `sync` or durable write nobody knows what is on disk: the caller must not try again and
  believe the second answer.

Errors: `DiskFull` (nothing was promised), `NotFound` (no such name), `ConfigurationError` (permission, or locked by
another process), `DiskError` (all else; the bytes' fate is unknown). Each names file and, for I/O, offset.

A `Worker` runs blocking work elsewhere and tells the event loop when it is done: `DiskThread` is one thread with
a queue, so its works run one after another.
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
    """Room of the filesystem that a disk lies on, in bytes; `free_bytes` is what we may still use."""

    total_bytes: int
    free_bytes: int


class File(Protocol):
    """An open file. Offsets and lengths are multiples of `PAGE_BYTES`."""

    name: str

    def write(self, buffer: Buffer, offset: int, *, durable: bool = False) -> None:
        """Write all of `buffer` (from `aligned_buffer`) at `offset`. `DiskFull`, `DiskError`."""
        ...

    def read_into(self, buffer: Buffer, offset: int) -> int:
        """Fill `buffer` (from `aligned_buffer`) from `offset`; return the bytes read, fewer only at the end."""
        ...

    def sync(self) -> None:
        """Make everything written so far durable, and the file's size. `DiskError`."""
        ...

    def allocate(self, size_bytes: int) -> None:
        """Make the file at least `size_bytes` long, its room reserved. Durable after `sync`. `DiskFull`."""
        ...

    def size_bytes(self) -> int: ...

    def close(self) -> None: ...


class Disk(Protocol):
    """A directory tree."""

    root: str
    """How messages call it: the path of the directory."""

    def open(self, name: str, *, create: bool = False) -> File:
        """Open a file for reading and writing; with `create` it is made empty if it is not there. `NotFound`."""
        ...

    def exists(self, name: str) -> bool: ...

    def names(self, directory: str = "") -> list[str]:
        """Names of the files and directories in `directory`, sorted; empty when it is not there."""
        ...

    def make_directory(self, directory: str = "") -> None:
        """Make `directory` (and the root) if it is not there, durably."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Give a file another name in the same directory, replacing what has it. `NotFound`."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file. `NotFound`."""
        ...

    def sync_directory(self, directory: str = "") -> None: ...

    def read_bytes(self, name: str) -> bytes:
        """A small file's whole content. `NotFound`."""
        ...

    def write_bytes(self, name: str, content: bytes) -> None:
        """Replace a small file's content, durably and in one step: after a crash it is the old or the new."""
        ...

    def space(self) -> Space: ...

    def lock(self) -> None:
        """Keep other processes out until `close`. `ConfigurationError` when one is in."""
        ...

    def close(self) -> None:
        """Give up the lock. Files stay as they are."""
        ...


def aligned_buffer(size_bytes: int) -> mmap.mmap:
    """Zeroed memory that direct I/O can use; slices of a memoryview of it too, at multiples of `PAGE_BYTES`."""
    assert size_bytes > 0
    return mmap.mmap(-1, pages_up(size_bytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def pages_up(size_bytes: int) -> int:
    """`size_bytes` rounded up to whole pages."""
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


def read_around(file: File, buffer: Buffer, offset: int, pages_max: int) -> tuple[int, dict[int, str]]:
    """Like `File.read_into`, but a page that cannot be read is zeros: the bytes, and what was said, by pages' offsets.

    One bad sector fails a large read as a whole, so what failed is read again page by page. Raises `DiskError` when
    more than `pages_max` of them cannot be read: then it is the disk that is broken. Errors are kept as sentences, for
    what an exception holds on to would keep the buffer.
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
            if count < PAGE_BYTES:  # the end of the file
                return at + count, unreadable
    return len(view), unreadable


@contextmanager
def mapped_errors(what: str, file: str, offset: int = -1) -> Iterator[None]:
    """Turn an OSError of the block into one of ours that says what happened to which file, and where."""
    try:
        yield
    except OSError as error:
        raise map_error(error, what, file, offset) from error


def map_error(error: OSError, what: str, file: str, offset: int = -1) -> QuireError:
    """The error of ours for `error`, met when trying to `what` the file."""
    place = f" at offset {offset}" if offset >= 0 else ""
    message = f"cannot {what} {file}{place}: {error.strerror or error}"
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return DiskFull(message)
        case errno.ENOENT:
            return NotFound(message)
        case errno.EACCES | errno.EPERM | errno.EROFS | errno.ENOTDIR | errno.EEXIST:
            return ConfigurationError(message)
        case _:
            return DiskError(message)


class RealDisk:
    """A directory of this machine. `direct=False` keeps to the page cache (to measure what it costs)."""

    def __init__(self, root: str | os.PathLike[str], *, direct: bool = True) -> None:
        self.root = os.fspath(root)
        self._direct = direct
        self._lock_fd = -1

    def path(self, name: str = "") -> str:
        """The path of `name` in the machine's filesystem."""
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
                    log.warning("%s: the filesystem refuses direct I/O; the page cache is used", self.root)
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
        with mapped_errors("ask for the free space of", self.root):
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
                if count == 0 or count % PAGE_BYTES:  # the end of the file
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
"""Called on the loop with the work's result, or with what it raised."""


class Worker(Protocol):
    """Runs blocking work away from the event loop, in order of submission."""

    def submit(self, work: Callable[[], T], done: Done[T]) -> None:
        """Run `work()`, then call `done(result, None)` or `done(None, error)` on the loop."""
        ...

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work()`, or what it raised."""
        ...

    async def close(self) -> None:
        """Wait for what was submitted; nothing may be submitted afterwards."""
        ...


class DiskThread:
    """A `Worker` with one thread of its own. Made on the loop that it reports to.

    One `call_soon_threadsafe` per work: what belongs together should be one work.
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
        except RuntimeError:  # the loop is closed: nobody waits any more
            log.debug("a result of %s came after its loop was closed", self._thread.name)

    def _main(self) -> None:
        while (step := self._queue.get()) is not None:
            step()


async def run_on(worker: Worker, work: Callable[[], T]) -> T:
    """`await` for a worker's `submit`. When the waiting task is cancelled the work still runs to its end."""
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
