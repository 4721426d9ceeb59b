"""`quire local --brokers 2 --wal`: brokers, a metadata store and a bucket."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.cluster.local import Cluster, running
from tests.cluster.test_local import Producer, client_of, read_all
from tests.cluster.zookeeper import own_zookeeper

TOPIC = "persistent://public/default/t"


@pytest.fixture
def soon_uploaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that publish one message after the other, and would wait for each batch."""
    monkeypatch.setenv("QUIRE_WAL_BATCH_MS", "10ms")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running(
        tmp_path / "cluster", session_timeout_ms="2s", wal=f"file://{tmp_path}/bucket", brokers="2"
    ) as made:
        yield made


@pytest.mark.usefixtures("soon_uploaded")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
async def test_another_broker_goes_on_where_one_ended(cluster: Cluster, number: signal.Signals) -> None:
    assert not cluster.pids("bookie")
    client = await asyncio.to_thread(client_of, cluster)
    producer = await asyncio.to_thread(Producer, client)
    await asyncio.to_thread(producer.publish, 20)
    name = cluster.at(await cluster.owner(TOPIC))
    cluster.signal(name, number)
    await asyncio.to_thread(producer.publish, 20)
    if number is signal.SIGSTOP:
        cluster.signal(name, signal.SIGCONT)
    assert await asyncio.to_thread(read_all, client) == list(range(40))
    await asyncio.to_thread(producer.publish, 5)
    assert await asyncio.to_thread(read_all, client) == list(range(45))
    await asyncio.to_thread(client.close)


@pytest.mark.usefixtures("soon_uploaded")
async def test_a_namespace_says_where_its_topics_are_kept_and_changes_its_mind(tmp_path: Path) -> None:
    policy = "/admin/v2/namespaces/public/default/persistence"
    bucket = tmp_path / "bucket"

    def objects() -> int:
        return sum(file.is_file() for file in bucket.rglob("wal/*/*"))

    async with running(tmp_path / "cluster", wal=f"file://{bucket}", brokers="1", bookies="1") as cluster:
        await cluster.rest("POST", policy, {"storage": "bookies"})
        client = await asyncio.to_thread(client_of, cluster)
        producer = await asyncio.to_thread(Producer, client)
        before = objects()
        await asyncio.to_thread(producer.publish, 20)
        assert objects() == before
        for storage in ("objects", "bookies"):
            await cluster.rest("POST", policy, {"storage": storage})
            await cluster.rest("PUT", "/admin/v2/persistent/public/default/t/unload")
            await asyncio.to_thread(producer.publish, 20)
        assert objects() > before
        assert await asyncio.to_thread(read_all, client) == list(range(60))
        await asyncio.to_thread(client.close)


async def test_nothing_is_lost_while_brokers_die_and_stand_still(cluster: Cluster) -> None:
    words = [
        "check",
        "--seconds",
        "30",
        "--rate",
        "500",
        "--topics",
        "6",
        "--service-url",
        cluster.service_url,
    ]
    check = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "quire",
        *words,
        "--admin-url",
        cluster.http_url,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    await asyncio.sleep(4)
    cluster.signal("broker-1", signal.SIGKILL)
    await asyncio.sleep(5)
    await cluster.restart_dead("broker-1")
    cluster.signal("broker-2", signal.SIGSTOP)
    await asyncio.sleep(6)
    cluster.signal("broker-2", signal.SIGCONT)
    await asyncio.sleep(4)
    cluster.signal("broker-2", signal.SIGKILL)
    out, _ = await check.communicate()
    assert check.returncode == 0, out.decode() + cluster.story()
    assert b"No acknowledged message is lost" in out


def test_a_cluster_is_not_begun_anew_over_the_logs_of_one(tmp_path: Path) -> None:
    log = tmp_path / "bucket" / "wal" / str(uuid4()) / f"{0:016x}"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"of a cluster whose metadata were lost")
    words = [
        sys.executable,
        "-m",
        "quire",
        "broker",
        "--new-cluster",
        "true",
        "--wal",
        f"file://{tmp_path}/bucket",
    ]
    with own_zookeeper(tmp_path) as server:
        words += ["--metadata", f"{server.url}/quire", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        ran = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 2 and "has write-ahead logs" in ran.stderr and "another prefix" in ran.stderr
