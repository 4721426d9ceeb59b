"""A bundle of a real cluster is split by hand under a stock client; then the broker that has both halves is killed."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from tests.cli.running import quire

from .local import Cluster, running

TOPICS = [f"persistent://public/split/t{number}" for number in range(6)]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running(tmp_path / "cluster", session_timeout_ms="2s") as made:
        yield made


class Client:
    """Publishes to all topics, and consumes; what it has consumed is acknowledged, and answered."""

    def __init__(self, service_url: str) -> None:
        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        self._client = pulsar.Client(service_url, logger=quiet, operation_timeout_seconds=60)
        self._producers = [self._client.create_producer(topic, send_timeout_millis=0) for topic in TOPICS]
        self._consumers = [
            self._client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
            for topic in TOPICS
        ]
        self.sent = 0
        self.again = 0

    def more(self, count: int) -> None:
        for number in range(self.sent, self.sent + count):
            for producer, consumer in zip(self._producers, self._consumers, strict=True):
                producer.send(b"%d" % number)
                while True:
                    message = consumer.receive(30_000)
                    consumer.acknowledge(message)
                    assert int(message.data()) <= number
                    if int(message.data()) == number:
                        break
                    self.again += 1
        self.sent += count

    def close(self) -> None:
        self._client.close()


@pytest.mark.chaos
async def test_a_split_under_clients_and_the_death_of_its_broker(cluster: Cluster) -> None:
    await cluster.rest("PUT", "/admin/v2/namespaces/public/split", {"bundles": {"numBundles": 1}})
    client = await asyncio.to_thread(Client, cluster.service_url)
    await asyncio.to_thread(client.more, 10)
    going_on = asyncio.create_task(asyncio.to_thread(client.more, 50))
    url = ("--admin-url", cluster.http_url, "--json")
    whole = "public/split/00000000_ffffffff"
    low, high = (await asyncio.to_thread(quire, "brokers", "split", whole, *url)).json["bundles"]
    await going_on

    async def owned() -> dict[str, Any]:
        rows = (await asyncio.to_thread(quire, "brokers", "show", *url)).json
        return {row["bundle"]: row for row in rows if row["bundle"].startswith("public/split/")}

    async with asyncio.timeout(30):
        # any broker may be asked, and brokers report every three seconds
        while (found := await owned()).keys() != {low, high}:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    assert [row["topics"] for row in found.values()] == [3, 3]
    quire("brokers", "unload", high, *url)  # it may go to the other broker, without the lower half
    await asyncio.to_thread(client.more, 10)

    cluster.signal(cluster.at(await cluster.owner(TOPICS[0])), signal.SIGKILL)
    await asyncio.to_thread(client.more, 10)
    assert client.again < client.sent, (
        "each half knows what was acknowledged, but for the last tenth of a second"
    )
    await asyncio.to_thread(client.close)
    for topic in TOPICS:
        stats = await cluster.rest("GET", f"/admin/v2/{topic.replace('://', '/')}/stats")
        assert stats["subscriptions"]["s"]["msgBacklog"] <= 1
    edges = (await cluster.rest("GET", "/admin/v2/namespaces/public/split/bundles"))["boundaries"]
    assert len(edges) == 3
