"""A bookie that is told to stop: when it waits to be drained, and when it ends as it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from quire.bookie.drain import PATIENCE_LOOKS, Drain, Seen, why_hopeless
from quire.bookie.registration import Registration
from quire.metadata import paths
from quire.metadata.records import BookieIntent, BookieRecord, RepairRecord, decode, encode
from quire.testing.metadata import MemoryStore
from quire.testing.node import SimulatedNode

from .node import Node, retire

LONG_S = 60.0


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    started = await Node.on(SimulatedNode(seed=5))
    yield started
    await started.storage.stop()


class Cluster:
    """The store of a cluster with a coordinator, three other bookies, and this one."""

    def __init__(self, node: Node) -> None:
        self.store = MemoryStore(session_timeout_ms=100)
        self.others = self.store.join()
        self.node = node
        self.registration = Registration(self.store, node.storage, "127.0.0.1:3181")
        self.drain = Drain(self.store, self.registration, node.id.uuid, look_s=0.01)

    async def start(self) -> None:
        await self.others.create(paths.REPAIR_COORDINATOR, b"a broker", ephemeral=True)
        for number in range(3):
            await self.join(number)
        await self.registration.start()

    async def join(self, number: int, intent: BookieIntent = BookieIntent.STAY) -> None:
        record = BookieRecord(uuid=f"other-{number}", incarnation=1, intent=intent)
        await self.others.create(paths.bookie_available(record.uuid), encode(record), ephemeral=True)

    async def leave(self, number: int) -> None:
        await self.others.delete(paths.bookie_available(f"other-{number}"))

    async def told(self) -> BookieRecord:
        """The ephemeral record, once it says that the bookie drains."""
        path = paths.bookie_available(self.node.id.uuid)
        async with asyncio.timeout(60):
            while True:
                record = decode(BookieRecord, (await self.store.get(path)).value, path)
                if record.intent is BookieIntent.DRAIN:
                    return record
                await asyncio.sleep(0)

    async def identity(self) -> BookieRecord:
        path = paths.bookie(self.node.id.uuid)
        return decode(BookieRecord, (await self.store.get(path)).value, path)


@pytest.fixture
async def cluster(node: Node) -> AsyncIterator[Cluster]:
    made = Cluster(node)
    await made.start()
    yield made
    await made.registration.stop()


def test_the_table() -> None:
    assert not why_hopeless(Seen(answers=True, coordinated=True, others=3))
    assert "does not answer" in why_hopeless(Seen(answers=False, coordinated=True, others=3))
    assert "no broker" in why_hopeless(Seen(answers=True, others=3))
    assert "2 other bookies" in why_hopeless(Seen(answers=True, coordinated=True, others=2))


async def test_it_ends_when_its_record_is_gone_and_only_the_ephemeral_one_told_of_it(
    cluster: Cluster,
) -> None:
    running = asyncio.create_task(cluster.drain.run(LONG_S))
    assert (await cluster.told()).read_only
    assert (await cluster.identity()).intent is BookieIntent.STAY
    assert not running.done()
    await retire(cluster.others, cluster.node.id.uuid)
    async with asyncio.timeout(60):
        assert await running


@pytest.mark.parametrize("intent", [BookieIntent.DRAIN, None], ids=["others drain", "others are gone"])
async def test_it_does_not_begin_without_a_chance(cluster: Cluster, intent: BookieIntent | None) -> None:
    await cluster.leave(2)
    if intent is not None:
        await cluster.join(2, intent)
    assert not await cluster.drain.run(LONG_S)
    assert not cluster.node.storage.health.is_read_only


@pytest.mark.parametrize("trouble", ["coordinator", "bookie", "store"])
async def test_it_ends_as_it_is_when_trouble_comes_and_stays(cluster: Cluster, trouble: str) -> None:
    running = asyncio.create_task(cluster.drain.run(LONG_S))
    await cluster.told()
    if trouble == "coordinator":
        await cluster.others.delete(paths.REPAIR_COORDINATOR)
    elif trouble == "bookie":
        await cluster.leave(1)
    else:
        cluster.store.expire()
        cluster.others.expire()
    async with asyncio.timeout(60):
        assert not await running
    if trouble != "store":
        assert (await cluster.identity()).intent is BookieIntent.STAY


async def test_trouble_that_passes_ends_nothing(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    look = cluster.drain._look

    async def flaky() -> Seen:
        nonlocal looks
        looks += 1
        return Seen(answers=looks % PATIENCE_LOOKS == 1) if looks % PATIENCE_LOOKS != 1 else await look()

    monkeypatch.setattr(cluster.drain, "_look", flaky)
    running = asyncio.create_task(cluster.drain.run(LONG_S))
    while looks < 5 * PATIENCE_LOOKS:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert not running.done()
    await retire(cluster.others, cluster.node.id.uuid)
    async with asyncio.timeout(60):
        assert await running


async def test_it_ends_when_its_time_is_over(cluster: Cluster) -> None:
    assert not await cluster.drain.run(0.05)


async def test_it_tells_how_many_ledgers_are_left(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    record = RepairRecord(left={cluster.node.id.uuid: 7})
    await cluster.others.create(paths.REPAIR_PROGRESS, encode(record))
    with caplog.at_level("INFO"):
        await cluster.drain.run(0.1)
    assert [line for line in caplog.messages if "ledgers still name" in line] == [
        "draining: 7 ledgers still name this bookie"
    ]
