"""The bucket under write-ahead logs, and each broker's way to it, with everything that a call may meet there.

A call travels to the store, is carried out there in one step, and its answer travels back; what is under way when its
process stands still or dies arrives nevertheless. A call may be refused, or lost: then it was not carried out, or was,
or *will* be, up to half a minute later, long after its maker gave it up, and after others have put a fence there. A
listing may lack what is new. A name is never overwritten, whatever happens: that is the store's own promise.

    cut         nothing of a broker's arrives for a while
    slow        its calls take a hundred times as long: uploads are hedged
    trouble     the chance that any call goes wrong
    rot         a bit of an object flips; see `wal_oracle`
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Sequence
from typing import Final, TypeVar

from quire.objects.store import ObjectInfo, ObjectStore, put_whole
from quire.runtime.errors import OutcomeUnknown, QuireError, Unavailable
from quire.testing.objects import MemoryBlockingStore
from quire.wire.block import Buffer

from .loop import Process
from .world import SimulatedClock, World

T = TypeVar("T")
LATENCY_S: Final = 0.01
TIMEOUT_S: Final = 1.0
LATE_S: Final = (0.2, 3.0, 30.0)
LISTED_AFTER_S: Final = 2.0
SLOW: Final = 100.0


class WalBucket(MemoryBlockingStore):
    """The objects. `heard` is told of each one that appears or goes, before anybody else is."""

    def __init__(self, world: World) -> None:
        super().__init__(SimulatedClock(world.loop))
        self.world = world
        self.rng = world.rng("bucket")
        self.trouble = 0.0
        self.slow: set[str] = set()
        """Hosts whose calls take long."""
        self.cut: set[str] = set()
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
        """What a PUT without a condition does: mutations ask for it, and nobody else."""
        self.objects.pop(name, None)
        self.appear(name, content)

    def listed(self, prefix: str) -> list[ObjectInfo]:
        """What is new may be missing."""
        found = list(self.list(prefix))
        if not self.lists_lag:
            return found
        since_ms = SimulatedClock(self.world.loop).now_ms() - LISTED_AFTER_S * 1000
        lacking = [each for each in found if each.modified_ms > since_ms and self.rng.random() < 0.3]
        if lacking:
            self.world.saw("listing that lags")
        return [each for each in found if each not in lacking]


class WalObjects(ObjectStore):
    """One process's way to the bucket."""

    def __init__(self, bucket: WalBucket, process: Process) -> None:
        super().__init__(bucket, threads=0)
        self.bucket = bucket
        self.process = process
        self.world = bucket.world
        self._rng = bucket.world.rng(f"way of {process} to the objects")

    async def put(self, name: str, parts: AsyncIterable[Buffer]) -> None:
        await self.put_whole(name, [part async for part in parts])

    async def put_whole(self, name: str, parts: Sequence[Buffer]) -> None:
        content = b"".join(parts)
        await self._travel(f"put {name}", lambda: put_whole(self.bucket, name, (content,)), changes=True)

    async def put_over(self, name: str, parts: Sequence[Buffer]) -> None:
        """See `WalBucket.write_over`."""
        content = b"".join(parts)
        await self._travel(f"put {name}", lambda: self.bucket.write_over(name, content), changes=True)

    async def get_range(self, name: str, offset: int, length: int) -> Buffer:
        return await self._travel(f"get {name}", lambda: self.bucket.get_range(name, offset, length))

    async def size(self, name: str) -> int:
        return await self._travel(f"look at {name}", lambda: self.bucket.size(name))

    async def delete(self, name: str) -> None:
        await self._travel(f"delete {name}", lambda: self.bucket.delete(name), changes=True)

    async def list(self, prefix: str = "") -> list[ObjectInfo]:
        return await self._travel(f"list {prefix}", lambda: self.bucket.listed(prefix))

    async def prepare(self) -> None:
        await self._travel("prepare", self.bucket.prepare)

    async def run(self, work: Callable[[], T]) -> T:
        """What is computed beside the loop."""
        await asyncio.sleep(self._rng.expovariate(1000))
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
