"""A ZooKeeper that is lost for good, and a cluster whose metadata is rebuilt from its bookies and its archive."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import chain
from pathlib import Path

import pulsar
import pytest

from quire.identity.copies import FOLDER
from quire.identity.marker import NAME
from quire.metadata.cluster import read_cluster
from quire.metadata.open import open_store
from quire.objects.open import open_store as open_archive
from quire.process.child import Child
from quire.runtime.clock import SystemClock
from quire.runtime.errors import ConfigurationError, Unavailable
from quire.testing.zookeeper_server import free_port
from quire.tiering import metadata_copy
from tests.cli.running import Ran, quire
from tests.cluster.s3 import S3
from tests.cluster.versions import MixedCluster, mixed_cluster

BOOKIES = ("bookie-1", "bookie-2", "bookie-3")
SERVING = ("broker-1", "gateway-1", "gateway-2")
ARCHIVED, LATE, PARTED = (f"persistent://public/default/{name}" for name in ("archived", "late", "parted"))


@pytest.fixture
async def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[MixedCluster]:
    """With bookies, and an archive that is a directory or `s3`."""
    async with AsyncExitStack() as parts:
        made = await parts.enter_async_context(mixed_cluster(tmp_path / "cluster"))
        kind = getattr(request, "param", "file")
        url = await parts.enter_async_context(bucket(kind, tmp_path))
        made.broker_flags = {"archive-lag-ms": "1s", "archive": url}
        await made.run_all((*BOOKIES, *SERVING))
        yield made


@asynccontextmanager
async def bucket(kind: str, folder: Path) -> AsyncIterator[str]:
    """URL of an object store: a directory, or a server of its own, which no `lose_zookeeper` ends."""
    if kind == "file":
        yield f"file://{folder}/bucket"
        return
    store = S3(folder / "s3", free_port())
    server = Child("store", "store", store.command(), folder / "s3.log", store.answers)
    await server.start()
    try:
        yield store.url(f"127.0.0.1:{store.port}")
    finally:
        await server.stop()


def client_of(cluster: MixedCluster) -> pulsar.Client:
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar.Client(cluster.service_url, logger=quiet, operation_timeout_seconds=20)


def publish(cluster: MixedCluster, topic: str, numbers: range) -> None:
    client = client_of(cluster)
    producer = client.create_producer(
        topic, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution
    )
    for number in numbers:
        producer.send(b"%d" % number, partition_key=str(number))
    client.close()


def read(cluster: MixedCluster, topic: str) -> list[int]:
    """All messages of a topic, or partition, from the first on."""
    client, found = client_of(cluster), []
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    while reader.has_message_available():
        found.append(int(reader.read_next(20_000).data()))
    client.close()
    return found


def acknowledge(cluster: MixedCluster, topic: str, count: int) -> list[int]:
    """The next messages of a subscription, which are acknowledged."""
    client, found = client_of(cluster), []
    consumer = client.subscribe(
        topic, "s", initial_position=pulsar.InitialPosition.Earliest, receiver_queue_size=1
    )
    for _ in range(count):
        message = consumer.receive(20_000)
        found.append(int(message.data()))
        consumer.acknowledge(message)
    client.close()
    return found


async def archive(cluster: MixedCluster, topic: str) -> None:
    """Seal what there is, and wait until the archive alone has it."""
    url = ("--admin-url", cluster.http_url)
    assert (await asyncio.to_thread(quire, "archive", "run", "--seal", *url)).code == 0
    async with asyncio.timeout(60):
        while True:
            stats = (await asyncio.to_thread(quire, "topics", "internal-stats", topic, "--json", *url)).json
            if any(segment["state"] == "released" for segment in stats["ledgers"]):
                return
            await asyncio.sleep(0.2)


async def copy_metadata(cluster: MixedCluster) -> str:
    """Copy as the coordinator does every ten minutes, and return the copy's name."""
    store, objects = await open_store(f"{cluster.zookeeper.url}/quire"), open_archive(archive_url(cluster))
    record = await metadata_copy.number_copy(store, objects, (await read_cluster(store)).uuid)
    name = await metadata_copy.put(objects, await metadata_copy.take(store, SystemClock().now_ms()), record)
    await objects.close()
    await store.close()
    return name


async def forget_later(cluster: MixedCluster, copy: str) -> None:
    """Delete the copies that a coordinator took after this one."""
    objects = open_archive(archive_url(cluster))
    for info in await objects.list(FOLDER):
        if info.name > copy:
            await objects.delete(info.name)
    await objects.close()


def archive_url(cluster: MixedCluster) -> str:
    return cluster.broker_flags["archive"]


async def fill(cluster: MixedCluster) -> None:
    """Messages in the archive alone, on bookies alone, in ledgers that are open, and before and after a copy."""
    url = ("--admin-url", cluster.http_url)
    made = await asyncio.to_thread(quire, "topics", "create", PARTED, "--partitions", "3", *url)
    assert made.code == 0, made.err
    await asyncio.to_thread(publish, cluster, ARCHIVED, range(100))
    assert await asyncio.to_thread(acknowledge, cluster, ARCHIVED, 10) == list(range(10))
    await archive(cluster, ARCHIVED)
    await asyncio.to_thread(publish, cluster, PARTED, range(30))


async def kill(cluster: MixedCluster, name: str) -> None:
    process = cluster.members.pop(name).process
    assert process is not None
    process.kill()
    await process.wait()


