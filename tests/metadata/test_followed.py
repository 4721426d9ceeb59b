"""A followed folder: what comes, changes and goes is known without asking, and what is known outlives an outage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from quire.metadata import paths
from quire.metadata.followed import Followed
from quire.metadata.records import BrokerRecord, encode
from quire.metadata.store import ANY_VERSION
from quire.runtime.errors import CorruptionError
from quire.runtime.tasks import Tasks
from quire.testing.metadata import MemoryStore


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
    await turns_until(lambda: "its last known state stays in effect" in caplog.text)
    assert list(follower.followed.records) == ["a:1"]


async def test_a_record_that_cannot_be_read_hides_no_other(
    follower: Follower, caplog: pytest.LogCaptureFixture
) -> None:
    records = follower.followed.records
    await follower.store.put(paths.broker("a:1"), b'{"broker_id":7}', ANY_VERSION)
    await follower.store.create(paths.broker("b"), b"no record")
    await follower.store.create(paths.broker("c"), encode(broker("c")))
    await turns_until(lambda: "c" in records)
    assert records == {"a:1": broker("a:1"), "c": broker("c")}, "the one keeps what it said before"
    assert follower.told[-1] == ["a:1", "c"]
    assert f"{paths.broker('a:1')} is not a BrokerRecord" in caplog.text
    assert f"{paths.broker('b')} is not a BrokerRecord" in caplog.text
    await follower.store.put(paths.broker("b"), encode(broker("b")), ANY_VERSION)
    await turns_until(lambda: "b" in records)


async def test_a_record_that_was_never_understood_is_not_none(follower: Follower) -> None:
    get, nobody = follower.followed.get, broker("nobody")
    await follower.store.put(paths.broker("a:1"), b"no record", ANY_VERSION)
    await follower.store.create(paths.broker("b"), b"no record")
    await turns_until(lambda: len(follower.told) == 2)
    assert get("a:1", nobody) == broker("a:1") and get("c", nobody) is nobody
    with pytest.raises(CorruptionError, match=paths.broker("b")):
        get("b", nobody)
    await follower.store.delete(paths.broker("b"))
    await turns_until(lambda: len(follower.told) == 3)
    assert get("b", nobody) is nobody


async def test_a_record_that_cannot_be_read_keeps_nobody_from_starting() -> None:
    follower = Follower()
    await follower.store.create(paths.broker("a"), b"no record")
    await follower.store.create(paths.broker("b"), encode(broker("b")))
    await follower.followed.start()
    assert follower.followed.records == {"b": broker("b")} and follower.told == [["b"]]
    with pytest.raises(CorruptionError):
        await follower.followed.refresh("a")
    follower.followed.stop()
    await follower.tasks.stop()


async def test_nobody_is_told_after_stop(follower: Follower) -> None:
    follower.followed.stop()
    await follower.store.delete(paths.broker("a:1"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert follower.told == [["a:1"]]
