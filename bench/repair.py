"""Benchmark of repair after the loss of a bookie: copy rate, and effect on publish latency.

    python -m bench.repair [copy] [steady]

- `copy`: four bookies and ZooKeeper are processes, and the repair coordinator runs in this process. One bookie is
  killed, and all its ledgers are copied to other bookies at full speed.
- `steady`: a whole cluster with a load of 5,000/s of 1 KiB. The p99 is measured alone, and while repair copies at its
  default rate (32 MiB/s). Repair begins a second after the dead bookie's session expires.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random
from time import perf_counter, process_time

import uvloop

from bench.processes import finish, fresh, load
from bench.report import ask, show
from quire.ledger.bookie_client import BookieClient
from quire.ledger.directory import ClusterDirectory
from quire.ledger.ledgers import Ledgers
from quire.ledger.repair import Repair
from quire.ledger.settings import LedgerSettings, RepairSettings
from quire.metadata import paths
from quire.metadata.open import open_store
from quire.metadata.records import RepairRecord, decode
from quire.runtime.clock import SystemClock
from quire.runtime.limits import GIB, KIB, MIB
from quire.testing.cluster import Listener
from quire.testing.zookeeper_server import ZooKeeperServer
from quire.wire import block

BOOKIES = 4
LEDGER_BYTES = 64 * MIB
OLD_BYTES = 2 * GIB
"""Bytes of old ledgers. One of four bookies has copies of three quarters of them, which repair copies in 48 s."""

BEGIN_S = 60.0
"""Time limit for repair to begin: the session time-out, the repair delay, and the coordinator's next round."""

ENTRIES = 250
"""Number of entries of 1 KiB in a block."""


def start_bookie(directory: Path, metadata: str) -> subprocess.Popen[str]:
    flags = {"journal": directory / "journal", "entry-log": directory / "entries", "metadata": metadata}
    words = [f"--{name}={value}" for name, value in flags.items()]
    command = [sys.executable, "-m", "quire", "bookie", "--listen=127.0.0.1:0", "--new-cluster=true", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


async def write_ledger(ledgers: Ledgers) -> None:
    entries = [os.urandom(KIB)] * ENTRIES
    writer = await ledgers.create("bench", listener := Listener())
    blocks = LEDGER_BYTES // (ENTRIES * KIB)
    for number in range(blocks):
        first = number * ENTRIES
        writer.add(block.cut(writer.ledger_id, first, first - 1, 1, first, entries), first + ENTRIES - 1)
        if number % 16 == 15:
            await listener.until(first - 8 * ENTRIES)
    await listener.until(blocks * ENTRIES - 1)
    await writer.close()


async def measure(root: Path, metadata: str, total_bytes: int) -> None:
    bookies = [start_bookie(root / f"bookie-{number}", metadata) for number in range(BOOKIES)]
    for each in bookies:
        assert each.stdout is not None and each.stdout.readline().startswith("ready ")
    store = await open_store(metadata)
    directory = ClusterDirectory(store, lambda bookie: BookieClient(bookie.address))
    try:
        await directory.start()
        ledgers = Ledgers(store, directory, SystemClock(), Random(), LedgerSettings())
        for _ in range(total_bytes // LEDGER_BYTES):
            await write_ledger(ledgers)
        bookies[0].kill()
        while len(directory.available()) == BOOKIES:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        settings = RepairSettings(repair_delay_ms=0, repair_bytes_per_s=GIB * 16)
        repair = Repair(store, directory, SystemClock(), Random(), settings, "bench")
        begin, cpu = perf_counter(), process_time()
        await repair.look()
        seconds, status = perf_counter() - begin, repair.status()
        assert status.repaired and not status.failed, status
        show(
            "repair of what one of four bookies held",
            mb_per_s=status.bytes_copied / seconds / 1e6,
            mb_copied=status.bytes_copied / 1e6,
            asked="at least 100 MB/s",
            ledgers=status.repaired,
            coordinator_cpu_s_per_gb=(process_time() - cpu) / (status.bytes_copied / 1e9),
        )
        await ledgers.stop()
    finally:
        for each in bookies:
            each.kill()
            each.wait()
        await directory.stop()
        await store.close()


def copy() -> None:
    root = Path(tempfile.mkdtemp(prefix="quire-bench-"))
    server = ZooKeeperServer(root / "zookeeper")
    server.start()
    try:
        uvloop.run(measure(root, f"{server.url}/bench?session_timeout=10s", GIB))
    finally:
        server.kill()
        shutil.rmtree(root)


async def copied(metadata: str, *, more_than: int = -1) -> int:
    """Wait until the coordinator has copied more than `more_than` bytes, and return their number."""
    store = await open_store(metadata)
    try:
        async with asyncio.timeout(BEGIN_S):
            while True:
                node = await store.get(paths.REPAIR_PROGRESS)
                progress = decode(RepairRecord, node.value, paths.REPAIR_PROGRESS)
                if progress.bytes_copied > more_than:
                    return progress.bytes_copied
                await asyncio.sleep(0.2)
    finally:
        await store.close()


def steady() -> None:
    """Measure the p99 of a steady load, alone and during a repair at the default rate."""
    os.environ |= {"QUIRE_REPAIR_DELAY_MS": "1s", "QUIRE_REPAIR_LOOK_MS": "1s"}
    old = ("--prefix", "old", "--size", 16 * KIB, "--count", OLD_BYTES // (16 * KIB), "--warmup", 0)
    rate = ("--size", KIB, "--rate", 5000, "--outstanding", 50_000, "--seconds", 12)
    with fresh(BOOKIES) as cluster:
        finish(load(cluster, "repair, filling", *old, "--seconds", 600))
        finish(load(cluster, "repair, 1 KiB at 5,000/s, no repair", *rate))
        os.kill(cluster.bookies[0], signal.SIGKILL)
        before, begin = asyncio.run(copied(cluster.metadata, more_than=0)), perf_counter()
        finish(load(cluster, "repair, 1 KiB at 5,000/s, repair runs", *rate))
        after = asyncio.run(copied(cluster.metadata))
        show(
            "repair at its default rate",
            mb_per_s=(after - before) / (perf_counter() - begin) / 1e6,
            mb_copied=after / 1e6,
            asked="the p99 rises by at most half",
        )


if __name__ == "__main__":
    ask({"copy": copy, "steady": steady})