async def lose_zookeeper(cluster: MixedCluster) -> None:
    """Every process is killed, and ZooKeeper comes back empty."""
    for name in list(cluster.members):
        await kill(cluster, name)
    cluster.zookeeper.kill()
    shutil.rmtree(cluster.data / "zookeeper" / "data")
    cluster.zookeeper.start()


async def rescue(cluster: MixedCluster, *words: str) -> Ran:
    url = f"{cluster.zookeeper.url}/quire"
    ran = await asyncio.to_thread(
        quire, "rescue", "metadata", "--metadata", url, "--archive", archive_url(cluster), *words
    )
    print(ran.out, ran.err)
    return ran


async def serves_all(cluster: MixedCluster, parts: list[list[int]], late: int) -> None:
    """What `fill` published is there, and what came after it: `late` messages of a topic, which all go on."""
    assert await asyncio.to_thread(read, cluster, ARCHIVED) == list(range(120))
    assert await asyncio.to_thread(read, cluster, LATE) == list(range(late))
    assert [await asyncio.to_thread(read, cluster, f"{PARTED}-partition-{at}") for at in range(3)] == parts
    assert sorted(chain.from_iterable(parts)) == list(range(30))
    assert await asyncio.to_thread(acknowledge, cluster, ARCHIVED, 10) == list(range(15, 25))
    for topic, first in ((ARCHIVED, 120), (LATE, late)):
        await asyncio.to_thread(publish, cluster, topic, range(first, first + 10))
        assert await asyncio.to_thread(read, cluster, topic) == list(range(first + 10))


@pytest.mark.chaos
@pytest.mark.parametrize("cluster", ["file", "s3"], indirect=True)
async def test_all_that_was_acknowledged_is_read_again(cluster: MixedCluster) -> None:
    await fill(cluster)
    copy = await copy_metadata(cluster)
    await asyncio.to_thread(publish, cluster, LATE, range(50))  # a topic that the copy does not know
    await asyncio.to_thread(publish, cluster, ARCHIVED, range(100, 120))
    assert await asyncio.to_thread(acknowledge, cluster, ARCHIVED, 5) == list(range(10, 15))
    parts = [await asyncio.to_thread(read, cluster, f"{PARTED}-partition-{at}") for at in range(3)]
    await lose_zookeeper(cluster)
    await forget_later(cluster, copy)

    ran = await rescue(cluster, "--dry-run")
    assert ran.code == 0 and "nothing was begun yet" in ran.err
    ran = await rescue(cluster)
    assert ran.code == 4 and "no bookie is up: start all bookies" in ran.err
    with pytest.raises(Unavailable, match="are being rebuilt"):
        await cluster.run("broker-1", None)
    await cluster.run_all(BOOKIES)
    ran = await rescue(cluster, "--dry-run")
    assert ran.code == 0 and "dry run: nothing was written" in ran.out, ran.err
    done = (await rescue(cluster, "--json")).json
    assert done["is_done"] and not done["lost"], done
    assert done["messages"] == 120 + 50 + 30
    ran = await rescue(cluster)
    assert ran.code == 2 and "a rescue must not overwrite" in ran.err

    await cluster.run_all(SERVING)
    await serves_all(cluster, parts, late=50)
    await asyncio.to_thread(publish, cluster, PARTED, range(30, 40))
    await archive(cluster, LATE)
    assert await asyncio.to_thread(read, cluster, LATE) == list(range(60))


@pytest.mark.chaos
async def test_without_a_copy_and_with_a_bookie_missing(cluster: MixedCluster) -> None:
    await fill(cluster)
    await asyncio.to_thread(publish, cluster, LATE, range(50))
    await lose_zookeeper(cluster)
    folder = Path(archive_url(cluster).removeprefix("file://"))
    shutil.rmtree(folder / "metadata", ignore_errors=True)
    ran = await rescue(cluster, "--cluster", "5f0e0b3c-8d0a-4a6e-9a55-0f5f7f1f7a11")
    assert ran.code == 2 and "belongs to cluster" in ran.err
    (folder / NAME).unlink()  # as an archive from before there were markers
    ran = await rescue(cluster)
    assert ran.code == 2 and "give it with --cluster" in ran.err
    with pytest.raises((Unavailable, ConfigurationError), match=r"belongs to cluster (\S+)") as refused:
        await cluster.run("bookie-1", None)
    identity = str(refused.value).partition("belongs to cluster ")[2].split(":")[0]
    assert (await rescue(cluster, "--cluster", identity)).code == 4
    assert (folder / NAME).exists()
    await cluster.run("bookie-1", None)
    ran = await rescue(cluster)
    assert ran.code == 4 and "as many as the ack quorum" in ran.out, ran.err
    await cluster.run("bookie-2", None)
    ran = await rescue(cluster)
    assert ran.code == 0, ran.out + ran.err
    assert "missing bookie: " in ran.out and "parted is restored with 3 partitions" in ran.out
    await cluster.run_all(SERVING)
    assert await asyncio.to_thread(read, cluster, ARCHIVED) == list(range(100))
    assert await asyncio.to_thread(read, cluster, LATE) == list(range(50))
    await cluster.run("bookie-3", None)
    await asyncio.to_thread(publish, cluster, LATE, range(50, 60))
    assert await asyncio.to_thread(read, cluster, LATE) == list(range(60))
