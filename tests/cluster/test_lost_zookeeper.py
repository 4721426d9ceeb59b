"""A ZooKeeper that is emptied under a cluster, and restored from a copy of its directory."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pulsar
import pytest

from quire.metadata import paths
from quire.metadata.open import open_store
from quire.runtime.errors import NotFound, Unavailable
from tests.cli.running import quire
from tests.cluster.versions import MixedCluster, mixed_cluster

TOPIC = "persistent://public/default/t"
MEMBERS = ("bookie-1", "bookie-2", "bookie-3", "broker-1", "gateway-1", "gateway-2")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[MixedCluster]:
    async with mixed_cluster(tmp_path / "cluster") as made:
        await made.run_all(MEMBERS)
        yield made


def publish(cluster: MixedCluster, numbers: range, *, wait_ms: int = 30_000) -> None:
    client = client_of(cluster)
    try:
        producer = client.create_producer(TOPIC, send_timeout_millis=wait_ms)
        for number in numbers:
            producer.send(b"%d" % number)
    finally:
        client.close()


def read_all(cluster: MixedCluster) -> list[int]:
    client, found = client_of(cluster), []
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
    while reader.has_message_available():
        found.append(int(reader.read_next(10_000).data()))
    client.close()
    return found


def client_of(cluster: MixedCluster) -> pulsar.Client:
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar.Client(cluster.service_url, logger=quiet, operation_timeout_seconds=10)


def zookeeper_data(cluster: MixedCluster) -> Path:
    return cluster.data / "zookeeper" / "data"


def replace_zookeeper(cluster: MixedCluster, copy: Path | None) -> None:
    """It starts again with what is in `copy`, or with nothing."""
    cluster.zookeeper.kill()
    shutil.rmtree(zookeeper_data(cluster))
    if copy is not None:
        shutil.copytree(copy, zookeeper_data(cluster))
    cluster.zookeeper.start()


async def stop(cluster: MixedCluster) -> None:
    await cluster.stop()
    cluster.members.clear()


@pytest.mark.chaos
async def test_nobody_begins_anew_on_an_empty_store_and_a_copy_brings_all_back(
    cluster: MixedCluster, tmp_path: Path
) -> None:
    await asyncio.to_thread(publish, cluster, range(100))
    copy = tmp_path / "copy"
    shutil.copytree(zookeeper_data(cluster), copy)  # of a running server, as a nightly job takes it
    await asyncio.to_thread(publish, cluster, range(100, 120))
    replace_zookeeper(cluster, None)

    with pytest.raises(pulsar.PulsarException):  # those that run serve nothing, and make nothing
        await asyncio.to_thread(publish, cluster, range(1), wait_ms=5_000)
    store = await open_store(f"{cluster.zookeeper.url}/quire")
    with pytest.raises(NotFound):
        await store.get(paths.CLUSTER)
    assert await store.children(paths.TOPICS) == []
    await store.close()

    await stop(cluster)
    for name in MEMBERS:
        with pytest.raises(Unavailable, match="there is no cluster at zk://"):
            await cluster.run(name, None)

    replace_zookeeper(cluster, copy)
    await cluster.run_all(MEMBERS)
    assert await asyncio.to_thread(read_all, cluster) == list(range(120)), (
        "the ledger was open when it was copied"
    )
    await asyncio.to_thread(publish, cluster, range(120, 130))
    assert await asyncio.to_thread(read_all, cluster) == list(range(130))


@pytest.mark.chaos
async def test_a_copy_that_is_too_old_says_so_and_the_messages_it_knows_come_back(
    cluster: MixedCluster, tmp_path: Path
) -> None:
    await asyncio.to_thread(publish, cluster, range(100))
    await cluster.run("broker-1", None)
    await asyncio.to_thread(publish, cluster, range(100, 110))
    copy = tmp_path / "copy"
    shutil.copytree(zookeeper_data(cluster), copy)
    for first in (110, 120):  # other ledgers, with ids that the copy does not know of
        await cluster.run("broker-1", None)
        await asyncio.to_thread(publish, cluster, range(first, first + 10))
    await stop(cluster)
    replace_zookeeper(cluster, copy)
    await cluster.run_all(MEMBERS)

    url = ("--admin-url", cluster.http_url)
    ran = await asyncio.to_thread(quire, "topics", "stats", TOPIC, *url)
    bundle = re.search(r"state log of bundle (\S+) cannot be read", ran.err)
    assert ran.code and bundle and "lists a ledger that does not exist" in ran.err
    ran = await asyncio.to_thread(quire, "brokers", "forget", bundle[1], *url)
    assert ran.code and "would lose all of its subscriptions" in ran.err
    ran = await asyncio.to_thread(quire, "brokers", "forget", bundle[1], "--accept-loss", *url)
    assert ran.code == 0, ran.err
    assert await asyncio.to_thread(read_all, cluster) == list(range(110))
    await asyncio.to_thread(publish, cluster, range(1_000, 1_010))
    assert await asyncio.to_thread(read_all, cluster) == [*range(110), *range(1_000, 1_010)]
    ran = await asyncio.to_thread(quire, "brokers", "forget", bundle[1], "--accept-loss", *url)
    assert ran.code and "was not found damaged" in ran.err
