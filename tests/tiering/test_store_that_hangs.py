"""An object store that never answers again: who stops ends all the same, whatever the driver was doing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from quire.objects import store as store_module
from quire.objects.store import ObjectStore
from quire.runtime.clock import ManualClock
from quire.testing.objects import MemoryBlockingStore
from quire.testing.place import TrustedPlace
from quire.tiering.archive import Archive
from quire.tiering.offload import Offloader

from .test_offload import LAG_MS, Broker


class StuckStore(MemoryBlockingStore):
    """Its call named `stuck` does not come back before `release`."""

    def __init__(self, stuck: str) -> None:
        super().__init__()
        self._stuck = stuck
        self._gate = threading.Event()
        self._loop = asyncio.get_running_loop()
        self.is_stuck = asyncio.Event()

    def faulty(self, call: str, work: Callable[[], Any]) -> Any:
        if call == self._stuck:
            self._loop.call_soon_threadsafe(self.is_stuck.set)
            self._gate.wait()
        return super().faulty(call, work)

    def release(self) -> None:
        self._gate.set()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(store_module, "PATIENCE_S", 0.02)
    yield


@pytest.mark.parametrize("stuck", ["begin", "write", "finish", "get_range", "size"])
async def test_the_driver_and_the_archive_stop_while_a_call_hangs(stuck: str) -> None:
    blocking = StuckStore(stuck)
    archive = Archive(TrustedPlace(ObjectStore(blocking)), ManualClock())
    broker = Broker()
    offloader = Offloader(archive, broker, ManualClock(), lag_ms=0)
    if stuck == "size":  # asked before the bookies' copy goes
        await offloader.run_once()
    offloader.start()
    async with asyncio.timeout(60):
        await blocking.is_stuck.wait()
        await offloader.stop()
        await archive.close()
    assert not offloader.status().running
    blocking.release()


async def test_an_upload_that_is_only_slow_is_thrown_away_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "PATIENCE_S", 20.0)
    blocking = StuckStore("write")
    archive = Archive(TrustedPlace(ObjectStore(blocking)), ManualClock())
    offloader = Offloader(archive, Broker(), ManualClock(), lag_ms=LAG_MS)
    offloader.start()
    await blocking.is_stuck.wait()
    asyncio.get_running_loop().call_later(0.01, blocking.release)
    await offloader.stop()
    assert not blocking.uploads and not blocking.objects
    await archive.close()
