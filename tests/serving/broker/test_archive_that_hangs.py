"""A broker whose object store does not answer any more stops like any other."""

from __future__ import annotations

import asyncio

import pulsar
import pytest

from quire.objects import store
from quire.objects.store import ObjectStore
from quire.runtime.clock import SystemClock
from quire.testing.place import TrustedPlace
from quire.tiering.archive import Archive
from tests.serving.conftest import BrokerHouse, in_thread
from tests.tiering.test_store_that_hangs import StuckStore

TOPIC = "persistent://public/default/t"


@pytest.mark.parametrize("stuck", ["begin", "write", "finish", "get_range"])
async def test_a_stop_while_a_segment_is_on_its_way(
    house: BrokerHouse, stuck: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "PATIENCE_S", 0.02)
    blocking = StuckStore(stuck)
    house.archive = Archive(TrustedPlace(ObjectStore(blocking)), SystemClock())
    broker = await house.start()
    await in_thread(lambda: publish(broker.service_url))
    by_hand = asyncio.ensure_future(broker.admin.archive.run(seal=True, here=True))
    async with asyncio.timeout(60):
        await blocking.is_stuck.wait()
        await house.stop(broker)
        by_hand.cancel()  # as the REST interface does with requests that are open at its end
        await asyncio.wait([by_hand])
        await house.archive.close()
    blocking.release()


def publish(url: str) -> None:
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    client.create_producer(TOPIC).send(b"x")
    client.close()
