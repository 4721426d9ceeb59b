"""Benchmark of the entry log alone: append, cold sequential read, and ten thousand tiny ledgers.

    python -m bench.entry_log [--directory DIR] [--mib 1024]

1 MB is 10^6 bytes of blocks. CPU time is this process's, over all threads, including checksums. Reads are cold without
dropping caches, because direct I/O does not use the page cache.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bench.report import machine, show
from quire.bookie.entry_log import EntryLogs
from quire.bookie.index_lmdb import LmdbIndex
from quire.bookie.read_cache import BlockReader
from quire.runtime.disk import RealDisk
from quire.runtime.limits import GIB, KIB, MEMTABLE_BYTES, MIB
from quire.wire.block import Buffer, cut

Runs = list[tuple[int, list[Buffer]]]


@contextmanager
def measured(name: str, size_bytes: Callable[[], int], blocks: Callable[[], int]) -> Iterator[None]:
    """Print the wall-clock and CPU time of the `with` body, per MB and per block."""
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(
        f"{name:42} {size_bytes() / wall / 1e6:7.0f} MB/s {cpu * GIB / size_bytes():7.2f} CPU s/GiB"
        f" {cpu * 1e6 / blocks():7.2f} µs/block"
    )


def make_runs(ledgers: int, blocks_each: int, block_bytes: int, entry_count: int, round_number: int) -> Runs:
    """Return the sorted contents of one memtable. All blocks share the bytes of their entries."""
    entries: list[Buffer] = [bytes(block_bytes // entry_count)] * entry_count
    first = round_number * blocks_each * entry_count
    return [
        (
            ledger_id,
            [
                cut(ledger_id, first + i * entry_count, first + i * entry_count - 1, 1, first, entries)
                for i in range(blocks_each)
            ],
        )
        for ledger_id in range(ledgers)
    ]


def run(
    name: str,
    directory: str,
    total_bytes: int,
    ledgers: int,
    block_bytes: int,
    entry_count: int,
    memtable_bytes: int = MEMTABLE_BYTES,
) -> None:
    """Flush memtables until `total_bytes` are written, then read the ledgers one after another, each from its start."""
    logs = EntryLogs(RealDisk(directory), name)
    logs.open()
    index = LmdbIndex(f"{directory}/{name}-index")
    blocks_each = max(1, memtable_bytes // block_bytes // ledgers)
    rounds = max(1, total_bytes // (ledgers * blocks_each * block_bytes))
    written = blocks = 0
    wall = cpu = 0.0
    for round_number in range(rounds):
        runs = make_runs(ledgers, blocks_each, block_bytes, entry_count, round_number)
        written += sum(len(block) for _, of_ledger in runs for block in of_ledger)
        blocks += ledgers * blocks_each
        wall, cpu = wall - time.perf_counter(), cpu - time.process_time()
        rows = logs.append(runs)
        logs.sync()
        index.commit(rows, {}, b"%d" % round_number)
        wall, cpu = wall + time.perf_counter(), cpu + time.process_time()
    print(
        f"{name + ': append, sync, index':42} {written / wall / 1e6:7.0f} MB/s {cpu * GIB / written:7.2f} CPU s/GiB"
        f" {cpu * 1e6 / blocks:7.2f} µs/block"
    )
    reader = BlockReader(index, logs)
    got = count = 0
    with measured(f"{name}: cold sequential read", lambda: got, lambda: count):
        for ledger_id in range(ledgers):
            entry = 0
            while found := reader.read(ledger_id, entry, MIB):
                entry += len(found) * entry_count
                reader.read_ahead(ledger_id)
                got += sum(map(len, found))
                count += len(found)
    assert (got, count) == (written, blocks)
    index.close()
    logs.close()


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="bench.entry_log")
    parser.add_argument("--directory", help="where to write; a temporary directory by default")
    parser.add_argument("--mib", type=int, default=1024)
    options = parser.parse_args(arguments)
    show("machine", **machine())
    directory = tempfile.mkdtemp(dir=options.directory, prefix="quire-bench-")
    try:
        total = options.mib * MIB
        run("256 KiB blocks", directory, total, 1, 256 * KIB, 16)
        run("16 KiB blocks, 100 ledgers", directory, total, 100, 16 * KIB, 16)
        run("2 KiB blocks, 1 ledger", directory, total // 4, 1, 2 * KIB, 2)
        run("10,000 ledgers, a 200 B block each", directory, 10 * MIB, 10_000, 200, 1, memtable_bytes=0)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
