"""The procedures of docs/operations.md for a metadata store that is empty or older, and for a missing mount."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from quire.objects.open import open_store as open_archive
from quire.runtime.errors import ConfigurationError, Unavailable
from quire.tiering.archive import PREFIX
from tests.cli.running import Ran, quire
from tests.cluster.test_lost_zookeeper import replace_zookeeper, stop, zookeeper_data
from tests.cluster.test_rescue import archive, archive_url, copy_metadata, publish, read
from tests.cluster.versions import MixedCluster, mixed_cluster

BOOKIES = ("bookie-1", "bookie-2", "bookie-3", "bookie-4")
SERVING = ("broker-1", "gateway-1", "gateway-2")
TOPIC, LATE = (f"persistent://public/default/{name}" for name in ("topic", "late"))


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[MixedCluster]:
    async with mixed_cluster(tmp_path / "cluster") as made:
        made.broker_flags = {"archive-lag-ms": "1s", "archive": f"file://{tmp_path}/archive"}
        await made.run_all((*BOOKIES, *SERVING))
        yield made


async def run(*words: str) -> Ran:
    ran = await asyncio.to_thread(quire, *words)
    print(ran.out, ran.err)
    return ran


async def delete_orphans(cluster: MixedCluster) -> Ran:
    return await run("archive", "verify", "--delete-orphans", "--admin-url", cluster.http_url)


async def objects(cluster: MixedCluster) -> set[str]:
    store = open_archive(archive_url(cluster))
    try:
        return {info.name for info in await store.list(PREFIX)}
    finally:
        await store.close()


@pytest.mark.chaos
async def test_an_older_backup_serves_as_the_copy_of_a_rescue(cluster: MixedCluster, tmp_path: Path) -> None:
    await asyncio.to_thread(publish, cluster, TOPIC, range(50))
    await archive(cluster, TOPIC)
    await asyncio.to_thread(publish, cluster, TOPIC, range(50, 60))
    copy = tmp_path / "backup"
    shutil.copytree(zookeeper_data(cluster), copy)
    for number, name in enumerate(BOOKIES[:3]):  # the open ledger's last blocks go elsewhere
        await cluster.run(name, None)
        await asyncio.to_thread(publish, cluster, TOPIC, range(60 + 10 * number, 70 + 10 * number))
    await asyncio.to_thread(publish, cluster, LATE, range(20))
    await stop(cluster)

    replace_zookeeper(cluster, copy)
    cluster.metadata = f"{cluster.zookeeper.url}/rebuilt?session_timeout=4s"
    rebuilt = ("--metadata", f"{cluster.zookeeper.url}/rebuilt", "--archive", archive_url(cluster))
    backup = ("--copy", f"{cluster.zookeeper.url}/quire")
    ran = await run("rescue", "metadata", *rebuilt, *backup)
    assert ran.code == 4 and "no bookie is up" in ran.err
    await cluster.run_all(BOOKIES)
    ran = await run("rescue", "metadata", *rebuilt, *backup)
    assert ran.code == 0, ran.out + ran.err
    await cluster.run_all(SERVING)
    assert await asyncio.to_thread(read, cluster, TOPIC) == list(range(90))
    assert await asyncio.to_thread(read, cluster, LATE) == list(range(20))
    await asyncio.to_thread(publish, cluster, TOPIC, range(90, 95))
    assert await asyncio.to_thread(read, cluster, TOPIC) == list(range(95))


@pytest.mark.chaos
async def test_an_empty_or_older_metadata_store_and_a_missing_mount_cost_no_object(
    cluster: MixedCluster, tmp_path: Path
) -> None:
    await asyncio.to_thread(publish, cluster, TOPIC, range(50))
    copy = tmp_path / "backup"
    shutil.copytree(zookeeper_data(cluster), copy)
    await archive(cluster, TOPIC)
    await copy_metadata(cluster)
    there = await objects(cluster)
    assert there

    replace_zookeeper(cluster, None)
    refused = await delete_orphans(cluster)  # ZooKeeper itself may refuse a session that saw newer changes
    assert refused.code and there <= await objects(cluster)

    await stop(cluster)
    replace_zookeeper(cluster, copy)
    await cluster.run_all((*BOOKIES, *SERVING))
    refused = await delete_orphans(cluster)
    assert refused.code and "are older than copy" in refused.err
    assert there <= await objects(cluster)
    where = ("--metadata", f"{cluster.zookeeper.url}/quire", "--archive", archive_url(cluster))
    accepted = await run("rescue", "accept-older", *where)
    assert accepted.code == 0 and "accepted: later records, as in copy" in accepted.out
    assert (await delete_orphans(cluster)).code == 0
    assert there <= await objects(cluster), "they are younger than a day"

    Path(archive_url(cluster).removeprefix("file://")).rename(tmp_path / "unmounted")
    with pytest.raises((Unavailable, ConfigurationError), match="has used it before"):
        await cluster.run("broker-1", None)
