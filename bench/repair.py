"""How fast repair copies what a lost bookie held: four bookies and ZooKeeper as processes, the coordinator in this one.

    python -m bench.repair [MiB]

One bookie is killed; every ledger that it held is copied to others, as fast as it goes. The metadata store is a real
ZooKeeper; the default rate (32 MiB/s) is not used here, for it is what is asked of it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random
from time import perf_counter, process_time

import uvloop

from bench.report import show
from quire.ledger.bookie_client import BookieClient
from quire.ledger.directory import ClusterDirectory
from quire.ledger.ledgers import Ledgers
from quire.ledger.memory_cluster import Listener
from quire.ledger.repair import Repair, RepairSettings
from quire.ledger.settings import LedgerSettings
from quire.metadata.open import open_store
from quire.metadata.zookeeper_server import ZooKeeperServer
from quire.runtime.clock import SystemClock
from quire.runtime.limits import GIB, KIB, MIB
from quire.wire import block

BOOKIES = 4
LEDGER_BYTES = 64 * MIB
ENTRIES = 250
"""Of 1 KiB in a block."""


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
    store = await open_store(metadata)
    directory = ClusterDirectory(store, lambda bookie: BookieClient(bookie.address))
    bookies = [start_bookie(root / f"bookie-{number}", metadata) for number in range(BOOKIES)]
    try:
        for each in bookies:
            assert each.stdout is not None and each.stdout.readline().startswith("ready ")
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


def main() -> None:
    total_bytes = int(sys.argv[1]) * MIB if len(sys.argv) > 1 else GIB
    root = Path(tempfile.mkdtemp(prefix="quire-bench-"))
    server = ZooKeeperServer(root / "zookeeper")
    server.start()
    try:
        uvloop.run(measure(root, f"{server.url}/bench?session_timeout=4s", total_bytes))
    finally:
        server.kill()
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
