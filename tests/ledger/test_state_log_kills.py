"""A roll of a state log is killed at every await: the next owner has all that anybody was told is durable, once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from itertools import count
from typing import Any

import pytest

from quire.ledger.ledgers import Ledgers
from quire.metadata.records import Storage
from quire.testing.cluster import MemoryCluster, turns_until
from quire.wire.bookie import AddDone, AddRequest, BookieId
from tests.ledger.test_state_log import Counts, ids

KEY = b"key"
TURNS = 4


class Process:
    """What one process of a cluster reaches, until it is killed: then nothing goes out and nothing comes in."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.is_dead = False
        self._cluster = cluster
        self.store = _Store(self, cluster.store.join())
        self.ledgers = Ledgers(
            self.store,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            cluster.clock,
            cluster.rng,
            cluster.settings,
            quarantine_s=0,
        )

    storage = Storage.BOOKIES

    def own_wal(self) -> None:
        pass

    def available(self) -> Any:
        return self._cluster.directory.available()

    def port(self, bookie: BookieId) -> _Port:
        return _Port(self, self._cluster.directory.port(bookie))

    async def reach(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Some turns before and behind it, so that others get theirs, and the process can be killed there, too."""
        for _ in range(TURNS):
            await asyncio.sleep(0)
        answer = await work()
        for _ in range(TURNS):
            await asyncio.sleep(0)
        return answer

    async def dead(self) -> None:
        await asyncio.get_running_loop().create_future()


class _Store:
    def __init__(self, process: Process, store: Any) -> None:
        self._process, self._store = process, store

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not asyncio.iscoroutinefunction(found):
            return found

        async def call(*args: Any, **how: Any) -> Any:
            if self._process.is_dead:
                await self._process.dead()
            return await self._process.reach(lambda: found(*args, **how))

        return call


class _Port:
    def __init__(self, process: Process, port: Any) -> None:
        self._process, self._port = process, port

    def add(self, request: AddRequest, done: AddDone) -> None:
        if not self._process.is_dead:
            self._port.add(request, lambda statuses: None if self._process.is_dead else done(statuses))

    async def ask(self, request: Any) -> Any:
        if self._process.is_dead:
            await self._process.dead()
        return await self._process.reach(lambda: self._port.ask(request))


class KilledAt:
    """Awaits `work` and counts where it waits; at the place number `step` it calls `kill` and waits for ever."""

    def __init__(self, work: Awaitable[Any], step: int, kill: Callable[[], None]) -> None:
        self._work, self._step, self._kill = work, step, kill

    def __await__(self) -> Generator[Any, None, Any]:
        steps = self._work.__await__()
        for number in count():
            try:
                waits_for = next(steps)
            except StopIteration as end:
                return end.value
            if number == self._step:
                self._kill()
                yield from asyncio.get_running_loop().create_future()
            yield waits_for


async def killed(step: int, *, opening: bool) -> bool:
    """A roll that is killed there, of an opening or of a log that has grown; False when it has no such place."""
    cluster = MemoryCluster(3)
    before = await Counts(cluster).open()
    for _ in range(5):
        before.count(KEY)
    await before.until_durable()
    await before.log.close()
    process = Process(cluster)
    one = Counts(cluster, process.ledgers, roll_bytes=600)
    if opening:
        opened = asyncio.create_task(_open(one, step, process))
        await turns_until(lambda: process.is_dead or opened.done())
        if opened.done():
            return False
        opened.cancel()
    else:
        await one.open()
        roll = one.log._roll

        async def roll_until() -> None:
            await KilledAt(roll(), step, lambda: setattr(process, "is_dead", True))
            one.log._roll = roll  # type: ignore[method-assign]

        one.log._roll = roll_until  # type: ignore[method-assign]
        rolled = await ids(cluster)
        while not process.is_dead and one.log._roll is not roll:
            one.count(KEY)
            await asyncio.sleep(0)
        if not process.is_dead:
            assert await ids(cluster) != rolled
            return False
    await _check(cluster, one)
    return True


async def _open(one: Counts, step: int, process: Process) -> None:
    await KilledAt(one.open(), step, lambda: setattr(process, "is_dead", True))


async def _check(cluster: MemoryCluster, one: Counts) -> None:
    """Of deltas in order each is there once, and none that was told durable is missing."""
    told = 5 + one.durable.get(KEY, 0)
    for _ in range(2):  # and whoever comes after the next owner finds the same
        two = await Counts(cluster).open()
        assert told <= two.counts[KEY] <= max(5, one.counts.get(KEY, 0))
        told = two.counts[KEY]
        await two.log.close()


@pytest.mark.parametrize("opening", [True, False], ids=["opening", "growing"])
async def test_a_roll_that_is_killed_at_any_await_loses_and_doubles_nothing(opening):
    for step in count():
        if not await killed(step, opening=opening):
            break
    assert step > 10, f"only {step} places to be killed at"
