"""Lists of many topics: each turn of the loop has a part of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from quire.metadata import paths
from quire.metadata.records import TopicRecord, encode
from quire.runtime.clock import SystemClock
from quire.runtime.slices import Slices
from quire.runtime.tasks import Tasks
from quire.serving.names import TopicName
from quire.serving.policy.namespaces import Namespaces
from quire.serving.registry import topic_lists
from quire.serving.registry.bundles import split_evenly
from quire.serving.registry.topic_lists import NAMES_A_TURN, TopicList, TopicLists
from quire.serving.registry.topic_records import TopicRecords
from quire.testing.metadata import MemoryStore

COUNT = 4 * NAMES_A_TURN


class Turns:
    """How often something was done in one turn of the loop at most."""

    def __init__(self) -> None:
        self.most = self._now = 0

    def counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def count(*arguments: Any) -> Any:
            self._now += 1
            self.most = max(self.most, self._now)
            return function(*arguments)

        return count

    async def follow(self) -> None:
        while True:
            self._now = 0
            await asyncio.sleep(0)


@pytest.fixture
async def store() -> MemoryStore:
    made = MemoryStore()
    for index in range(COUNT):
        name = TopicName("persistent", "public", "default", f"topic-{index}")
        await made.create(name.path, encode(TopicRecord(name=str(name))))
    return made


async def test_no_turn_has_more_names_than_a_part(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded, named = Turns(), Turns()
    monkeypatch.setattr(paths, "decode", decoded.counted(paths.decode))
    monkeypatch.setattr(TopicList, "_named", named.counted(TopicList._named))
    tasks = [asyncio.ensure_future(one.follow()) for one in (decoded, named)]
    lists = TopicLists(store, Tasks("lists"), Slices())
    records = TopicRecords(store, SystemClock(), Namespaces(store, "c", split_evenly(1), no_ledger))
    try:
        assert len(await lists.names("public", "default")) == COUNT
        assert len(await records.names("public", "default")) == COUNT
        await store.delete(TopicName.parse("topic-7").path)
        assert len(await lists.names("public", "default")) == COUNT - 1
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
    assert NAMES_A_TURN <= decoded.most <= 2 * NAMES_A_TURN
    assert named.most <= 2 * NAMES_A_TURN
    assert topic_lists.READS_AT_ONCE < NAMES_A_TURN


async def no_ledger(_: int) -> None:
    raise AssertionError("no ledger is deleted")
