"""Reading a segment back from its object: the same question as a ledger's reader answers, the same answer.

    entry ─ index row ─ chunk of whole runs ─ blocks, as views
            (cached)    (cached, read ahead)

An object is read in *chunks*: the runs that begin within one stretch of `read_bytes_best` bytes of it, so that
readers of one segment share chunks wherever they are in it. A chunk is fetched by one range read and proven, run by
run against its index row, on a helper thread; what is in the cache is proven. A reader that goes on where it stopped
has the next chunks fetched ahead.

`ArchiveCache` is shared by all readers of a process. It is bounded in bytes: chunks, indexes and what is on its way
each. Two readers that want the same chunk make one fetch, and one that goes away does not end it for the other.

Damage is a `SegmentError` that names object and offset; a missing object is `NotFound`: the metadata store names it, so
it is a loss, and for the caller an error as any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from quire.metadata.records import ArchivePointer
from quire.objects.fetched import Fetched
from quire.objects.store import BlockingStore, ObjectStore
from quire.runtime import slow
from quire.runtime.clock import Clock, SystemClock
from quire.runtime.limits import ARCHIVE_CACHE_BYTES, ARCHIVE_INDEX_CACHE_BYTES
from quire.runtime.metrics import Histogram
from quire.tiering.segment_object import (
    FOOTER_BYTES,
    TAIL_GUESS_BYTES,
    Index,
    SegmentError,
    footer_crc,
    place_of,
    read_footer,
    verify_run,
)
from quire.wire.block import Buffer, peek
from quire.wire.block_runs import first_blocks, skip_to_entry

CHUNKS_AHEAD: Final = 3
"""Chunks fetched ahead of a sequential reader."""


class ArchiveReader:
    """A `SegmentReader` over one object. Any number of reads may run at once."""

    def __init__(self, store: ObjectStore, pointer: ArchivePointer, cache: ArchiveCache) -> None:
        self._store = store
        self._pointer = pointer
        self._cache = cache
        self._next_entry = -1

    async def index(self) -> Index:
        """The segment's index and totals. Raises `SegmentError`, `NotFound`, `Unavailable`."""
        return await self._cache.index(self._store, self._pointer)

    async def read(self, first_entry: int, bytes_max: int) -> list[Buffer]:
        """Whole, proven blocks, the first contains `first_entry`; [] after the segment's end.

        At least one block, then as many as `bytes_max` and the chunk allow. `SegmentError`, `NotFound`, `Unavailable`.
        """
        index = await self.index()
        if first_entry > index.footer.last_entry:
            return []
        number = index.find_entry(first_entry)
        stretch = self._stretch_of(index, number)
        is_sequential = first_entry == self._next_entry
        self._read_ahead(index, range(stretch, stretch + 1 + CHUNKS_AHEAD) if is_sequential else range(0))
        chunk = await self._cache.chunk(self._store, index, stretch)
        start = index.row(number).offset - chunk.offset
        start = skip_to_entry(chunk.content, start, first_entry)
        blocks = first_blocks(chunk.content[start:], bytes_max)
        self._next_entry = peek(blocks[-1]).last_entry + 1
        return blocks

    async def find_time(self, time_ms: int) -> int:
        """The entry where reading must begin so that no block whose clock is `time_ms` or later is missed."""
        index = await self.index()
        return index.row(index.find_time(time_ms)).first_entry

    def _stretch_of(self, index: Index, number: int) -> int:
        return index.row(number).offset // self._store.read_bytes_best

    def _read_ahead(self, index: Index, stretches: range) -> None:
        for stretch in stretches:
            self._cache.fetch_ahead(self._store, index, stretch)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Proven bytes of an object from `offset` on: whole runs."""

    offset: int
    content: memoryview


class ArchiveCache:
    """All methods on the loop."""

    def __init__(
        self,
        chunk_bytes_max: int = ARCHIVE_CACHE_BYTES,
        index_bytes_max: int = ARCHIVE_INDEX_CACHE_BYTES,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self.read_s = Histogram()
        """How long each read of a chunk from the store took."""
        self._indexes: Fetched[Index] = Fetched(index_bytes_max, lambda index: index.memory_bytes)
        self._chunks: Fetched[Chunk] = Fetched(chunk_bytes_max, lambda chunk: len(chunk.content))

    @property
    def bytes_held(self) -> int:
        """What the cache holds, in bytes, for metrics."""
        return self._indexes.bytes_held + self._chunks.bytes_held

    async def index(self, store: ObjectStore, pointer: ArchivePointer) -> Index:
        key = (store.url, pointer.name)
        return self._indexes.get(key) or await self._indexes.fetch(key, lambda: load_index(store, pointer))

    async def chunk(self, store: ObjectStore, index: Index, stretch: int) -> Chunk:
        """The runs of the object that begin within stretch number `stretch`; there must be one."""
        key = (store.url, index.object_name, stretch)
        return self._chunks.get(key) or await self._chunks.fetch(
            key, lambda: self._load(store, index, stretch)
        )

    def fetch_ahead(self, store: ObjectStore, index: Index, stretch: int) -> None:
        """Begin to fetch a chunk, if there is room for another fetch; nothing if the stretch has no run."""
        key = (store.url, index.object_name, stretch)
        # Looking at what is there already makes it younger than the chunk being read, which is needed no longer.
        if self._chunks.get(key) is None and _rows_of(index, stretch, store.read_bytes_best):
            self._chunks.fetch_ahead(key, lambda: self._load(store, index, stretch))

    async def _load(self, store: ObjectStore, index: Index, stretch: int) -> Chunk:
        began_s = self._clock.monotonic()
        chunk = await _load_chunk(store, index, stretch)
        took_s = self._clock.monotonic() - began_s
        self.read_s.observe(took_s)
        if took_s > slow.BOUND.s:
            slow.tell(
                "read of the archive", f"{index.object_name} in {store.url}", took_s, object=index.object_name
            )
        return chunk

    async def close(self) -> None:
        """End what is on its way and forget all."""
        await self._indexes.close()
        await self._chunks.close()


async def load_index(store: ObjectStore, pointer: ArchivePointer) -> Index:
    """Footer and index of an object, proven against its pointer, in one or two range reads."""
    place = place_of(pointer.name, store.url)
    guess = min(TAIL_GUESS_BYTES, pointer.bytes)
    if guess < FOOTER_BYTES:
        raise SegmentError("a pointer tells of an object too short for a segment", place, 0)
    tail = await store.get_range(pointer.name, pointer.bytes - guess, guess)
    footer = read_footer(tail, pointer.bytes, place)
    if footer_crc(tail) != pointer.crc:
        raise SegmentError("an object is not the one that was recorded", place, pointer.bytes - FOOTER_BYTES)
    needed = footer.index_bytes + FOOTER_BYTES
    if needed > guess:
        tail = await store.get_range(pointer.name, pointer.bytes - needed, needed)
    return Index(footer, tail, pointer.name, store.url)


async def _load_chunk(store: ObjectStore, index: Index, stretch: int) -> Chunk:
    rows = _rows_of(index, stretch, store.read_bytes_best)
    return await store.run(lambda: fetch_runs(store.blocking, index, rows))


def fetch_runs(store: BlockingStore, index: Index, rows: range) -> Chunk:
    """Read the runs of `rows` in one range and prove each. Blocks: for helper threads and Spark's executors."""
    first, last = index.row(rows[0]), index.row(rows[-1])
    content = memoryview(store.get_range(index.object_name, first.offset, last.end - first.offset))
    for number in rows:
        row = index.row(number)
        verify_run(content[row.offset - first.offset : row.end - first.offset], row, index.place)
    return Chunk(first.offset, content)


def _rows_of(index: Index, stretch: int, stretch_bytes: int) -> range:
    return range(index.find_offset(stretch * stretch_bytes), index.find_offset((stretch + 1) * stretch_bytes))
