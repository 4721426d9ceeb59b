"""Reader of a segment from its object, with the interface of a ledger's reader.

    entry ─ index row ─ chunk of whole runs ─ blocks, as memory views
            (cached)    (cached, read ahead)

A *run* is a sequence of blocks with one row in the index and one checksum. A *stretch* is an aligned range of
`read_bytes_best` bytes of an object. A *chunk* consists of all runs that begin within one stretch, so that all readers
of a segment share chunks. A chunk is fetched by one range read, and each run is verified against its index row, on a
helper thread. Only verified chunks are cached. The next chunks of a sequential reader are prefetched.

`ArchiveCache` is shared by all readers of a process. Its chunks and its indexes are bounded in bytes, its fetches in
number. Concurrent readers of the same chunk share one fetch, which continues if one reader is cancelled.

Damage raises a `SegmentError` with object and offset. A missing object raises `NotFound`. Such an object is lost,
because the metadata store names it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from quire.metadata.records import ArchivePointer
from quire.objects.fetched import Fetched
from quire.objects.store import BlockingStore, ObjectStore
from quire.runtime import slow
from quire.runtime.clock import Clock, SystemClock
from quire.runtime.errors import NotFound
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
"""Number of chunks that are prefetched for a sequential reader."""


class ArchiveReader:
    """`SegmentReader` of one object, which allows concurrent reads.

    The object is in `store`, or was moved to the archive's current store, `present`.
    """

    def __init__(
        self, store: ObjectStore, pointer: ArchivePointer, cache: ArchiveCache, present: ObjectStore
    ) -> None:
        self._store = store
        self._present = present
        self._pointer = pointer
        self._cache = cache
        self._next_entry = -1

    async def index(self) -> Index:
        """Return the segment's index and totals. Raises `SegmentError`, `NotFound`, `Unavailable`."""
        if self._store is not self._present:
            self._store = self._present = await find_home(self._pointer, self._store, self._present)
        return await self._cache.index(self._store, self._pointer)

    async def read(self, first_entry: int, bytes_max: int) -> list[Buffer]:
        """Return whole, verified blocks; the first contains `first_entry`. Return [] after the segment's end.

        At least one block is returned, then as many as `bytes_max` and the chunk allow. Raises `SegmentError`,
        `NotFound`, `Unavailable`.
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
        """Return an entry such that no block with a clock (ms) of `time_ms` or later lies before it."""
        index = await self.index()
        return index.row(index.find_time(time_ms)).first_entry

    def _stretch_of(self, index: Index, number: int) -> int:
        return index.row(number).offset // self._store.read_bytes_best

    def _read_ahead(self, index: Index, stretches: range) -> None:
        for stretch in stretches:
            self._cache.fetch_ahead(self._store, index, stretch)


async def find_home(pointer: ArchivePointer, recorded: ObjectStore, present: ObjectStore) -> ObjectStore:
    """Return the store that has the object: `recorded`, or `present` if it was moved there.

    Return `recorded` if neither store has the object. Names are unique over all stores. Raises `Unavailable`.
    """
    for store in (recorded, present) if recorded is not present else ():
        try:
            await store.size(pointer.name)
            return store
        except NotFound:
            continue
    return recorded


@dataclass(frozen=True, slots=True)
class Chunk:
    """Verified bytes of an archived object from `offset` on: whole runs, each with its own checksum."""

    offset: int
    content: memoryview


class ArchiveCache:
    """Cache of chunks and indexes. All methods run on the event loop."""

    def __init__(
        self,
        chunk_bytes_max: int = ARCHIVE_CACHE_BYTES,
        index_bytes_max: int = ARCHIVE_INDEX_CACHE_BYTES,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self.read_s = Histogram()
        """Latency of each read of a chunk from the store, in seconds."""
        self._indexes: Fetched[Index] = Fetched(index_bytes_max, lambda index: index.memory_bytes)
        self._chunks: Fetched[Chunk] = Fetched(chunk_bytes_max, lambda chunk: len(chunk.content))

    @property
    def bytes_held(self) -> int:
        """Bytes of cached chunks and indexes, for metrics."""
        return self._indexes.bytes_held + self._chunks.bytes_held

    async def index(self, store: ObjectStore, pointer: ArchivePointer) -> Index:
        key = (store.url, pointer.name)
        return self._indexes.get(key) or await self._indexes.fetch(key, lambda: load_index(store, pointer))

    async def chunk(self, store: ObjectStore, index: Index, stretch: int) -> Chunk:
        """Return the runs of the object that begin within stretch number `stretch`; there must be at least one run."""
        key = (store.url, index.object_name, stretch)
        return self._chunks.get(key) or await self._chunks.fetch(
            key, lambda: self._load(store, index, stretch)
        )

    def fetch_ahead(self, store: ObjectStore, index: Index, stretch: int) -> None:
        """Start to fetch a stretch's chunk, if the limit of fetches allows it and a run begins within the stretch."""
        key = (store.url, index.object_name, stretch)
        # `get` also marks a prefetched chunk as recently used, so that it is evicted after the current chunk.
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
        """Cancel fetches, and drop all chunks and indexes."""
        await self._indexes.close()
        await self._chunks.close()


async def load_index(store: ObjectStore, pointer: ArchivePointer) -> Index:
    """Read an object's footer and index in one or two range reads, and verify them by the pointer."""
    place = place_of(pointer.name, store.url)
    guess = min(TAIL_GUESS_BYTES, pointer.bytes)
    if guess < FOOTER_BYTES:
        raise SegmentError("a pointer's length is too short for a segment object", place, 0)
    tail = await store.get_range(pointer.name, pointer.bytes - guess, guess)
    footer = read_footer(tail, pointer.bytes, place)
    if footer_crc(tail) != pointer.crc:
        raise SegmentError("the object's footer differs from its record", place, pointer.bytes - FOOTER_BYTES)
    needed = footer.index_bytes + FOOTER_BYTES
    if needed > guess:
        tail = await store.get_range(pointer.name, pointer.bytes - needed, needed)
    return Index(footer, tail, pointer.name, store.url)


async def _load_chunk(store: ObjectStore, index: Index, stretch: int) -> Chunk:
    rows = _rows_of(index, stretch, store.read_bytes_best)
    return await store.run(lambda: fetch_runs(store.blocking, index, rows))


def fetch_runs(store: BlockingStore, index: Index, rows: range) -> Chunk:
    """Read the runs of `rows` in one range read and verify each. This call blocks its thread."""
    first, last = index.row(rows[0]), index.row(rows[-1])
    content = memoryview(store.get_range(index.object_name, first.offset, last.end - first.offset))
    for number in rows:
        row = index.row(number)
        verify_run(content[row.offset - first.offset : row.end - first.offset], row, index.place)
    return Chunk(first.offset, content)


def _rows_of(index: Index, stretch: int, stretch_bytes: int) -> range:
    return range(index.find_offset(stretch * stretch_bytes), index.find_offset((stretch + 1) * stretch_bytes))
