"""A ZooKeeper that is lost for good, and a cluster without bookies whose metadata is rebuilt from its bucket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from quire.metadata import paths
from quire.metadata.open import open_store
from tests.cli.running import Ran, quire
from tests.cluster.test_rescue import (
    ARCHIVED,
    LATE,
    PARTED,
    acknowledge,
    archive,
    bucket,
    copy_metadata,
    fill,
    forget_later,
    kill,
    lose_zookeeper,
    publish,
    read,
    rescue,
    serves_all,
)
from tests.cluster.versions import MixedCluster, mixed_cluster

BROKERS = ("broker-1", "broker-2")
GATEWAYS = ("gateway-1", "gateway-2")
DELETED = "persistent://public/default/deleted"

pytestmark = pytest.mark.chaos


@pytest.fixture
async def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[MixedCluster]:
    """Two brokers over a bucket, which is a directory or `s3`."""
    async with AsyncExitStack() as parts:
        made = await parts.enter_async_context(mixed_cluster(tmp_path / "cluster"))
        url = await parts.enter_async_context(bucket(getattr(request, "param", "file"), tmp_path))
        made.broker_flags = {
            "archive-lag-ms": "1s", "archive": url,
            "wal": url, "wal-batch-ms": "10ms", "new-cluster": "true",
        }  # fmt: skip
        await made.run_all((*BROKERS, *GATEWAYS))
        del made.broker_flags["new-cluster"]
        yield made


async def again(cluster: MixedCluster, *words: str) -> Ran:
    return await rescue(cluster, "--wal", cluster.broker_flags["wal"], *words)


async def delete(cluster: MixedCluster, topic: str) -> None:
    """And wait until nobody but the logs knows of it."""
    ran = await asyncio.to_thread(
        quire, "topics", "delete", topic, "--force", "--admin-url", cluster.http_url
    )
    assert ran.code == 0, ran.err
    store = await open_store(f"{cluster.zookeeper.url}/quire")
    async with asyncio.timeout(30):
        while True:
            logs = await store.children(paths.WALS)
            if not any([await store.children(paths.wal_tombstones(log)) for log in logs]):
                break
            await asyncio.sleep(0.1)
    await store.close()


@pytest.mark.parametrize("cluster", ["file", "s3"], indirect=True)
async def test_all_that_was_acknowledged_is_read_again(cluster: MixedCluster) -> None:
    await fill(cluster)
    await asyncio.to_thread(publish, cluster, DELETED, range(20))
    await cluster.run("broker-2", None)  # stopped as it should be: what it had is in sets
    copy = await copy_metadata(cluster)
    await asyncio.to_thread(publish, cluster, LATE, range(50))  # a topic that the copy does not know
    await asyncio.to_thread(publish, cluster, ARCHIVED, range(100, 120))
    assert await asyncio.to_thread(acknowledge, cluster, ARCHIVED, 5) == list(range(10, 15))
    await delete(cluster, DELETED)
    for name in BROKERS:  # ledgers and logs that the copy does not know
        await kill(cluster, name)
        await cluster.run(name, None)
    await asyncio.to_thread(publish, cluster, LATE, range(50, 60))
    await cluster.run("broker-1", None)
    await asyncio.to_thread(publish, cluster, LATE, range(60, 70))
    parts = [await asyncio.to_thread(read, cluster, f"{PARTED}-partition-{at}") for at in range(3)]
    await lose_zookeeper(cluster)
    await forget_later(cluster, copy)

    ran = await rescue(cluster)
    assert ran.code == 2 and "give their store with --wal" in ran.err
    dry = (await again(cluster, "--dry-run", "--json")).json
    assert not dry["lost"] and not dry["is_done"] and dry["messages"] == 120 + 70 + 30, dry
    done = (await again(cluster, "--json")).json
    assert done["is_done"] and not done["lost"], done
    assert done["messages"] == 120 + 70 + 30 and len(done["logs"]) >= 2
    assert done["empty"] == [DELETED], "its name is the copy's, its messages are gone"
    ran = await again(cluster)
    assert ran.code == 2 and "a rescue must not overwrite" in ran.err

    await cluster.run_all((*BROKERS, *GATEWAYS))
    await serves_all(cluster, parts, late=70)
    assert await asyncio.to_thread(read, cluster, DELETED) == []
    await archive(cluster, LATE)
    assert await asyncio.to_thread(read, cluster, LATE) == list(range(80))
