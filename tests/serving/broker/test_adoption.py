"""Segments of topics that nobody uses reach the archive, also when the metadata store was away at the wrong moment."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from quire.metadata.memory import MemoryStore
from quire.runtime.errors import Unavailable
from quire.serving import offloading
from quire.serving.names import TopicName
from tests.serving.conftest import BrokerHouse
from tests.serving.ownership.cluster import until


async def test_segments_are_looked_for_again_when_the_metadata_store_was_away(
    house: BrokerHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[bool] = []
    monkeypatch.setattr(offloading, "ADOPT_AFTER_S", 0.01)
    broker = await house.start()
    store = broker.services.store
    assert isinstance(store, MemoryStore)
    assert broker._offloading is not None
    find = broker._offloading._unfinished

    async def look(even_open: bool, or_nobodys: bool) -> AsyncIterator[TopicName]:
        try:
            async for name in find(even_open, or_nobodys):
                yield name
            looks.append(True)
        except Unavailable:
            looks.append(False)
            raise

    monkeypatch.setattr(broker._offloading, "_unfinished", look)
    store._connected = False
    await until(lambda: looks.count(False) >= 2)
    store._connected = True
    await until(lambda: True in looks)
