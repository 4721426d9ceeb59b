"""The object store: names and immutable bytes, on a disk, in S3, in memory.

What holds for each: an object appears whole or not at all, under a name that is never overwritten; it is durable
when `put` has returned; a listing shows every object whose `put` has returned.

There are two layers. A *blocking store* (`BlockingStore`) is what a kind of store implements, in plain blocking
calls; Spark's executors use it as it is. `ObjectStore` is the same for the event loop: it runs the calls on a few
helper threads (or at once, for a store in memory) and streams an upload while its source is still being read.

Outcomes, here as everywhere: refused (`NotFound`, `AlreadyExists`, `ConfigurationError`, `DiskFull`): proven;
`Unavailable`: it did not happen; `OutcomeUnknown`: it may have, look (`size`). A range that an object does not have
is `CorruptionError`, for a caller asks only for what a checksummed footer told it.
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
PATIENCE_S: Final = 1.0
"""How long a cancelled upload, and a store that is closed, wait for a call that may hang."""


class ObjectInfo(NamedTuple):
    """One line of a listing."""

    name: str
    bytes: int
    modified_ms: int


class Upload(Protocol):
    """An object on its way. Nothing is visible before `finish` has returned."""

    def write(self, parts: Sequence[Buffer]) -> None:
        """Append; every call but the last brings `OBJECT_PART_BYTES` or more. The parts are done with at return.

        Raises `Unavailable`, `DiskFull`, `ConfigurationError`: then `abort`.
        """
        ...

    def finish(self) -> None:
        """Make the object appear, durably.

        Raises `AlreadyExists` (nothing changed), `Unavailable`, `OutcomeUnknown` (it may be there, whole).
        """
        ...

    def abort(self) -> None:
        """Throw away what was written. Never raises; what it cannot reach is left to `sweep`."""
        ...


class BlockingStore(Protocol):
    """What a kind of store implements. Safe to be called from several threads."""

    url: str
    """Names the store in metadata, without secrets; `open_blocking(url)` opens it again."""

    read_bytes_best: int
    """The size of a range at which a sequential reader is served best."""

    def prepare(self) -> None:
        """Make ready for uploads and prove that they are possible. `ConfigurationError`, `Unavailable`."""
        ...

    def room_bytes(self) -> int | None:
        """How much can be uploaded before `DiskFull`; None where nobody can tell. `Unavailable`."""
        ...

    def begin(self, name: str) -> Upload:
        """Begin an upload. Whether `name` is taken shows at `finish`."""
        ...

    def get_range(self, name: str, offset: int, length: int) -> Buffer:
        """Exactly `length` bytes from `offset`; not to be changed. `NotFound`, `Unavailable`, `CorruptionError`."""
        ...

    def size(self, name: str) -> int:
        """The object's bytes. `NotFound`, `Unavailable`."""
        ...

    def delete(self, name: str) -> None:
        """Delete; done as well when there is no such object. `Unavailable`, `OutcomeUnknown` (try again)."""
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """The objects whose names begin with `prefix`, by name. `Unavailable`."""
        ...

    def sweep(self, before_ms: int) -> int:
        """Throw away uploads begun before `before_ms` that never ended; return how many. `Unavailable`."""
        ...

    def close(self) -> None: ...


class ObjectStore:
    """A blocking store for the event loop.

    `threads` 0 runs each call at once on the loop: for a store that does not block.
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
        """Make ready for uploads and prove that they are possible; at start. `ConfigurationError`, `Unavailable`."""
        await self.run(self.blocking.prepare)

    async def room_bytes(self) -> int | None:
        """How much can be uploaded before `DiskFull`; None where nobody can tell. `Unavailable`."""
        return await self.run(self.blocking.room_bytes)

    async def put(self, name: str, parts: AsyncIterable[Buffer]) -> None:
        """Make the object `name` of `parts`, never in place of another. Uploads while `parts` is being read.

        Raises `AlreadyExists`, `Unavailable`, `DiskFull`; `OutcomeUnknown`: it may be there, whole. What `parts`
        raises, or a cancellation, throws the upload away.
        """
        assert NAME_PATTERN.fullmatch(name), f"not an object's name: {name!r}"
        uploading = _Uploading(self, await self.run(lambda: self.blocking.begin(name)))
        try:
            await uploading.write_all(parts)
            await uploading.finish()
        except BaseException:
            await asyncio.shield(uploading.abort())
            raise

    async def put_whole(self, name: str, parts: Sequence[Buffer]) -> None:
        """`put` of what is all in memory, as one call on one helper thread."""
        assert NAME_PATTERN.fullmatch(name), f"not an object's name: {name!r}"
        await self.run(lambda: put_whole(self.blocking, name, parts))

    async def get_range(self, name: str, offset: int, length: int) -> Buffer:
        """Exactly `length` bytes from `offset`. `NotFound`, `Unavailable`, `CorruptionError`."""
        return await self.run(lambda: self.blocking.get_range(name, offset, length))

    async def size(self, name: str) -> int:
        """The object's bytes. `NotFound`, `Unavailable`."""
        return await self.run(lambda: self.blocking.size(name))

    async def delete(self, name: str) -> None:
        """Delete; done as well when there is no such object. `Unavailable`, `OutcomeUnknown` (try again)."""
        await self.run(lambda: self.blocking.delete(name))

    async def list(self, prefix: str = "") -> list[ObjectInfo]:
        """The objects whose names begin with `prefix`, by name. `Unavailable`."""
        return await self.run(lambda: list(self.blocking.list(prefix)))

    async def sweep(self, before_ms: int) -> int:
        """Throw away uploads begun before `before_ms` that never ended. `Unavailable`."""
        return await self.run(lambda: self.blocking.sweep(before_ms))

    async def run(self, work: Callable[[], T]) -> T:
        """`work()` on a helper thread, for those who read and compute in one go."""
        if self._threads is None:
            return work()
        return await self._threads.run(work)

    async def close(self) -> None:
        """Wait for the calls under way, but not for one that hangs, then close the store."""
        threads = self._threads
        if threads is not None:
            ended = await asyncio.get_running_loop().run_in_executor(None, threads.close, PATIENCE_S)
            if not ended:
                log.warning("a call to %s hangs; it is not waited for any longer", self.url)
                return  # what it works with must stay
        self.blocking.close()


def put_whole(store: BlockingStore, name: str, parts: Sequence[Buffer]) -> None:
    """Make the object `name` of `parts`; raises as `ObjectStore.put`. Blocks."""
    upload = store.begin(name)
    try:
        upload.write(parts)
        upload.finish()
    except BaseException:
        upload.abort()
        raise


class _Uploading:
    """One upload's calls, one after another, each on a helper thread; the next part is gathered meanwhile.

    A cancelled task leaves its call running, so `abort` waits for that first, for a while.
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
        """Throw the upload away; one that hangs is left to `sweep`."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                if self._running is not None:
                    await asyncio.wait([self._running])
                await self._store.run(self._upload.abort)
        except TimeoutError:
            log.warning("an upload to %s hangs; what is there of it goes at the next scrub", self._store.url)

    async def _begin(self, call: Callable[[], None]) -> None:
        await self._ended()
        self._running = asyncio.ensure_future(self._store.run(call))

    async def _ended(self) -> None:
        if self._running is not None:
            await asyncio.shield(self._running)


def _writer(upload: Upload, parts: Sequence[Buffer]) -> Callable[[], None]:
    return lambda: upload.write(parts)


assert OBJECT_PART_BYTES >= 5 * MIB, "S3 refuses smaller parts"
