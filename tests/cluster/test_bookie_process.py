"""`quire bookie` as real processes over a real ZooKeeper: seen when ready, refused when wrong, repaired, drained."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random
from time import monotonic
from urllib.request import urlopen

import pytest

from quire.ledger.bookie_client import BookieClient
from quire.ledger.bookies import Bookies
from quire.ledger.directory import ClusterDirectory
from quire.ledger.ledgers import Ledgers
from quire.ledger.repair import Repair
from quire.ledger.retiring import known_bookies
from quire.ledger.settings import LedgerSettings, RepairSettings
from quire.metadata.open import open_store
from quire.metadata.store import MetadataStore
from quire.runtime.clock import SystemClock
from quire.runtime.limits import MIB
from quire.testing.cluster import Listener, expected, read_all, write
from tests.cluster.zookeeper import ZooKeeper

pytestmark = pytest.mark.timeout(90)
SMALL = {
    "journal_segment_bytes": "16MiB",
    "journal_group_bytes_max": "8MiB",
    "memtable_bytes": "16MiB",
    "entry_log_bytes": "32MiB",
    "disk_reserve_bytes": "1MiB",
}


class Process:
    """One `quire bookie` with directories of its own under `root`."""

    def __init__(self, root: Path, metadata: str, **settings: str) -> None:
        self.root = root
        self.settings = {
            "journal": str(root / "journal"),
            "entry_log": str(root / "entries"),
            "metadata": metadata,
            "listen": "127.0.0.1:0",
            "new_cluster": "true",
            **SMALL,
            **settings,
        }
        self.address = self.http = ""

    async def begin(self) -> None:
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in self.settings.items()]
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "quire",
            "bookie",
            *flags,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def start(self) -> None:
        await self.begin()
        assert self.process.stdout is not None
        async with asyncio.timeout(60):
            line = (await self.process.stdout.readline()).decode()
        if not line:
            raise AssertionError((await self.ends())[1])
        ready, url, *http = line.split()
        assert ready == "ready" and url.startswith("bookie://")
        self.address = url.removeprefix("bookie://")
        self.http = http[0] if http else ""

    async def ends(self) -> tuple[int, str]:
        async with asyncio.timeout(60):
            _, told = await self.process.communicate()
        return self.process.returncode or 0, told.decode()

    async def stop(self) -> tuple[int, str]:
        self.process.terminate()
        return await self.ends()

    def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()


class Cluster:
    """Bookies as processes; this test's process is a broker without topics."""

    def __init__(self, root: Path, url: str, store: MetadataStore) -> None:
        self.root, self.url, self.store = root, url, store
        self.bookies: list[Process] = []
        self.directory = ClusterDirectory(store, lambda bookie: BookieClient(bookie.address))
        self.ledgers = Ledgers(store, self.directory, SystemClock(), Random(), LedgerSettings())

    def bookie(self, **settings: str) -> Process:
        made = Process(self.root / f"bookie-{len(self.bookies)}", self.url, **settings)
        self.bookies.append(made)
        return made

    async def start(self, count: int) -> None:
        await self.directory.start()
        await asyncio.gather(*(self.bookie().start() for _ in range(count)))
        await self.until(lambda: len(self.directory.available()) == count)

    async def until(self, condition: Callable[[], object]) -> None:
        """Processes tell nothing when they are done; so it is looked, again and again."""
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def uuid_at(self, address: str) -> str:
        return next(
            uuid for uuid, each in (await known_bookies(self.store)).items() if each.address == address
        )

    async def stop(self) -> None:
        await self.ledgers.stop()
        await self.directory.stop()
        for each in self.bookies:
            each.kill()
        for each in self.bookies:
            await each.process.wait()
        await self.store.close()


@pytest.fixture
async def cluster(tmp_path: Path, zookeeper: ZooKeeper) -> AsyncIterator[Cluster]:
    url = zookeeper.fresh_url("2s")
    made = Cluster(tmp_path, url, await open_store(url))
    yield made
    await made.stop()


