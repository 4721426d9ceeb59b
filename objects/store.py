"""Interface of a store of immutable objects by name: on a disk, in S3, or in memory.

All stores guarantee:

- An object appears completely or not at all, and is never overwritten.
- An object is durable when `put` has returned, and all later listings contain it.

There are two layers. Each kind of store implements `BlockingStore`, whose calls block; Spark's executors use it
directly. `ObjectStore` wraps it for the event loop: it runs the calls on a few helper threads (or at once, for a store
in memory), and streams an upload while its source is still being read.

Outcomes of a failed call: refused (`NotFound`, `AlreadyExists`, `ConfigurationError`, `DiskFull`); no effect
(`Unavailable`); unknown (`OutcomeUnknown`; `size` shows whether the object exists). A read beyond the object's end
raises `CorruptionError`, because callers take ranges from checksummed footers.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterable, Callable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from quire.runtime.limits import MIB, OBJECT_PART_BYTES
from quire.runtime.threads import DaemonThreads
from quire.wire.block import Buffer

T = TypeVar("T")
log = logging.getLogger(__name__)

NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")
THREADS: Final = 8
"""Number of helper threads of a store, which bound its concurrent calls."""
PATIENCE_S: Final = 1.0
"""Seconds for which a cancelled upload, or the close of a store, waits for a call that may hang."""


class ObjectInfo(NamedTuple):
    """Entry of a listing."""

    name: str
    bytes: int
    modified_ms: int


class Upload(Protocol):
    """Upload in progress. The object is not visible before `finish` has returned."""

    def write(self, parts: Sequence[Buffer]) -> None:
        """Append `parts`, in every call but the last at least `OBJECT_PART_BYTES`.

        The caller may reuse the memory of `parts` after the call. Raises `Unavailable`, `DiskFull`,
        `ConfigurationError`; then the caller must call `abort`.
        """
        ...

    def finish(self) -> None:
        """Make the object visible, durably.

        Raises `AlreadyExists` (nothing changed), `Unavailable`, `OutcomeUnknown` (the complete object may exist).
        """
        ...

    def abort(self) -> None:
        """Discard the upload. Never raises; data that cannot be deleted now are left to `sweep`."""
        ...


class BlockingStore(Protocol):
    """Interface that each kind of store implements; safe for concurrent threads."""

    url: str
    """URL of the store without secrets, for metadata; `open_blocking(url)` opens it again."""

    read_bytes_best: int
    """Size of the range reads, in bytes, that give a sequential reader the best throughput."""

    def prepare(self) -> None:
        """Prepare for uploads and verify that they are possible. Raises `ConfigurationError`, `Unavailable`."""
        ...

    def room_bytes(self) -> int | None:
        """Return the bytes that can be uploaded before `DiskFull`; None if unknown. Raises `Unavailable`."""
        ...

    def begin(self, name: str) -> Upload:
        """Begin an upload. Only `finish` checks whether `name` is taken."""
        ...

    def get_range(self, name: str, offset: int, length: int) -> Buffer:
        """Return exactly `length` bytes from `offset`, read-only.

        Raises `NotFound`, `Unavailable`, `CorruptionError`.
        """
        ...

    def size(self, name: str) -> int:
        """Return the object's size in bytes. Raises `NotFound`, `Unavailable`."""
        ...

    def delete(self, name: str) -> None:
        """Delete the object, if it exists. Raises `Unavailable`, `OutcomeUnknown` (try again)."""
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects whose names begin with `prefix`, sorted by name. Raises `Unavailable`."""
        ...

    def sweep(self, before_ms: int) -> int:
        """Discard incomplete uploads that began before `before_ms`; return their number. Raises `Unavailable`."""
        ...

    def close(self) -> None: ...


class ObjectStore:
    """Object store for the event loop.

    With `threads` 0, each call runs at once on the event loop, for a store that does not block.
    """

    def __init__(self, blocking: BlockingStore, *, threads: int = THREADS) -> None:
        self.blocking = blocking
        self._threads = DaemonThreads(threads, "quire-objects") if threads else None

    @property
    def url(self) -> str:
        return self.blocking.url

    @property
    def read_bytes_best(self) -> int:
        return self.blocking.read_bytes_best

    async def prepare(self) -> None:
        """Prepare for uploads and verify that they are possible. Called once, when the process starts.

        Raises `ConfigurationError`, `Unavailable`.
        """
        await self.run(self.blocking.prepare)

    async def room_bytes(self) -> int | None:
        """Return the bytes that can be uploaded before `DiskFull`; None if unknown. Raises `Unavailable`."""
        return await self.run(self.blocking.room_bytes)

    async def put(self, name: str, parts: AsyncIterable[Buffer]) -> None:
        """Create the object `name` from `parts`, but never replace an object. Upload while `parts` is being read.

        Raises `AlreadyExists`, `Unavailable`, `DiskFull`; after `OutcomeUnknown`, the complete object may exist. An
        error of `parts`, or a cancellation, discards the upload.
        """
        assert NAME_PATTERN.fullmatch(name), f"invalid object name: {name!r}"
        uploading = _Uploading(self, await self.run(lambda: self.blocking.begin(name)))
        try:
            await uploading.write_all(parts)
            await uploading.finish()
        except BaseException:
            await asyncio.shield(uploading.abort())
            raise

    async def put_whole(self, name: str, parts: Sequence[Buffer]) -> None:
        """Create an object like `put`, from parts in memory, in one call on a helper thread."""
        assert NAME_PATTERN.fullmatch(name), f"invalid object name: {name!r}"
        await self.run(lambda: put_whole(self.blocking, name, parts))

    async def get_range(self, name: str, offset: int, length: int) -> Buffer:
        """Return exactly `length` bytes from `offset`. Raises `NotFound`, `Unavailable`, `CorruptionError`."""
        return await self.run(lambda: self.blocking.get_range(name, offset, length))

    async def size(self, name: str) -> int:
        """Return the object's size in bytes. Raises `NotFound`, `Unavailable`."""
        return await self.run(lambda: self.blocking.size(name))

    async def delete(self, name: str) -> None:
        """Delete the object, if it exists. Raises `Unavailable`, `OutcomeUnknown` (try again)."""
        await self.run(lambda: self.blocking.delete(name))

    async def list(self, prefix: str = "") -> list[ObjectInfo]:
        """Return the objects whose names begin with `prefix`, sorted by name. Raises `Unavailable`."""
        return await self.run(lambda: list(self.blocking.list(prefix)))

    async def sweep(self, before_ms: int) -> int:
        """Discard incomplete uploads that began before `before_ms`. Raises `Unavailable`."""
        return await self.run(lambda: self.blocking.sweep(before_ms))

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work()` on a helper thread, for callers that read and compute in one step."""
        if self._threads is None:
            return work()
        return await self._threads.run(work)

    async def close(self) -> None:
        """Wait for calls in progress, up to `PATIENCE_S`, then close the store."""
        threads = self._threads
        if threads is not None:
            ended = await asyncio.get_running_loop().run_in_executor(None, threads.close, PATIENCE_S)
            if not ended:
                log.warning("a call to object store %s hangs; closing without waiting for it", self.url)
                return  # the call still uses the store
        self.blocking.close()


def location_of(url: str) -> str:
    """Return a store's URL without access parameters. Two URLs with equal locations name the same store."""
    return url.partition("?")[0].rstrip("/")


def put_whole(store: BlockingStore, name: str, parts: Sequence[Buffer]) -> None:
    """Create the object `name` from `parts`; raise the errors of `ObjectStore.put`. This call blocks its thread."""
    upload = store.begin(name)
    try:
        upload.write(parts)
        upload.finish()
    except BaseException:
        upload.abort()
        raise


class _Uploading:
    """Driver of one upload: runs its store calls one after another on helper threads, while the next part is collected.

    Cancelling a task does not stop the store call on its thread, so `abort` first waits for that call, for a limited
    time.
    """

    def __init__(self, store: ObjectStore, upload: Upload) -> None:
        self._store = store
        self._upload = upload
        self._running: asyncio.Future[None] | None = None

    async def write_all(self, parts: AsyncIterable[Buffer]) -> None:
        gathered: list[Buffer] = []
        size = 0
        async for part in parts:
            gathered.append(part)
            size += len(part)
            if size >= OBJECT_PART_BYTES:
                await self._begin(_writer(self._upload, gathered))
                gathered, size = [], 0
        if gathered:
            await self._begin(_writer(self._upload, gathered))

    async def finish(self) -> None:
        await self._begin(self._upload.finish)
        await self._ended()

    async def abort(self) -> None:
        """Discard the upload; leave it to `sweep` if a call hangs."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                if self._running is not None:
                    await asyncio.wait([self._running])
                await self._store.run(self._upload.abort)
        except TimeoutError:
            log.warning(
                "an upload to object store %s hangs; the next scrub removes its remains", self._store.url
            )

    async def _begin(self, call: Callable[[], None]) -> None:
        await self._ended()
        self._running = asyncio.ensure_future(self._store.run(call))

    async def _ended(self) -> None:
        if self._running is not None:
            await asyncio.shield(self._running)


def _writer(upload: Upload, parts: Sequence[Buffer]) -> Callable[[], None]:
    return lambda: upload.write(parts)


assert OBJECT_PART_BYTES >= 5 * MIB, "S3 refuses smaller parts"
