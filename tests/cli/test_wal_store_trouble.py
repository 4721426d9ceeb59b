"""A store that refuses or loses answers: publishing waits, clients hear no error, memory stays within bounds."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from unittest import mock

import pulsar
import pytest

from quire.objects.store import ObjectStore
from quire.process import object_stores
from quire.process.settings import Given
from quire.process.standalone import Standalone, load, standalone
from quire.runtime.errors import ConfigurationError, OutcomeUnknown, Unavailable
from quire.runtime.limits import KIB, MIB
from quire.testing.objects import MemoryObjectStore

T = TypeVar("T")
MEMORY = 8 * MIB


class Troubled(MemoryObjectStore):
    """`trouble` decides what becomes of each call."""

    def __init__(self) -> None:
        super().__init__()
        self.faults.url = "memory://"
        self.trouble: Callable[[], Exception | None] = lambda: None
        self.is_lost: Callable[[], bool] = lambda: False

    async def run(self, work: Callable[[], T]) -> T:
        await asyncio.sleep(0.002)
        if (error := self.trouble()) is not None:
            raise error
        result = work()
        if self.is_lost():
            raise OutcomeUnknown("the answer was lost")
        return result

    async def close(self) -> None:
        """It is looked into after the process has ended."""


def opened(store: Troubled) -> mock._patch[Callable[[str, int], ObjectStore]]:
    return mock.patch.object(object_stores, "open_for_log", lambda url, threads: store)


def given(tmp_path: Path) -> Given:
    flags = {
        "data": str(tmp_path / "data"),
        "listen": "127.0.0.1:0",
        "http": "127.0.0.1:0",
        "wal": f"file://{tmp_path}/bucket",
        "wal_memory_bytes": str(MEMORY),
        "wal_batch_bytes": str(2 * MIB),
        "wal_batch_ms": "20ms",
    }
    return Given(flags, None)


class Publishing:
    """A stock client that publishes as fast as it may, and what it heard."""

    def __init__(self, running: Standalone) -> None:
        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        self.client = pulsar.Client(running.service_url, logger=quiet)
        self.producer = self.client.create_producer(
            "t",
            send_timeout_millis=0,
            block_if_queue_full=True,
            batching_enabled=False,
            max_pending_messages=500,
        )
        self.sent = 0
        self.heard: list[pulsar.Result] = []

    def publish(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.producer.send_async(
                b"%d " % self.sent + bytes(16 * KIB), lambda result, _: self.heard.append(result)
            )
            self.sent += 1

    def finish(self) -> list[int]:
        """Wait for all answers; the numbers of what is there then."""
        self.producer.flush()
        reader = self.client.create_reader("t", pulsar.MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(int(reader.read_next(10_000).data().split()[0]))
        self.client.close()
        return found


@pytest.mark.parametrize("kind", ["503", "lost answers", "both by chance"])
async def test_a_store_in_trouble_is_waited_for(tmp_path: Path, kind: str) -> None:
    store, rng = Troubled(), random.Random(5)
    with opened(store):
        async with standalone(load(given(tmp_path))) as running:
            budget = running.broker.services.budget
            publishing = await asyncio.to_thread(Publishing, running)
            await asyncio.to_thread(publishing.publish, 0.5)
            before = len(publishing.heard)
            refused = Unavailable("503 SlowDown")
            if kind == "503":
                store.trouble = lambda: refused
            elif kind == "lost answers":
                store.is_lost = lambda: True
            else:
                store.trouble = lambda: refused if rng.random() < 0.3 else None
                store.is_lost = lambda: rng.random() < 0.3
            most = 0

            async def watch() -> None:
                nonlocal most
                while True:
                    most = max(most, budget.used_bytes)
                    await asyncio.sleep(0.01)

            watching = asyncio.create_task(watch())
            trouble = asyncio.create_task(asyncio.to_thread(publishing.publish, 3))
            await asyncio.sleep(2.5)
            during = len(publishing.heard)
            store.trouble, store.is_lost = (lambda: None), (lambda: False)
            await trouble
            watching.cancel()
            found = await asyncio.to_thread(publishing.finish)
            assert set(publishing.heard) == {pulsar.Result.Ok}
            assert found == list(range(publishing.sent))
            assert before > 0 and most <= budget.limit_bytes * 5 // 4, "and what sockets had given before"
            if kind == "503":
                assert during - before < 200, "nothing is acknowledged that the store refused"


async def test_a_store_that_bars_the_broker_is_told_and_served_again_when_it_does_not(tmp_path: Path) -> None:
    store = Troubled()
    with opened(store):
        async with standalone(load(given(tmp_path))) as running:
            publishing = await asyncio.to_thread(Publishing, running)
            await asyncio.to_thread(publishing.publish, 0.3)
            store.trouble = lambda: ConfigurationError("cannot write s3://bucket: AccessDenied")
            trouble = asyncio.create_task(asyncio.to_thread(publishing.publish, 2))
            await asyncio.sleep(1)
            assert any("AccessDenied" in why for why in running.broker.why_not_ready())
            store.trouble = lambda: None
            await trouble
            found = await asyncio.to_thread(publishing.finish)
            assert set(publishing.heard) == {pulsar.Result.Ok}
            assert set(found) == set(range(publishing.sent))
            assert not running.broker.why_not_ready()
