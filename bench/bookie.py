"""Benchmark of one bookie in this process: write throughput, CPU per entry, latency compared with the disk's, replay.

python -m bench.bookie [DIRECTORY]

For throughput, one writer keeps `IN_FLIGHT` requests in flight. For latency, blocks of one entry are written one at a
time. For comparison, single 4 KiB pages are written durably into a preallocated file on the same disk.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter, process_time

import uvloop

from bench.report import machine, show, usage
from quire.bookie.settings import BookieSettings
from quire.bookie.storage import Storage
from quire.runtime.disk import RealDisk, aligned_buffer
from quire.runtime.limits import MIB
from quire.wire import block
from quire.wire.bookie import AddRequest, Status

IN_FLIGHT = 32
TOTAL_BYTES = 1 << 30


def settings(directory: Path) -> BookieSettings:
    return BookieSettings(journal=str(directory / "journal"), entry_log=str(directory / "entries"))


class Writer:
    """Writer that keeps a number of add requests in flight: it sends the next one when a response arrives."""

    ledgers_used = 0

    def __init__(self, storage: Storage, entry_bytes: int, entry_count: int, ledgers: int = 1) -> None:
        self._storage = storage
        self._entries = [os.urandom(entry_bytes)] * entry_count
        self._first_ledger = Writer.ledgers_used + 1
        Writer.ledgers_used += ledgers
        self._next = [0] * ledgers
        self._turn = 0
        self.bytes = self.blocks = 0

    def cut(self) -> bytes | bytearray | memoryview:
        ledger = self._turn % len(self._next)
        self._turn += 1
        first_entry = self._next[ledger]
        self._next[ledger] += len(self._entries)
        return block.cut(
            self._first_ledger + ledger, first_entry, first_entry - 1, 1, first_entry, self._entries
        )

    async def write(self, total_blocks: int, blocks_per_request: int = 1, in_flight: int = IN_FLIGHT) -> None:
        finished = asyncio.get_running_loop().create_future()
        requests = total_blocks // blocks_per_request
        sent = answered = 0

        def send() -> None:
            nonlocal sent
            sent += 1
            blocks = [self.cut() for _ in range(blocks_per_request)]
            self.bytes += sum(map(len, blocks))
            self.blocks += len(blocks)
            self._storage.add(AddRequest(self._storage.bookie_id, blocks), done)

        def done(statuses: Sequence[Status]) -> None:
            nonlocal answered
            assert not any(statuses), statuses
            answered += 1
            if sent < requests:
                send()
            elif answered == requests:
                finished.set_result(None)

        for _ in range(min(in_flight, requests)):
            send()
        await finished


async def throughput(
    storage: Storage, question: str, size: int, count: int, ledgers: int, per_request: int
) -> None:
    writer = Writer(storage, size, count, ledgers)
    total = min(TOTAL_BYTES // (size * count), 200_000)
    groups, begin, cpu = (
        storage.metrics()["quire_bookie_journal_groups_total"],
        perf_counter(),
        process_time(),
    )
    await writer.write(total, per_request)
    acknowledged_s = perf_counter() - begin
    await storage.flush()
    wall_s, cpu_s = perf_counter() - begin, process_time() - cpu
    show(
        question,
        mb_per_s=writer.bytes / acknowledged_s / 1e6,
        mb_per_s_flushed=writer.bytes / wall_s / 1e6,
        groups_per_s=(storage.metrics()["quire_bookie_journal_groups_total"] - groups) / acknowledged_s,
        cpu_us_per_entry=cpu_s / (writer.blocks * count) * 1e6,
        cpu_us_per_block=cpu_s / writer.blocks * 1e6,
        resident_mb=usage(os.getpid()).resident_bytes / 1e6,
    )


async def latency(storage: Storage, count: int = 3_000) -> list[float]:
    writer = Writer(storage, 100, 1)
    taken = []
    for _ in range(count):
        begin = perf_counter()
        await writer.write(1)
        taken.append(perf_counter() - begin)
    return taken


def disk_alone(directory: Path, count: int = 2_000) -> list[float]:
    disk = RealDisk(directory)
    file = disk.open("probe", create=True)
    zeros = aligned_buffer(8 * MIB)
    file.write(zeros, 0, durable=True)
    page = memoryview(aligned_buffer(4096))
    taken = []
    for i in range(count):
        begin = perf_counter()
        file.write(page, i * 4096, durable=True)
        taken.append(perf_counter() - begin)
    file.close()
    disk.remove("probe")
    return taken


def ms(seconds: list[float], per_cent: int) -> float:
    return statistics.quantiles(seconds, n=100)[per_cent - 1] * 1e3


async def measure(directory: Path) -> None:
    begin = perf_counter()
    storage = Storage(settings(directory))
    await storage.start()
    show("start on an empty directory", ms=(perf_counter() - begin) * 1e3)
    await asyncio.sleep(1)  # until the first spare segment is preallocated
    alone = disk_alone(directory)
    taken = await latency(storage)
    show(
        "a block of 100 B, one at a time",
        p50_ms=ms(taken, 50),
        p99_ms=ms(taken, 99),
        disk_p50_ms=ms(alone, 50),
        disk_p99_ms=ms(alone, 99),
        ratio_p50=ms(taken, 50) / ms(alone, 50),
    )
    await throughput(storage, "1 KiB entries, 200 in a block", 1024, 200, 1, 1)
    await throughput(storage, "1 KiB entries, 200 in a block, again", 1024, 200, 1, 1)
    await throughput(storage, "128 KiB entries, 2 in a block", 128 * 1024, 2, 1, 1)
    await throughput(storage, "1 KiB, one in a block, 1000 ledgers, 100 in a request", 1024, 1, 1_000, 100)
    await throughput(storage, "100 B, one in a block, one in a request", 100, 1, 1, 1)
    await storage.stop()


async def measure_replay(directory: Path) -> None:
    """Measure the time of a start with 1 GiB in the journal and an empty entry log."""
    begin, cpu = perf_counter(), process_time()
    storage = Storage(settings(directory))
    await storage.start()
    show("start with 1 GiB in the journal", s=perf_counter() - begin, cpu_s=process_time() - cpu)
    await storage.stop()


async def fill(directory: Path) -> None:
    """Write 1 GiB without flushing a memtable, and kill this process."""
    storage = Storage(replace(settings(directory), memtable_bytes=1100 * MIB))
    await storage.start()
    await Writer(storage, 1024, 200, 10).write(TOTAL_BYTES // (200 * 1024))
    os._exit(0)


def main() -> None:
    if sys.argv[1:2] == ["--fill"]:
        uvloop.run(fill(Path(sys.argv[2])))
    show("machine", **machine())
    root = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="quire-bench-"))
    for question in (measure_replay, measure):
        directory = root / question.__name__
        directory.mkdir(parents=True)
        if question is measure_replay:
            subprocess.run([sys.executable, "-m", "bench.bookie", "--fill", str(directory)], check=True)
        uvloop.run(question(directory))
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
