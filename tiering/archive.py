"""The archive: puts a sealed segment into the object store, proves that it is there, and opens it again.

    name       segments/LEDGER-UNIQUE        never used twice: an upload that is tried again is another object
    upload     blocks streamed from the segment's reader, each proven; then index and footer
    verify     the object read back in full: every checksum, every row, every total
    prove      read once more, before the bookies' copy goes: the checksums alone, which hold what was verified
    pointer    store, name, length and the footer's checksum; recorded by the caller

Nothing but the pointer makes an object part of a topic. A crash or an error at any step before it was recorded leaves
an object that nobody names, which `scrub` finds. An upload whose outcome is unknown is looked at: verifying tells.

A segment recorded in another store than this archive's (the archive was moved) is read from where it is.

An object that a record names and that is missing or does not prove is *damaged*. Who meets one says so (`note_damage`):
it is logged once, counted, and shown with the topic, until it is proven whole or deleted, say because it was uploaded
again under another name (`Offloader.repair`).

A *label* beside each object says whose segment it is, should the metadata store be lost (`segment_label`).

An object may have a *sidecar*, derived from it and beside it (`sidecar_of`; `quire.spark_source.sidecar` makes and
reads it). Nothing here depends on one; it goes before its object does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, Protocol
from uuid import uuid4

from msgspec.structs import replace

from quire.metadata.records import ArchivePointer, SegmentRecord
from quire.objects.open import open_store
from quire.objects.store import ObjectStore
from quire.runtime import slow
from quire.runtime.clock import Clock
from quire.runtime.errors import CorruptionError, DiskFull, NotFound, OutcomeUnknown, QuireError, Unavailable
from quire.runtime.limits import MIB
from quire.runtime.metrics import Histogram
from quire.tiering import segment_label
from quire.tiering.read_back import ArchiveCache, ArchiveReader, Chunk, fetch_runs, load_index
from quire.tiering.segment_object import Index, Row, SegmentBuilder, SegmentError, footer_crc
from quire.wire.block import Buffer, peek
from quire.wire.block_runs import split

PREFIX: Final = "segments/"
_SIDECAR: Final = ".parquet"
STEP_BYTES: Final = MIB
VERIFY_BYTES: Final = 4 * MIB
BLOCKS_PER_TURN: Final = 200
SLOW_BYTES_PER_S: Final = 4 * MIB
"""An upload takes as long as its bytes need: one that is slower than this is told of."""
"""Blocks proven before the loop gets a turn: about a millisecond."""

log = logging.getLogger(__name__)


def sidecar_of(name: str) -> str:
    """The name of an object's sidecar."""
    return name + _SIDECAR


def object_of(name: str) -> str:
    """The name of the object that a sidecar or a label, or the object itself, belongs to."""
    return name.removesuffix(_SIDECAR).removesuffix(segment_label.SUFFIX)


class SegmentReader(Protocol):
    """Blocks of one segment, wherever it lies."""

    async def read(self, first_entry: int, bytes_max: int) -> list[Buffer]:
        """Whole, verified blocks, the first contains `first_entry`; [] after the segment's end."""
        ...

    async def find_time(self, time_ms: int) -> int:
        """The entry where reading must begin so that no block whose clock is `time_ms` or later is missed."""
        ...


