"""Topics that keep nothing in a cluster: any broker lists them all, and they move with their bundle."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.serving.conftest import in_thread
from tests.serving.ownership.cluster import Brokers

TOPICS = sorted(f"non-persistent://public/default/now-{index}" for index in range(12))


@pytest.fixture
async def brokers() -> AsyncIterator[Brokers]:
    made = Brokers()
    yield made
    await made.close()


async def test_any_broker_lists_those_of_all(brokers: Brokers) -> None:
    one, two = await brokers.start(), await brokers.start()
    client = brokers.client()
    producers = await in_thread(lambda: [client.create_producer(topic) for topic in TOPICS])
    await in_thread(lambda: [producer.send(b"x") for producer in producers])
    here = [
        (await member.broker.registry.catalogue.names("public", "default", "non-persistent"))[0]
        for member in (one, two)
    ]
    assert here[0] and here[1] and sorted(here[0] + here[1]) == TOPICS
    for member in (one, two):
        assert await member.broker.fan_out.topics("public", "default", "non-persistent") == TOPICS


async def test_their_clients_go_on_where_the_bundle_is_next(brokers: Brokers) -> None:
    one, two = await brokers.start(), await brokers.start()
    client = brokers.client()
    producers = await in_thread(lambda: [client.create_producer(topic) for topic in TOPICS])
    await brokers.stop(one)
    await in_thread(lambda: [producer.send(b"x") for producer in producers])
    assert await two.broker.fan_out.topics("public", "default", "non-persistent") == TOPICS
