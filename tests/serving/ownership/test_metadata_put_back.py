"""Brokers whose metadata store was put back from a copy: no topic is given another one's messages."""

from __future__ import annotations

import asyncio

import pytest

from quire.client import EARLIEST, Client
from quire.metadata import paths
from quire.metadata.tree import Tree
from quire.serving.broker import Broker
from tests.serving.conftest import BrokerHouse


async def publish(broker: Broker, topic: str, count: int) -> None:
    async with Client(broker.service_url) as client, client.producer(topic) as producer:
        for number in range(count):
            await asyncio.wait_for(producer.send(f"{topic} {number}".encode()), 20)


async def read(broker: Broker, topic: str) -> list[str]:
    found = []
    async with (
        Client(broker.service_url) as client,
        client.reader(topic, start=EARLIEST, inclusive=True) as reader,
    ):
        while await reader.has_next():
            found.append((await asyncio.wait_for(reader.read(5), 10)).payload.decode())
    return found


async def put_back(house: BrokerHouse, *, bookies_away: bool) -> Broker:
    """Copy the metadata, publish to other topics after a restart, put the copy back; the next broker.

    Where bookies are away they do not answer when the broker asks for ids that were used.
    """
    one = await house.start()
    await publish(one, "before", 3)
    await house.stop(one)
    shared = house.cluster.store._shared
    copy = shared.tree._rows.copy()
    two = await house.start()
    for number in range(3):
        await publish(two, f"other-{number}", 20)
    await house.kill(two)
    shared.tree = Tree(copy)
    await house.cluster.store.delete(paths.state_log("public", "default", "00000000_ffffffff"))
    if bookies_away:
        for bookie in house.cluster.bookies:
            bookie.lists_nothing = True
    return await house.start()


@pytest.mark.parametrize("bookies_away", [False, True])
async def test_new_topics_have_their_own_messages_alone(house: BrokerHouse, bookies_away: bool) -> None:
    broker = await put_back(house, bookies_away=bookies_away)
    assert await read(broker, "before") == [f"before {number}" for number in range(3)]
    for topic in ("orders", "payments"):
        await publish(broker, topic, 5)
        assert await read(broker, topic) == [f"{topic} {number}" for number in range(5)]
