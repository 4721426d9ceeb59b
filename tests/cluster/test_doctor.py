"""`quire doctor` of a cluster of real processes, and of what happens to them."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from quire import __version__
from tests.cli.running import quire

from .local import Cluster, running

pytestmark = pytest.mark.timeout(180)
PATIENCE_S = 60.0


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running(tmp_path / "cluster", session_timeout_ms="2s") as made:
        yield made


class Doctor:
    def __init__(self, *words: str) -> None:
        self._words = words

    async def until(self, words: str = "", where: str = "") -> dict[str, Any]:
        """Ask until there is an error or a warning with these words there, nothing at all for none; what was said."""
        deadline = monotonic() + PATIENCE_S
        while True:
            ran = await asyncio.to_thread(quire, "doctor", "--json", *self._words)
            said: dict[str, Any] = json.loads(ran.out)
            found = said["findings"]
            assert ran.code == (4 if found else 0)
            is_there = any(words in one["what"] and where in one["where"] for one in found)
            if is_there if words else not found:
                return said
            assert monotonic() < deadline, said
            await asyncio.sleep(0.2)


OLDER = """
import sys, quire
quire.__version__ = "0.0.9"
from quire.cli.main import main
main()
"""


async def test_a_cluster_that_is_well_and_then_is_not(cluster: Cluster) -> None:
    doctor = Doctor("--admin-url", cluster.http_url)
    said = await doctor.until()
    kinds = [where.split()[0] for where in said["lookedAt"]]
    assert sorted(kinds) == ["bookie", "bookie", "bookie", "broker", "broker", "gateway", "the", "this"]
    assert said["notLookedAt"] == []

    cluster.signal("bookie-1", signal.SIGKILL)
    said = await doctor.until("is down")
    assert "quire bookies recover" in next(
        one["todo"] for one in said["findings"] if "is down" in one["what"]
    )
    await cluster.restart_dead("bookie-1")
    await doctor.until()


@pytest.fixture
async def patient(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A cluster that takes nobody for gone, however long he is silent."""
    async with running(tmp_path / "cluster", session_timeout_ms="60s") as made:
        yield made


async def test_two_versions_and_members_that_say_nothing(patient: Cluster, tmp_path: Path) -> None:
    cluster, doctor = patient, Doctor("--admin-url", patient.http_url)
    await doctor.until()
    flags = {"journal": tmp_path / "j", "entry-log": tmp_path / "e", "listen": "127.0.0.1:0", "http": ""}
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    older = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", OLDER, "bookie", "--metadata", metadata_of(cluster), *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert older.stdout is not None
    address = (await older.stdout.readline()).decode().split()[1].partition("://")[2]
    said = await doctor.until("several versions")
    while not said["notLookedAt"]:  # the broker that is asked hears of it a moment later
        said = await doctor.until("several versions")
    told = next(one["what"] for one in said["findings"] if "several" in one["what"])
    assert f"0.0.9: {address}" in told and f"{__version__}: " in told
    assert said["notLookedAt"] == [f"bookie {address}: it has no HTTP port (--http)"]
    cluster.signal("bookie-2", signal.SIGSTOP)
    await doctor.until("did not report")
    cluster.signal("bookie-2", signal.SIGCONT)
    older.terminate()
    await older.wait()


async def test_a_zookeeper_that_is_gone(cluster: Cluster) -> None:
    url = metadata_of(cluster)
    await Doctor("--admin-url", cluster.http_url, "--metadata", url).until()
    cluster.signal("zookeeper", signal.SIGKILL)
    doctor = Doctor("--admin-url", cluster.http_url, "--metadata", url)
    await doctor.until("ZooKeeper's server", "broker")
    said = await doctor.until("the metadata store cannot be read", "bookie")
    assert url.partition("?")[0] in {one["where"] for one in said["findings"]}


def metadata_of(cluster: Cluster) -> str:
    """The cluster's own ZooKeeper."""
    config = (cluster.data / "zookeeper" / "zookeeper.cfg").read_text()
    port = next(line.partition("=")[2] for line in config.splitlines() if line.startswith("clientPort="))
    return f"zk://127.0.0.1:{port}/quire?session_timeout=2s"
