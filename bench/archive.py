"""Benchmark of the archive on a filesystem: verified upload, sequential read, and one cold look-up.

python -m bench.archive [--directory DIR] [--mib 1024]

CPU time is this process's, over all threads. The sequential read is what a broker does for a consumer that catches up:
one reader reads and verifies the object's blocks in order. Its cache is cold, because direct I/O bypasses the page
cache.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.report import machine, show
from quire.metadata.records import ArchivePointer, SegmentRecord
from quire.objects.filesystem import FilesystemStore
from quire.runtime.clock import SystemClock
from quire.runtime.limits import GIB, MIB
from quire.testing.place import TrustedPlace
from quire.tiering.archive import Archive
from quire.tiering.read_back import ArchiveCache
from quire.wire import block
from quire.wire.block import Buffer

SHAPES = ((16, 16 * 1024), (250, 1024), (1, 1024))
"""Measured block shapes: (entries per block, bytes per entry)."""


class Source:
    """Segment of equal blocks, which are created as they are read. Its own cost is measured, and subtracted."""

    def __init__(self, entry_count: int, entry_bytes: int, size_bytes: int) -> None:
        self._entries = [b"\x0e\x01" + os.urandom(entry_bytes - 2)] * entry_count
        self._first = block.cut(1, 0, -1, 1, 0, self._entries)
        self.entry_count = entry_count
        self.block_count = size_bytes // len(self._first)
        self.cutting_s = 0.0

    def record(self) -> SegmentRecord:
        entries = self.block_count * self.entry_count
        return SegmentRecord(ledger_id=1, sealed_ms=1, last_entry=entries - 1, messages=entries)

    async def read(self, first_entry: int, bytes_max: int) -> list[Buffer]:
        begin = time.thread_time()
        count = max(1, bytes_max // len(self._first))
        last = min(first_entry + count * self.entry_count, self.block_count * self.entry_count)
        blocks = [
            block.cut(1, entry, entry - 1, 1, entry, self._entries)
            for entry in range(first_entry, last, self.entry_count)
        ]
        self.cutting_s += time.thread_time() - begin
        return blocks

    async def find_time(self, time_ms: int) -> int:
        return 0


async def upload(archive: Archive, source: Source) -> ArchivePointer:
    wall, cpu = time.perf_counter(), time.process_time()
    pointer = (await archive.offload("bench", source.record(), source)).archive
    assert pointer is not None
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu - source.cutting_s
    show("upload and verify", MB_s=pointer.bytes / wall / 1e6, cpu_s_per_GiB=cpu * GIB / pointer.bytes)
    return pointer


async def read_in_order(archive: Archive, pointer: ArchivePointer, bytes_max: int) -> int:
    """Read the whole object in order, and return its number of blocks."""
    reader = archive.open(pointer)
    entry = count = 0
    while blocks := await reader.read(entry, bytes_max):
        entry = block.peek(blocks[-1]).last_entry + 1
        count += len(blocks)
    return count


async def read_back(store: FilesystemStore, pointer: ArchivePointer, source: Source) -> None:
    for bytes_max in (256 * 1024, MIB):
        archive = Archive(TrustedPlace(store), SystemClock(), cache=ArchiveCache())
        wall, cpu = time.perf_counter(), time.process_time()
        count = await read_in_order(archive, pointer, bytes_max)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        assert count == source.block_count
        show(
            "read back in order",
            bytes_max=bytes_max,
            MB_s=pointer.bytes / wall / 1e6,
            entries_s=count * source.entry_count / wall,
            cpu_s_per_GiB=cpu * GIB / pointer.bytes,
            cpu_us_per_block=cpu * 1e6 / count,
        )


async def look_up(store: FilesystemStore, pointer: ArchivePointer, source: Source) -> None:
    waits = []
    for number in range(20):
        archive = Archive(TrustedPlace(store), SystemClock(), cache=ArchiveCache())
        begin = time.perf_counter()
        await archive.open(pointer).read(number * source.block_count // 20 * source.entry_count, 1)
        waits.append(time.perf_counter() - begin)
    show("one entry, nothing cached", p50_ms=sorted(waits)[10] * 1e3, max_ms=max(waits) * 1e3)


async def main(directory: Path, size_bytes: int, shapes: Sequence[tuple[int, int]] = SHAPES) -> None:
    show("machine", **machine())
    store = FilesystemStore(directory)
    await store.prepare()
    for entry_count, entry_bytes in shapes:
        show("shape", entries_per_block=entry_count, entry_bytes=entry_bytes)
        source = Source(entry_count, entry_bytes, size_bytes)
        pointer = await upload(Archive(TrustedPlace(store), SystemClock()), source)
        await read_back(store, pointer, source)
        await look_up(store, pointer, source)
        await store.delete(pointer.name)
    await store.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--directory", type=Path, help="on the disk to measure; a temporary one if not given")
    parser.add_argument("--mib", type=int, default=1024, help="size of each segment")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.directory) as made:
        asyncio.run(main(Path(made), given.mib * MIB))