async def test_seen_while_it_runs_with_health_and_metrics_and_gone_on_sigterm(cluster: Cluster) -> None:
    await cluster.start(0)
    bookie = cluster.bookie(http="127.0.0.1:0", rack="r1")
    await bookie.start()
    await cluster.until(cluster.directory.available)
    (record,) = cluster.directory.available()
    assert (record.address, record.rack, record.read_only) == (bookie.address, "r1", False)
    health = await asyncio.to_thread(lambda: json.load(urlopen(f"{bookie.http}/health/ready", timeout=5)))
    assert health["ready"]
    metrics = await asyncio.to_thread(lambda: urlopen(f"{bookie.http}/metrics", timeout=5).read().decode())
    assert "quire_bookie_journal_groups_total" in metrics and "quire_bookie_scrub_bytes_total" in metrics
    begin = monotonic()
    code, told = await bookie.stop()
    assert (code, "Traceback" in told) == (0, False)
    assert monotonic() - begin < 5
    await cluster.until(lambda: not cluster.directory.available())


async def test_an_address_that_another_bookie_holds_is_refused_in_one_sentence(cluster: Cluster) -> None:
    await cluster.start(1)
    second = cluster.bookie(advertise=cluster.bookies[0].address)
    await second.begin()
    code, told = await second.ends()
    assert code == 2
    assert told.splitlines()[-1].endswith("give each bookie its own address with --advertise")


async def test_a_bookie_that_slept_beyond_its_session_is_seen_again(cluster: Cluster) -> None:
    await cluster.start(1)
    os.kill(cluster.bookies[0].process.pid, signal.SIGSTOP)
    await cluster.until(lambda: not cluster.directory.available())
    os.kill(cluster.bookies[0].process.pid, signal.SIGCONT)
    await cluster.until(cluster.directory.available)


async def test_repair_then_drain_then_retired(cluster: Cluster) -> None:
    await cluster.start(4)
    records = []
    for _ in range(4):
        writer = await cluster.ledgers.create("test", listener := Listener())
        await listener.until(write(writer, 100, 5))
        records.append(await writer.close())
    settings = RepairSettings(repair_delay_ms=500, repair_look_ms=100, repair_bytes_per_s=100 * MIB)
    repair = Repair(cluster.store, cluster.directory, SystemClock(), Random(), settings, "test")
    repair.start()
    operator = Bookies(cluster.ledgers)

    dead, drained = cluster.bookies[0], cluster.bookies[1]
    lost, leaving = await cluster.uuid_at(dead.address), await cluster.uuid_at(drained.address)
    dead.kill()
    await cluster.until(lambda: lost not in {each.uuid for each in cluster.directory.available()})
    await until_nobody_names(cluster, records, lost)

    spare = cluster.bookie()
    await spare.start()
    assert (await operator.decommission(drained.address))["state"] == "draining"
    async with asyncio.timeout(60):
        while leaving in await known_bookies(cluster.store):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    await until_nobody_names(cluster, records, leaving)
    for record in records:
        assert await read_all(cluster.ledgers, record.ledger_id, 1 * MIB) == expected(record.last_entry)
    await repair.stop()

    assert (await drained.stop())[0] == 0
    await drained.start()
    assert await cluster.uuid_at(drained.address) not in (lost, leaving), "its directories begin anew"


async def test_a_bookie_without_a_chance_to_be_drained_stops_at_once_and_comes_back_as_it_was(
    cluster: Cluster,
) -> None:
    await cluster.start(2)
    bookie = cluster.bookie(drain_on_stop_ms="10min")
    await bookie.start()
    uuid = await cluster.uuid_at(bookie.address)
    code, told = await bookie.stop()
    assert code == 0 and "no broker coordinates repair" in told
    await bookie.start()
    assert await cluster.uuid_at(bookie.address) == uuid


async def until_nobody_names(cluster: Cluster, records, uuid: str) -> None:
    async with asyncio.timeout(60):
        while True:
            now = [await cluster.ledgers.info(record.ledger_id) for record in records]
            named = {name for each in now for fragment in each.fragments for name in fragment.bookies}
            if not any(name.startswith(uuid) for name in named):
                assert all(len(fragment.bookies) == 3 for each in now for fragment in each.fragments)
                return
            await asyncio.sleep(0.1)


async def test_a_host_that_nobody_can_reach_is_not_advertised(tmp_path: Path) -> None:
    bookie = Process(tmp_path, "zk://127.0.0.1:1/x", listen="0.0.0.0:0")
    await bookie.begin()
    code, told = await bookie.ends()
    assert code == 2 and "advertise must name the host" in told
    assert not (tmp_path / "journal").exists()


async def test_a_port_that_is_taken_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        bookie = Process(tmp_path, "zk://127.0.0.1:1/x", listen=f"127.0.0.1:{port}")
        await bookie.begin()
        code, told = await bookie.ends()
    assert code == 2 and f"cannot listen on 127.0.0.1:{port}" in told
    assert not (tmp_path / "journal").exists()
