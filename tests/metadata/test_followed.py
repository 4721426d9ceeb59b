"""A followed folder: what comes, changes and goes is known without asking, and what is known outlives an outage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from quire.metadata import paths
from quire.metadata.followed import Followed
from quire.metadata.memory import MemoryStore
from quire.metadata.records import BrokerRecord, encode
from quire.metadata.store import ANY_VERSION
from quire.runtime.tasks import Tasks


def broker(name: str, url: str = "pulsar://b:1") -> BrokerRecord:
    return BrokerRecord(broker_id=name, service_url=url, http_url="http://b:2")


async def turns_until(holds: Callable[[], bool]) -> None:
    for _ in range(100):
        if holds():
            return
        await asyncio.sleep(0)
    raise AssertionError("it does not come about")


class Follower:
    def __init__(self) -> None:
        self.store = MemoryStore()
        self.seen = self.store.join()
        self.tasks = Tasks("test")
        self.told: list[list[str]] = []
        self.followed = Followed(self.seen, paths.BROKERS, BrokerRecord, self.tasks, self._changed)

    def _changed(self) -> None:
        self.told.append(sorted(self.followed.records))


@pytest.fixture
async def follower() -> AsyncIterator[Follower]:
    made = Follower()
    await made.store.create(paths.broker("a:1"), encode(broker("a:1")))
    await made.followed.start()
    yield made
    made.followed.stop()
    await made.tasks.stop()


async def test_what_comes_changes_and_goes(follower: Follower) -> None:
    records = follower.followed.records
    assert records == {"a:1": broker("a:1")}, "by the names that were encoded"
    await follower.store.create(paths.broker("b"), encode(broker("b")))
    await turns_until(lambda: "b" in records)
    moved = broker("b", "pulsar://c:1")
    await follower.store.put(paths.broker("b"), encode(moved), ANY_VERSION)
    await turns_until(lambda: records["b"] == moved)
    await follower.store.delete(paths.broker("a:1"))
    await turns_until(lambda: list(records) == ["b"])
    assert follower.told[0] == ["a:1"]
    assert follower.told[-1] == ["b"]


async def test_what_is_known_outlives_an_outage(follower: Follower, caplog: pytest.LogCaptureFixture) -> None:
    follower.seen.suspend()
    follower.followed._on_change(paths.BROKERS)
    await turns_until(lambda: "its last state counts" in caplog.text)
    assert list(follower.followed.records) == ["a:1"]


async def test_nobody_is_told_after_stop(follower: Follower) -> None:
    follower.followed.stop()
    await follower.store.delete(paths.broker("a:1"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert follower.told == [["a:1"]]
