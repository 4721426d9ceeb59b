"""`quire local` with stock clients: what one process does, and what its death does not."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pulsar
import pytest

from quire import __version__
from quire.client import Client

from .local import Cluster, running

TOPIC = "persistent://public/default/t"
STALL_S_MAX = 15.0
"""Far beyond session time-out + 2 s, for machines that do much else."""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running(tmp_path / "cluster", session_timeout_ms="2s") as made:
        yield made


class Producer:
    """Publishes numbers one after the other; every one must be acknowledged, however long it takes."""

    def __init__(self, client: pulsar.Client) -> None:
        self._producer = client.create_producer(TOPIC, send_timeout_millis=0)
        self.sent = 0

    def publish(self, count: int) -> None:
        for _ in range(count):
            self._producer.send(b"%d" % self.sent)
            self.sent += 1


def read_all(client: pulsar.Client) -> list[int]:
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(int(reader.read_next(10_000).data()))
    reader.close()
    return found


def client_of(cluster: Cluster, url: str = "") -> pulsar.Client:
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar.Client(url or cluster.service_url, logger=quiet, operation_timeout_seconds=60)


async def test_every_member_tells_its_version(cluster: Cluster) -> None:
    for kind, count in (("brokers", 2), ("bookies", 3)):
        rows = await cluster.rest("GET", f"/quire/v1/{kind}")
        assert [row["version"] for row in rows] == [__version__] * count


@pytest.mark.chaos
async def test_publishing_goes_on_when_a_bookie_and_then_the_topics_broker_is_killed(
    cluster: Cluster,
) -> None:
    client = client_of(cluster)
    producer = await asyncio.to_thread(Producer, client)
    await asyncio.to_thread(producer.publish, 50)

    cluster.signal("bookie-1", signal.SIGKILL)
    async with asyncio.timeout(STALL_S_MAX):
        await asyncio.to_thread(producer.publish, 50)
    await cluster.restart_dead("bookie-1")

    raw = await cluster.connect(TOPIC)
    owner = cluster.at(await cluster.owner(TOPIC))
    cluster.signal(owner, signal.SIGKILL)
    async with asyncio.timeout(STALL_S_MAX):
        assert await raw.delivered.get() is None, "the gateway closes what led to the broker"
        await asyncio.to_thread(producer.publish, 50)
    await raw.close()
    await cluster.restart_dead(owner)
    assert await asyncio.to_thread(read_all, client) == list(range(150))
    await asyncio.to_thread(client.close)


@pytest.mark.chaos
@pytest.mark.parametrize("kind", ["stock", "quire"])
async def test_clients_of_the_brokers_themselves_need_no_gateway(cluster: Cluster, kind: str) -> None:
    url = cluster.brokers_url
    assert len(url.split(",")) == 2
    owner = cluster.at(await cluster.owner(TOPIC))
    cluster.signal("gateway", signal.SIGKILL)
    client, publish = await (stock_publisher(cluster, url) if kind == "stock" else own_publisher(url))
    await publish(50)

    cluster.signal(owner, signal.SIGKILL)
    async with asyncio.timeout(STALL_S_MAX):
        await publish(50)
    other = next(name for name in cluster.pids("broker") if name != owner)
    await cluster.restart_dead(owner, "gateway")
    assert cluster.brokers_url == url

    cluster.signal(other, signal.SIGKILL)  # so the first one is where it was
    async with asyncio.timeout(STALL_S_MAX):
        await publish(50)
    reading = client_of(cluster, url)
    assert await asyncio.to_thread(read_all, reading) == list(range(150))
    await asyncio.to_thread(reading.close)
    await client()


Closing = Callable[[], Awaitable[None]]
Publishing = Callable[[int], Awaitable[None]]


async def stock_publisher(cluster: Cluster, url: str) -> tuple[Closing, Publishing]:
    client = client_of(cluster, url)
    producer = await asyncio.to_thread(Producer, client)

    async def publish(count: int) -> None:
        await asyncio.to_thread(producer.publish, count)

    async def close() -> None:
        await asyncio.to_thread(client.close)

    return close, publish


async def own_publisher(url: str) -> tuple[Closing, Publishing]:
    client = await Client(url).__aenter__()
    producer = client.producer(TOPIC)
    await producer.__aenter__()
    sent = 0

    async def publish(count: int) -> None:
        nonlocal sent
        for _ in range(count):
            await producer.send(b"%d" % sent)
            sent += 1

    async def close() -> None:
        await client.__aexit__(None, None, None)

    return close, publish


@pytest.mark.chaos
async def test_all_processes_end_with_the_first_and_the_data_stays(tmp_path: Path) -> None:
    async with running(tmp_path / "cluster", brokers="1", session_timeout_ms="2s") as cluster:
        client = client_of(cluster)
        producer = await asyncio.to_thread(Producer, client)
        await asyncio.to_thread(producer.publish, 20)
        await asyncio.to_thread(client.close)
        pids = cluster.pids()
        assert await cluster.stop() == 0
        assert set(pids) == {"zookeeper", "bookie-1", "bookie-2", "bookie-3", "broker-1", "gateway"}
        assert not [pid for pid in pids.values() if Path(f"/proc/{pid}").exists()]

        await cluster.start()
        client = client_of(cluster)
        assert await asyncio.to_thread(read_all, client) == list(range(20))
        await asyncio.to_thread(client.close)
