"""Who serves narrow ledgers goes on whatever one of them does."""

from __future__ import annotations

import asyncio

import pytest

from quire.ledger import narrow
from quire.ledger.narrow import Knock, Narrow
from quire.metadata import paths
from quire.runtime.tasks import Tasks
from quire.testing.cluster import turns_until
from quire.testing.metadata import MemoryStore


class Fragile:
    """A writer whose widening may end others, as a state log that fails abandons both its ledgers."""

    def __init__(self, line: Narrow) -> None:
        self._line = line
        self.ends: tuple[Fragile, ...] = ()
        self.widened = 0
        line.watch(self)

    def widen(self) -> None:
        self.widened += 1
        for each in self.ends:
            self._line.forget(each)


async def test_widening_one_may_end_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(narrow, "INTERVAL_S", 0.0)
    line = Narrow()
    first, second, third = Fragile(line), Fragile(line), Fragile(line)
    first.ends = (first, second)
    await turns_until(lambda: third.widened == 3)
    line.stop()
    assert (first.widened, second.widened) == (1, 0)


async def test_a_process_that_stops_knocks_a_last_time() -> None:
    store, tasks = MemoryStore(), Tasks("test")
    knock = Knock(store, tasks)
    knock.knock()
    for _ in range(10):
        await asyncio.sleep(0)
    knock.knock()  # too soon after the first one
    for _ in range(10):
        await asyncio.sleep(0)
    assert (await store.get(paths.REPAIR_NARROW)).version == 0
    await knock.stop()
    await tasks.stop()
    assert (await store.get(paths.REPAIR_NARROW)).version == 1


async def test_a_store_that_is_away_does_not_keep_a_process_from_stopping(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(narrow, "LAST_KNOCK_S", 0.01)
    tasks = Tasks("test")

    class Away(MemoryStore):
        async def put(self, path: str, value: bytes, version: int) -> int:
            await asyncio.sleep(3600)
            raise AssertionError("nobody waits that long")

    knock = Knock(Away(), tasks)
    knock.knock()
    await knock.stop()
    await tasks.stop()
