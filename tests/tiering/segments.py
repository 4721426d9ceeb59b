"""Segments in memory for the tests of this room."""

from __future__ import annotations

import random
from collections.abc import Sequence

from quire.metadata.records import ArchivePointer, SegmentRecord
from quire.objects.store import ObjectInfo, ObjectStore
from quire.tiering.archive import Archive, SegmentReader
from quire.tiering.segment_label import SUFFIX
from quire.wire import block
from quire.wire.block import Buffer

TOPIC = "persistent://t/n/x"
CLOCK_MS = 1_700_000_000_000


class Source:
    """A segment's reader over blocks in memory."""

    def __init__(self, blocks: Sequence[Buffer]) -> None:
        self.blocks = list(blocks)

    async def read(self, first_entry: int, bytes_max: int) -> list[Buffer]:
        found: list[Buffer] = []
        for one in self.blocks:
            if block.peek(one).last_entry >= first_entry and (not found or sum(map(len, found)) < bytes_max):
                found.append(one)
        return found

    async def find_time(self, time_ms: int) -> int:
        return 0


def make_blocks(count: int, entry_bytes: int, seed: int = 1, ledger_id: int = 5) -> list[Buffer]:
    rng = random.Random(seed)
    blocks: list[Buffer] = []
    entry = 0
    for number in range(count):
        entries = [rng.randbytes(entry_bytes) for _ in range(rng.randint(1, 9))]
        blocks.append(block.cut(ledger_id, entry, entry - 1, CLOCK_MS + number, 100 + entry, entries))
        entry += len(entries)
    return blocks


def record_of(blocks: Sequence[Buffer]) -> SegmentRecord:
    first, last = block.peek(blocks[0]), block.peek(blocks[-1])
    return SegmentRecord(
        ledger_id=first.ledger_id,
        first_index=first.first_index,
        sealed_ms=1,
        last_entry=last.last_entry,
        messages=last.last_entry + 1,
        bytes=sum(map(len, blocks)),
        first_clock_ms=first.clock_ms,
        last_clock_ms=last.clock_ms,
    )


async def offload(archive: Archive, segment: SegmentRecord, reader: SegmentReader) -> ArchivePointer:
    """Upload a segment; returns the pointer to its object."""
    pointer = (await archive.offload(TOPIC, segment, reader)).archive
    assert pointer is not None
    return pointer


async def but_labels(store: ObjectStore) -> list[ObjectInfo]:
    """All objects but the labels beside them."""
    return [info for info in await store.list() if not info.name.endswith(SUFFIX)]
