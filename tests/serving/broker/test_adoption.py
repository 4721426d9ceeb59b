"""Segments of topics that nobody uses reach the archive, also when the metadata store was away at the wrong moment."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pulsar
import pytest

from quire.runtime.errors import Unavailable
from quire.serving.names import TopicName
from quire.serving.registry import offloading
from quire.serving.topic.topic import Topic
from quire.testing.metadata import MemoryStore
from tests.serving.conftest import NAME, QUIET, BrokerHouse, in_thread, publish
from tests.serving.ownership.cluster import until


async def test_segments_are_looked_for_again_when_the_metadata_store_was_away(
    house: BrokerHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[bool] = []
    monkeypatch.setattr(offloading, "ADOPT_AFTER_S", 0.01)
    broker = await house.start()
    store = broker.services.store
    assert isinstance(store, MemoryStore)
    assert broker.offloading is not None
    find = broker.offloading._unfinished

    async def look(even_open: bool, even_unowned: bool) -> AsyncIterator[TopicName]:
        try:
            async for name in find(even_open, even_unowned):
                yield name
            looks.append(True)
        except Unavailable:
            looks.append(False)
            raise

    monkeypatch.setattr(broker.offloading, "_unfinished", look)
    store._connected = False
    await until(lambda: looks.count(False) >= 2)
    store._connected = True
    await until(lambda: True in looks)


async def test_a_topic_is_adopted_for_an_old_segment_that_was_not_archived_while_newer_ones_were(
    house: BrokerHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.metadata.topics.SEGMENTS_INLINE_MAX", 4)
    monkeypatch.setattr("quire.metadata.topics.SEGMENTS_PER_MANIFEST", 2)
    broker = await house.start(archive_delay_ms=3_600_000)
    client = pulsar.Client(broker.service_url, logger=QUIET)
    topic: Topic | None = None
    for number in range(8):
        await in_thread(lambda number=number: publish(client, range(number, number + 1)))
        found = broker.registry.find(NAME)
        assert isinstance(found, Topic)
        topic = found
        await topic.log.writing.roll()  # type: ignore[misc]
    await in_thread(client.close)
    assert topic is not None and broker.offloading is not None
    failing = topic.log.segment_list.sealed[0].ledger_id
    open_reader = broker.offloading.target.open_reader

    async def open_all_but_one(ledger_id: int) -> Any:
        if ledger_id == failing:
            raise Unavailable("its bookie is away")
        return await open_reader(ledger_id)

    broker.offloading.target.open_reader = open_all_but_one  # type: ignore[method-assign]
    assert (await broker.admin.archive.run(seal=False, here=True)).failed == 1
    for number in range(8):
        ledger_id = topic.log.segment_list.sealed[number].ledger_id
        if ledger_id != failing:
            await topic.log.meta_store.off_bookies(ledger_id)
    assert failing not in {one.ledger_id for one in topic.log.segment_list.record.segments}
    await house.stop(broker)

    monkeypatch.setattr(offloading, "ADOPT_AFTER_S", 0.01)
    broker = await house.start(archive_delay_ms=0)
    await until(lambda: broker.registry.find(NAME) is not None)
    loaded = broker.registry.find(NAME)
    assert isinstance(loaded, Topic)
    await until(lambda: loaded.log.segment_list.sealed[0].archive is not None)
