"""A bundle whose state log cannot be opened is its own topics' trouble."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from quire.ledger.state_log import StateLog
from quire.metadata import paths
from quire.metadata.records import Policies
from quire.metadata.store import Node
from quire.serving.names import TopicName
from quire.serving.registry import bundles
from tests.serving.conftest import BrokerHouse

SLOTS = 2


async def test_waiting_for_a_state_log_holds_no_slot_of_loads(
    house: BrokerHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await house.start(topic_loads_max=SLOTS)
    await broker.namespaces.create("public", "slow", Policies())
    asked, may_open = asyncio.Event(), asyncio.Event()

    class Slow(StateLog):
        @classmethod
        async def open(cls, *arguments: Any, **options: Any) -> StateLog:
            if "public/slow/" in options["purpose"]:
                asked.set()
                await may_open.wait()
            return await StateLog.open(*arguments, **options)

    monkeypatch.setattr(bundles, "StateLog", Slow)
    slow = [TopicName.parse(f"public/slow/{number}") for number in range(2 * SLOTS)]
    waiting = [asyncio.ensure_future(broker.registry.open(name, create=True)) for name in slow]
    async with asyncio.timeout(60):
        await asked.wait()
        for _ in range(100):
            await asyncio.sleep(0)  # the others come as far as they can
        await broker.registry.open(TopicName.parse("public/default/quick"), create=True)
        assert not any(each.done() for each in waiting)
        may_open.set()
        assert [topic.topic_name for topic in await asyncio.gather(*waiting)] == slow


async def test_who_takes_topics_over_reads_each_record_once(
    house: BrokerHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for those that come before somebody has begun to open their bundle."""
    names = [TopicName.parse(f"public/default/{number}") for number in range(40)]
    first = await house.start()
    for name in names:
        await first.registry.open(name, create=True)
    await house.kill(first)
    broker = await house.start(topic_loads_max=SLOTS)
    store, reads = broker.services.store, Counter[str]()
    get = store.get

    async def counted(path: str) -> Node:
        reads[path.rpartition("/")[0]] += 1
        return await get(path)

    monkeypatch.setattr(store, "get", counted)
    await asyncio.gather(*(broker.registry.open(name, create=True) for name in names))
    namespace = await broker.namespaces.get("public", "default")
    opened = len({bundles.bundle_of(namespace, name) for name in names})
    assert len(names) <= reads[paths.topics_of("public", "default")] <= len(names) + SLOTS * opened
