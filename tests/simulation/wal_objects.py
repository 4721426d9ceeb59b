"""Bucket of write-ahead logs (WALs), and each broker's client for it, with delays and faults.

A call is sent to the store, executed there in one step, and its response is sent back. A call in flight arrives even if
its process is suspended or dies. A call may be refused or lost. A lost call was not executed, or was executed, or
*will* be executed up to half a minute later, long after its caller gave it up, and after a closer has put a fence. A
listing may lack new objects. An object is never overwritten, as real stores guarantee for conditional puts.

    cut         a broker's calls do not arrive for a while
    slow        a broker's calls take a hundred times as long, so that uploads are hedged
    trouble     probability that a call fails, including reads of runs and the building of a set
    barred      a broker's calls are forbidden
    unmounted   an empty directory replaces a broker's mount: reads and fences go there, and uploads fail
    raising     a broker's next upload of a data object raises an unexpected exception
    rot         a bit of an object flips; see `wal_oracle`
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Sequence
from typing import Final, TypeVar

from quire.objects.store import BlockingStore, ObjectInfo, ObjectStore, put_whole
from quire.runtime.errors import ConfigurationError, OutcomeUnknown, QuireError, Unavailable
from quire.testing.objects import MemoryBlockingStore
from quire.wal.wal_object import FENCE_BYTES, seq_of
from quire.wire.block import Buffer

from .loop import Process
from .world import InjectedError, SimulatedClock, World

T = TypeVar("T")
LATENCY_S: Final = 0.01
TIMEOUT_S: Final = 1.0
LATE_S: Final = (0.2, 3.0, 30.0)
LISTED_AFTER_S: Final = 2.0
SLOW: Final = 100.0


class WalBucket(MemoryBlockingStore):
    """Bucket of objects. Its observers are called for each object that appears or is deleted."""

    def __init__(self, world: World) -> None:
        super().__init__(SimulatedClock(world.loop))
        self.world = world
        self.rng = world.rng("bucket")
        self.trouble = 0.0
        self.slow: set[str] = set()
        """Hosts whose calls are slow."""
        self.cut: set[str] = set()
        self.barred: set[str] = set()
        self.unmounted: set[str] = set()
        self.raising: set[str] = set()
        self.empty: dict[str, MemoryBlockingStore] = {}
        """Directory under the missing mount, by host."""
        self.lists_lag = True
        self.appeared: Callable[[str, bytes], None] = lambda name, content: None
        self.going: Callable[[str], None] = lambda name: None

    def appear(self, name: str, content: bytes) -> None:
        super().appear(name, content)
        self.world.note(f"object {name} is there, {len(content)} bytes")
        self.appeared(name, content)

    def delete(self, name: str) -> None:
        if name in self.objects:
            self.world.note(f"object {name} goes")
            self.going(name)
        super().delete(name)

    def write_over(self, name: str, content: bytes) -> None:
        """Replace an object, as an unconditional PUT does. Only mutations call this."""
        self.objects.pop(name, None)
        self.appear(name, content)

    def listed(self, prefix: str) -> list[ObjectInfo]:
        """List objects; new ones may be missing."""
        found = list(self.list(prefix))
        if not self.lists_lag:
            return found
        since_ms = SimulatedClock(self.world.loop).now_ms() - LISTED_AFTER_S * 1000
        lacking = [each for each in found if each.modified_ms > since_ms and self.rng.random() < 0.3]
        if lacking:
            self.world.saw("listing that lags")
        return [each for each in found if each not in lacking]


class WalObjects(ObjectStore):
    """Object store client of one process."""

    def __init__(self, bucket: WalBucket, process: Process) -> None:
        self.bucket = bucket
        self.process = process
        self.world = bucket.world
        super().__init__(bucket, threads=0)
        self._rng = bucket.world.rng(f"way of {process} to the objects")

    @property
    def blocking(self) -> BlockingStore:
        """Bucket, or the directory under its missing mount."""
        host = self.process.host
        if host not in self.bucket.unmounted:
            return self.bucket
        return self.bucket.empty.setdefault(host, MemoryBlockingStore(SimulatedClock(self.world.loop)))

    @blocking.setter
    def blocking(self, bucket: BlockingStore) -> None:
        pass

    async def put(self, name: str, parts: AsyncIterable[Buffer]) -> None:
        await self.put_whole(name, [part async for part in parts])

    async def put_whole(self, name: str, parts: Sequence[Buffer]) -> None:
        content, host = b"".join(parts), self.process.host
        if host in self.bucket.raising and seq_of(name) is not None:
            self.bucket.raising.discard(host)
            self.world.saw("foreign exception in an upload")
            raise InjectedError("out of memory")
        if host in self.bucket.unmounted and len(content) != FENCE_BYTES:
            raise Unavailable("the directory below the mount is read-only")
        place = self.blocking
        await self._travel(f"put {name}", lambda: put_whole(place, name, (content,)), changes=True)

    async def put_over(self, name: str, parts: Sequence[Buffer]) -> None:
        """Replace an object; see `WalBucket.write_over`."""
        content = b"".join(parts)
        await self._travel(f"put {name}", lambda: self.bucket.write_over(name, content), changes=True)

    async def get_range(self, name: str, offset: int, length: int) -> Buffer:
        return await self._travel(f"get {name}", lambda: self.blocking.get_range(name, offset, length))

    async def size(self, name: str) -> int:
        return await self._travel(f"look at {name}", lambda: self.blocking.size(name))

    async def delete(self, name: str) -> None:
        await self._travel(f"delete {name}", lambda: self.blocking.delete(name), changes=True)

    async def list(self, prefix: str = "") -> list[ObjectInfo]:
        def look() -> list[ObjectInfo]:
            found = self.blocking
            return found.listed(prefix) if isinstance(found, WalBucket) else list(found.list(prefix))

        return await self._travel(f"list {prefix}", look)

    async def prepare(self) -> None:
        await self._travel("prepare", self.bucket.prepare)

    async def run(self, work: Callable[[], T]) -> T:
        """Run work that production code runs in a thread, such as reads."""
        bucket, host = self.bucket, self.process.host
        slowness = SLOW if host in bucket.slow else 1.0
        await asyncio.sleep(slowness * self._rng.expovariate(1000))
        if host in bucket.cut or self._rng.random() < bucket.trouble:
            raise Unavailable("the object store is silent")
        if host in bucket.barred:
            raise ConfigurationError("the object store says 403")
        return work()

    def _delay_s(self) -> float:
        slowness = SLOW if self.process.host in self.bucket.slow else 1.0
        return LATENCY_S * slowness * self._rng.expovariate(1.0)

    async def _travel(self, what: str, work: Callable[[], T], *, changes: bool = False) -> T:
        answer: asyncio.Future[T] = self.world.loop.create_future()
        bucket, rng = self.bucket, self._rng

        def arrive(answers: bool) -> None:
            result, error = None, None
            try:
                result = work()
            except QuireError as refusal:
                error = refusal
            if answers:
                self._in_process(self._delay_s(), lambda: _settle(answer, result, error))

        def give_up(error: QuireError) -> None:
            if not answer.done():
                self.world.note(f"{self.process}: {what}: {error}")
                answer.set_exception(error)

        if self.process.host in bucket.barred:
            self.world.saw("object store bars a broker")
            self._in_process(
                self._delay_s(), lambda: give_up(ConfigurationError("the object store says 403"))
            )
            return await answer
        is_cut = self.process.host in bucket.cut
        if not is_cut and rng.random() >= bucket.trouble:
            self.world.later(self._delay_s(), arrive, True)
        elif not is_cut and rng.random() < 0.5:
            self.world.saw("object store refuses")
            self._in_process(self._delay_s(), lambda: give_up(Unavailable("the object store says 503")))
        else:
            fate = rng.choice(("before", "after", "later")) if changes else "before"
            self.world.saw(f"object store silent, {what.partition(' ')[0]} {fate}")
            if fate == "after" and not is_cut:
                self.world.later(self._delay_s(), arrive, False)
            elif fate != "before":
                self.world.later(rng.random() * rng.choice(LATE_S), arrive, False)
            error = OutcomeUnknown if changes else Unavailable
            self._in_process(rng.random() * TIMEOUT_S, lambda: give_up(error("the object store is silent")))
        return await answer

    def _in_process(self, delay_s: float, act: Callable[[], None]) -> None:
        self.world.loop.call_later(delay_s, act, context=self.process.context)


def _settle(answer: asyncio.Future[T], result: T | None, error: QuireError | None) -> None:
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(result)  # type: ignore[arg-type]