class Archive:
    """`unique` makes the part of a name that is never used twice."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        *,
        cache: ArchiveCache | None = None,
        unique: Callable[[], str] = lambda: uuid4().hex,
    ) -> None:
        self.store = store
        self.cache = cache or ArchiveCache(clock=clock)
        self._clock = clock
        self._unique = unique
        self._others: dict[str, ObjectStore] = {}
        self.upload_s = Histogram()
        """How long it took to upload and verify a segment."""
        self.damaged: dict[str, str] = {}
        """What is wrong with objects that were met damaged or missing, by name."""

    async def offload(self, topic: str, segment: SegmentRecord, reader: SegmentReader) -> ArchivePointer:
        """Upload a sealed segment and verify the object; returns the pointer, which the caller records.

        Raises `CorruptionError` (at the source, or what came back), `Unavailable`, `OutcomeUnknown`, `DiskFull`;
        then the segment is not archived, and another try makes another object.
        """
        assert segment.is_sealed and segment.last_entry >= 0, (
            "only a sealed segment with entries has an object"
        )
        room_bytes = await self.store.room_bytes()
        if room_bytes is not None and room_bytes < segment.bytes:
            raise DiskFull(
                f"{self.store.url} has room for {max(0, room_bytes)} bytes, and segment {segment.ledger_id} of {topic} "
                f"has {segment.bytes}; free space on that disk, or give the archive another one"
            )
        began_s = self._clock.monotonic()
        name = f"{PREFIX}{segment.ledger_id:016x}-{self._unique()}"
        upload = _SegmentUpload(topic, segment, reader)
        try:
            await self.store.put(name, upload.parts())
        except OutcomeUnknown:
            if not upload.is_complete:
                raise
        sent_s = self._clock.monotonic() - began_s
        pointer = ArchivePointer(
            store=self.store.url,
            name=name,
            bytes=upload.object_bytes,
            crc=upload.crc,
            archived_ms=self._clock.now_ms(),
            lost_messages=upload.lost_messages,
        )
        try:
            await self.verify(pointer)
        except NotFound as error:
            raise Unavailable(f"segment {segment.ledger_id} of {topic} was not uploaded: {error}") from error
        await self._label(topic, segment, pointer)
        uploaded_s = self._clock.monotonic() - began_s
        self.upload_s.observe(uploaded_s)
        if uploaded_s > max(slow.BOUND.s, segment.bytes / SLOW_BYTES_PER_S):
            parts = {"reading and sending": sent_s, "verifying": uploaded_s - sent_s}
            what = f"segment {segment.ledger_id} of {topic}, {segment.bytes} bytes,"
            slow.tell("upload", what, uploaded_s, parts, topic=topic, ledger=segment.ledger_id)
        return pointer

    async def _label(self, topic: str, segment: SegmentRecord, pointer: ArchivePointer) -> None:
        """Say beside the object whose segment it is. Raises as a put does."""
        label = segment_label.SegmentLabel(topic=topic, segment=replace(segment, archive=pointer))
        name = segment_label.label_of(pointer.name)
        await self.store_of(pointer).put_whole(name, [segment_label.make(label)])

    async def relabel(self, topic: str, segment: SegmentRecord, pointer: ArchivePointer) -> None:
        """Put the label anew, in the place of one that is damaged or missing. Raises as a put does."""
        await self.store_of(pointer).delete(segment_label.label_of(pointer.name))
        await self._label(topic, segment, pointer)

    async def prove_label(self, topic: str, ledger_id: int, pointer: ArchivePointer) -> None:
        """Whether the object's label says whose it is. Raises `NotFound`, `CorruptionError`, `Unavailable`."""
        name = segment_label.label_of(pointer.name)
        label = await segment_label.read(self.store_of(pointer), name)
        if (label.topic, label.segment.ledger_id) != (topic, ledger_id):
            raise CorruptionError(
                f"object {name} says segment {label.segment.ledger_id} of {label.topic}, which it is not"
            )

    def open(self, pointer: ArchivePointer) -> ArchiveReader:
        """A reader of the segment; makes no call yet. Raises `ConfigurationError` for a store it cannot open."""
        return ArchiveReader(self.store_of(pointer), pointer, self.cache)

    async def verify(self, pointer: ArchivePointer) -> None:
        """Read the object in full and prove every block, the index and the totals.

        Raises `SegmentError` with object and offset, `NotFound`, `Unavailable`.
        """
        store = self.store_of(pointer)
        index = await load_index(store, pointer)
        builder = SegmentBuilder(index.footer.ledger_id)
        for rows in index.slices(VERIFY_BYTES):
            chunk = await store.run(_fetch(store, index, rows))
            for number in rows:
                row = index.row(number)
                run = chunk.content[row.offset - chunk.offset : row.end - chunk.offset]
                await _prove_run(builder, run, row, index.place)
        if not builder.finish()[0].says_the_same(index.footer):
            raise SegmentError(
                "a segment's blocks do not add up to its footer", index.place, builder.blocks_bytes
            )
        self.damaged.pop(pointer.name, None)

    async def is_there(self, pointer: ArchivePointer) -> bool:
        """Whether the object is in its store, with its length: a look, no proof. `Unavailable`."""
        try:
            return await self.store_of(pointer).size(pointer.name) == pointer.bytes
        except NotFound:
            return False

    async def prove(self, pointer: ArchivePointer) -> None:
        """Read the object in full: it is, to the checksum, what was verified when it was recorded. As `verify` raises.

        A third of the work of `verify`, and none of it on the loop.
        """
        store = self.store_of(pointer)
        index = await load_index(store, pointer)
        for rows in index.slices(VERIFY_BYTES):
            await store.run(_fetch(store, index, rows))
        self.damaged.pop(pointer.name, None)

    def note_damage(self, pointer: ArchivePointer, segment: str, error: QuireError) -> str:
        """`segment` names the object, and still does so, but `error` was met there. Returns both in one sentence."""
        what = str(error)
        if isinstance(error, NotFound):
            what = f"object {pointer.name} is missing in {pointer.store}"
        if pointer.name not in self.damaged:
            log.error(
                "the archived copy of %s is damaged: %s; `quire archive repair` uploads it again if bookies have it",
                segment,
                what,
            )
        self.damaged[pointer.name] = what
        return f"the archived copy of {segment} is damaged: {what}"

    async def delete(self, pointer: ArchivePointer) -> None:
        """Delete the object, which no record names any more, and before it its label and its sidecar, if it has them.

        `Unavailable`, `OutcomeUnknown` (try again).
        """
        self.damaged.pop(pointer.name, None)
        store = self.store_of(pointer)
        await store.delete(segment_label.label_of(pointer.name))
        await store.delete(sidecar_of(pointer.name))
        await store.delete(pointer.name)

    def store_of(self, pointer: ArchivePointer) -> ObjectStore:
        """Where a segment was recorded to be. Raises `ConfigurationError`."""
        if location_of(pointer.store) == location_of(self.store.url):
            return self.store
        if pointer.store not in self._others:
            self._others[pointer.store] = open_store(pointer.store)
        return self._others[pointer.store]

    async def close(self) -> None:
        """End reads under way and close the stores."""
        await self.cache.close()
        for store in (self.store, *self._others.values()):
            await store.close()


