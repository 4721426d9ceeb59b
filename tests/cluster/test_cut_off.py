"""A broker that is cut off from the bookies, but not from ZooKeeper, and clients that go on at another one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from tests.cluster.wired import Wired, wired

TOPIC = "persistent://public/default/t"
GOES_ON_S_MAX = 30.0
"""Far beyond what it takes on a machine without other work, nine seconds."""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Wired]:
    async with wired(tmp_path / "cluster", bookies=3) as made:
        yield made


def begin(cluster: Wired) -> tuple[pulsar.Client, pulsar.Producer]:
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(cluster.service_url, logger=quiet, operation_timeout_seconds=60)
    return client, client.create_producer(TOPIC, send_timeout_millis=0)


async def owner(cluster: Wired) -> str:
    """The name of the broker that has the topic."""
    host, port = (await cluster.owner(TOPIC)).split(":")
    return next(name for name in cluster.brokers if cluster.address_of(name) == (host, int(port)))


async def brokers(cluster: Wired) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = await cluster.rest("GET", "/quire/v1/brokers")
    return rows


async def until_all_say(cluster: Wired, *, cannot: set[str]) -> list[str]:
    """Wait until just these brokers say that they cannot write, and return what they say."""
    async with asyncio.timeout(GOES_ON_S_MAX):
        while True:
            told = {row["broker"]: row["cannotWrite"] for row in await brokers(cluster)}
            names = {":".join(map(str, cluster.address_of(name))) for name in cannot}
            if {name for name, why in told.items() if why} == names:
                return [why for why in told.values() if why]
            await asyncio.sleep(0.1)


@pytest.mark.chaos
async def test_its_clients_publish_elsewhere_within_seconds(cluster: Wired) -> None:
    client, producer = await asyncio.to_thread(begin, cluster)
    await asyncio.to_thread(producer.send, b"0")
    cut_off = await owner(cluster)
    for bookie in cluster.bookies:
        cluster.network.cut(cut_off, bookie)
    began = time.monotonic()
    async with asyncio.timeout(GOES_ON_S_MAX):
        await asyncio.to_thread(producer.send, b"1")
    took_s = time.monotonic() - began
    print(f"the first publish after the cut took {took_s:.1f} s")
    assert await owner(cluster) != cut_off
    [why] = await until_all_say(cluster, cannot={cut_off})
    assert why.startswith("0 of 3 writable bookies answer this process, the ack quorum is 2")
    assert (await cluster.metrics(cut_off))["quire_serving_cannot_write"] == 1
    assert (await cluster.metrics(cut_off))["quire_serving_bundles_owned"] == 0

    cluster.network.mend_all()
    await until_all_say(cluster, cannot=set())
    await asyncio.to_thread(producer.send, b"2")
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
    found = [(await asyncio.to_thread(reader.read_next, 10_000)).data() for _ in range(3)]
    assert found == [b"0", b"1", b"2"]
    await asyncio.to_thread(client.close)


@pytest.mark.chaos
async def test_when_no_broker_reaches_the_bookies_nobody_gives_anything_up(cluster: Wired) -> None:
    client, producer = await asyncio.to_thread(begin, cluster)
    await asyncio.to_thread(producer.send, b"0")
    before = await owner(cluster)
    for broker in cluster.brokers:
        for bookie in cluster.bookies:
            cluster.network.cut(broker, bookie)
    await until_all_say(cluster, cannot=set(cluster.brokers))
    await asyncio.sleep(10)  # twice as long as a broker waits that is alone with it
    assert await owner(cluster) == before
    cluster.network.mend_all()
    await asyncio.to_thread(producer.send, b"1")
    assert await owner(cluster) == before
    assert "giving up" not in "".join(log.read_text() for log in (cluster.data / "logs").glob("broker-*.log"))
    await asyncio.to_thread(client.close)