class _SegmentUpload:
    """The bytes of one segment's object, made while they are uploaded."""

    def __init__(self, topic: str, segment: SegmentRecord, reader: SegmentReader) -> None:
        self._what = f"segment {segment.ledger_id} of {topic}"
        self._segment = segment
        self._reader = reader
        self._builder = SegmentBuilder(segment.ledger_id)
        self.object_bytes = 0
        self.crc = 0

    @property
    def is_complete(self) -> bool:
        """True once the source was read to its end, so that `object_bytes` and `crc` are known."""
        return self.object_bytes > 0

    @property
    def lost_messages(self) -> int:
        return self._builder.lost_messages

    async def parts(self) -> AsyncIterator[Buffer]:
        builder = self._builder
        while builder.next_entry <= self._segment.last_entry:
            blocks = await self._reader.read(builder.next_entry, STEP_BYTES)
            if not blocks:
                raise CorruptionError(
                    f"{self._what} ends at entry {builder.next_entry - 1}, not {self._segment.last_entry}"
                )
            await self._add(blocks)
            for block in blocks:
                yield block
        yield self._finish()

    async def _add(self, blocks: Sequence[Buffer]) -> None:
        try:
            await add_blocks(self._builder, blocks)
        except CorruptionError as error:
            raise CorruptionError(f"{self._what} cannot be archived: {error}") from error

    def _finish(self) -> bytes:
        footer, tail = self._builder.finish()
        segment = self._segment
        found = (footer.last_entry, footer.message_count, footer.first_index)
        recorded = (segment.last_entry, segment.messages, segment.first_index)
        if found != recorded:
            raise CorruptionError(
                f"{self._what} has (last entry, messages, first index) {found}, but {recorded} are recorded"
            )
        self.object_bytes = footer.object_bytes
        self.crc = footer_crc(tail)
        return tail


async def add_blocks(builder: SegmentBuilder, blocks: Sequence[Buffer]) -> None:
    """Prove and add blocks, giving the loop a turn now and then."""
    for start in range(0, len(blocks), BLOCKS_PER_TURN):
        for block in blocks[start : start + BLOCKS_PER_TURN]:
            builder.add(block)
        await asyncio.sleep(0)


def _fetch(store: ObjectStore, index: Index, rows: range) -> Callable[[], Chunk]:
    return lambda: fetch_runs(store.blocking, index, rows)


async def _prove_run(builder: SegmentBuilder, run: memoryview, row: Row, place: str) -> None:
    """Prove the blocks of a run, whose checksum was proven, and that its row tells the truth about the first."""
    blocks = split(run)
    first = peek(blocks[0])
    if (first.first_entry, first.first_index, first.clock_ms) != row[:3]:
        raise SegmentError("an index row does not tell of the run at its offset", place, row.offset)
    try:
        await add_blocks(builder, blocks)
    except CorruptionError as error:
        raise SegmentError(str(error), place, builder.blocks_bytes) from error


def location_of(url: str) -> str:
    """A store's URL without how it is reached: two that are the same name the same store."""
    return url.partition("?")[0].rstrip("/")
