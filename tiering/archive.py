"""Archive: uploads sealed segments to the object store, verifies the objects, and opens them for reading.

    name       segments/LEDGER-CLUSTER-UNIQUE     never reused: a second attempt of an upload creates another object
    upload     stream the blocks from the segment's reader, verify each; then write index and footer
    verify     read the object back in full, and check every checksum, row and total
    prove      read the object again before the bookies' copy is deleted, and compare only checksums
    pointer    store, name, length and the footer's checksum, which the caller records in the metadata store

LEDGER and UNIQUE have 16 hex digits, CLUSTER has the 32 hex digits of the cluster's id. Older versions used the name
segments/LEDGER-UNIQUE, without a cluster. The cluster's id is in the name and in the label, not in the object's bytes.
So a listing shows which cluster owns each object, and older versions can still read the object's format.

Only the pointer makes an object part of a topic. A crash or an error before the pointer is recorded leaves an object
without a record, which `scrub` finds. An upload with an unknown outcome is verified like any other.

The operator may change the archive's store. A segment whose pointer names a former store is read from that store. If
the former store does not have the object, the segment is read from the current store, because the operator may have
moved the object.

An object that a record names is *damaged* if it is missing or fails a check. A caller that finds damage reports it with
`note_damage`. Damage is logged once, counted, and shown with the topic, until the object passes a full check, or is
deleted, for example after another upload (`Offloader.repair`).

A *label* beside each object contains the segment's topic and record, in case the metadata store is lost
(`segment_label`).

An object may have a *sidecar*, a second object that is derived from it and stored beside it (`sidecar_of`).
`quire.spark_source.sidecar` creates and reads sidecars. Reads of segments do not depend on them. A sidecar is deleted
before its object.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID, uuid4

from msgspec.structs import replace

from quire.identity.place import Place
from quire.identity.stores import StoreRole
from quire.metadata.records import ArchivePointer, SegmentRecord
from quire.objects.open import open_store
from quire.objects.store import ObjectStore, location_of
from quire.runtime import slow
from quire.runtime.clock import Clock
from quire.runtime.errors import CorruptionError, DiskFull, NotFound, OutcomeUnknown, QuireError, Unavailable
from quire.runtime.limits import MIB
from quire.runtime.metrics import Histogram
from quire.tiering import segment_label
from quire.tiering.read_back import ArchiveCache, ArchiveReader, Chunk, fetch_runs, find_home, load_index
from quire.tiering.segment_object import Index, Row, SegmentBuilder, SegmentError, footer_crc
from quire.wire.block import Buffer, peek
from quire.wire.block_runs import split

if TYPE_CHECKING:
    from quire.wire.publish_time import PublishTimes

PREFIX: Final = "segments/"
_NAME: Final = re.compile(rf"{PREFIX}[0-9a-f]{{16}}-([0-9a-f]{{32}})-.+")
_SIDECAR: Final = ".parquet"
STEP_BYTES: Final = MIB
VERIFY_BYTES: Final = 4 * MIB
BLOCKS_PER_TURN: Final = 200
"""Number of blocks that are verified between two yields to the event loop: about a millisecond of work."""
ENTRIES_PER_TURN: Final = 1_000
"""Number of entries whose publish times are read between two yields to the event loop: about a millisecond of work."""
SLOW_BYTES_PER_S: Final = 4 * MIB
"""Throughput in bytes per second below which an upload is logged as slow."""

log = logging.getLogger(__name__)


def name_of(ledger_id: int, cluster: str, unique: str) -> str:
    """Return the name of a new segment object."""
    name = f"{PREFIX}{ledger_id:016x}-{UUID(cluster).hex}-{unique}"
    assert cluster_of(name) == cluster, name
    return name


def cluster_of(name: str) -> str:
    """Return the cluster id in an object's name; "" for a name that an older version wrote."""
    found = _NAME.fullmatch(name)
    return str(UUID(found[1])) if found is not None else ""


async def find_cluster(objects: ObjectStore, name: str) -> str:
    """Return the cluster id in an object's name, else in its label; "" if neither contains one.

    Raises `Unavailable`.
    """
    try:
        return cluster_of(name) or (await segment_label.read(objects, segment_label.label_of(name))).cluster
    except (NotFound, CorruptionError):
        return ""


def sidecar_of(name: str) -> str:
    """Return the name of an object's sidecar."""
    return name + _SIDECAR


def object_of(name: str) -> str:
    """Return the segment object's name, given the name of the object, its sidecar or its label."""
    return name.removesuffix(_SIDECAR).removesuffix(segment_label.SUFFIX)


class SegmentReader(Protocol):
    """Reader of one segment's blocks, on bookies or in the archive."""

    async def read(self, first_entry: int, bytes_max: int) -> list[Buffer]:
        """Return whole, verified blocks; the first contains `first_entry`. Return [] after the segment's end."""
        ...

    async def find_time(self, time_ms: int) -> int:
        """Return an entry such that no block with a clock (ms) of `time_ms` or later lies before it."""
        ...


class Archive:
    """Archive in one object store. `unique` generates the unique part of object names."""

    def __init__(
        self,
        place: Place,
        clock: Clock,
        *,
        cache: ArchiveCache | None = None,
        unique: Callable[[], str] = lambda: uuid4().hex[:16],
    ) -> None:
        self.place = place
        self.store = place.objects
        self.cache = cache or ArchiveCache(clock=clock)
        self._clock = clock
        self._unique = unique
        self._others: dict[str, ObjectStore] = {}
        self.upload_s = Histogram()
        """Duration of uploading and verifying a segment, in seconds."""
        self.damaged: dict[str, str] = {}
        """Descriptions of damage, by object name."""

    async def offload(
        self, topic: str, segment: SegmentRecord, reader: SegmentReader, generation: int = 0
    ) -> SegmentRecord:
        """Upload a sealed segment and verify the object.

        Return the segment's record with the object's pointer and publish times; the caller stores it. Raises
        `CorruptionError` (in the source or the object), `Unavailable`, `OutcomeUnknown`, `DiskFull`, `WrongCluster`.
        After an error, the segment is not archived, and another attempt creates another object.
        """
        assert segment.is_sealed and segment.last_entry >= 0, (
            "only a sealed segment with entries has an object"
        )
        await self.place.enter()
        room_bytes = await self.store.room_bytes()
        if room_bytes is not None and room_bytes < segment.bytes:
            raise DiskFull(
                f"{self.store.url} has {max(0, room_bytes)} bytes left, but segment {segment.ledger_id} of {topic} "
                f"has {segment.bytes} bytes: free space on that disk, or move the archive to a larger one"
            )
        began_s = self._clock.monotonic()
        name = name_of(segment.ledger_id, self.place.cluster, self._unique())
        upload = _SegmentUpload(topic, segment, reader)
        await self._put(name, upload)
        sent_s = self._clock.monotonic() - began_s
        pointer = ArchivePointer(
            store=self.store.url,
            name=name,
            bytes=upload.object_bytes,
            crc=upload.crc,
            archived_ms=self._clock.now_ms(),
            lost_messages=upload.builder.lost_messages,
            upload=0 if segment.archive is None else segment.archive.upload + 1,
        )
        try:
            await self.verify(pointer)
        except NotFound as error:
            raise Unavailable(f"cannot upload segment {segment.ledger_id} of {topic}: {error}") from error
        archived = upload.archived(pointer)
        await self._label(topic, archived, pointer, generation)
        uploaded_s = self._clock.monotonic() - began_s
        self.upload_s.observe(uploaded_s)
        if uploaded_s > max(slow.BOUND.s, segment.bytes / SLOW_BYTES_PER_S):
            parts = {"reading and sending": sent_s, "verifying": uploaded_s - sent_s}
            what = f"segment {segment.ledger_id} of {topic}, {segment.bytes} bytes,"
            slow.tell("upload", what, uploaded_s, parts, topic=topic, ledger=segment.ledger_id)
        return archived

    async def _put(self, name: str, upload: _SegmentUpload) -> None:
        """Upload the object. Also return if the outcome is unknown; the caller then verifies the object.

        A store returns `NotFound` (S3: NoSuchUpload) if the completion of an upload is repeated after a lost response.
        `NotFound` from the source means that the segment was trimmed.
        """
        try:
            await self.store.put(name, upload.parts())
        except OutcomeUnknown:
            if not upload.is_complete:
                raise
        except NotFound as error:
            if upload.is_source_gone:
                raise
            if not upload.is_complete:
                raise Unavailable(f"{self.store.url} ended the upload of object {name}: {error}") from error

    async def _label(
        self, topic: str, segment: SegmentRecord, pointer: ArchivePointer, generation: int
    ) -> None:
        """Write the segment's label beside its object. Raises the store's errors, but never `NotFound`."""
        label = segment_label.SegmentLabel(
            topic=topic,
            segment=replace(segment, archive=pointer),
            generation=generation,
            cluster=self.place.cluster,
        )
        name = segment_label.label_of(pointer.name)
        try:
            await (await self._home_of(pointer)).put_whole(name, [segment_label.make(label)])
        except NotFound as error:
            raise Unavailable(f"cannot put label {name}: {error}") from error

    async def relabel(
        self, topic: str, segment: SegmentRecord, pointer: ArchivePointer, generation: int
    ) -> None:
        """Replace a damaged or missing label. Raises `WrongCluster`, and the store's errors."""
        await self._confirm([pointer])
        await (await self._home_of(pointer)).delete(segment_label.label_of(pointer.name))
        await self._label(topic, segment, pointer, generation)

    async def prove_label(self, topic: str, ledger_id: int, pointer: ArchivePointer) -> None:
        """Check that the label belongs to the object's segment. Raises `NotFound`, `CorruptionError`, `Unavailable`."""
        name = segment_label.label_of(pointer.name)
        label = await segment_label.read(await self._home_of(pointer), name)
        if (label.topic, label.segment.ledger_id) != (topic, ledger_id) or not self._is_own(label):
            raise CorruptionError(
                f"label {name} belongs to another segment: {label.segment.ledger_id} of {label.topic}"
            )

    def _is_own(self, label: segment_label.SegmentLabel) -> bool:
        return label.cluster in ("", self.place.cluster)

    def open(self, pointer: ArchivePointer) -> ArchiveReader:
        """Return a reader of the segment; send no request yet. Raises `ConfigurationError` for an unusable store."""
        return ArchiveReader(self.store_of(pointer), pointer, self.cache, self.store)

    async def verify(self, pointer: ArchivePointer, times: PublishTimes | None = None) -> None:
        """Read the object in full; check every block, the index and the totals. Add publish times to `times`, if given.

        Raises `SegmentError` with object and offset, `NotFound`, `Unavailable`.
        """
        store = await self._home_of(pointer)
        index = await load_index(store, pointer)
        builder = SegmentBuilder(index.footer.ledger_id)
        for rows in index.slices(VERIFY_BYTES):
            chunk = await store.run(_fetch(store, index, rows))
            for number in rows:
                row = index.row(number)
                run = chunk.content[row.offset - chunk.offset : row.end - chunk.offset]
                await _prove_run(builder, run, row, index.place, times)
        if not builder.finish()[0].says_the_same(index.footer):
            raise SegmentError(
                "a segment's blocks do not match the totals in its footer", index.place, builder.blocks_bytes
            )
        self.damaged.pop(pointer.name, None)

    async def is_there(self, pointer: ArchivePointer) -> bool:
        """Return whether the object exists with the recorded length; its content is not read. Raises `Unavailable`."""
        try:
            return await (await self._home_of(pointer)).size(pointer.name) == pointer.bytes
        except NotFound:
            return False

    async def prove(self, pointer: ArchivePointer) -> None:
        """Read the object in full, and check that its bytes have not changed since `verify`.

        It costs a third of the CPU time of `verify`, and runs on a helper thread. Raises the errors of `verify`.
        """
        store = await self._home_of(pointer)
        index = await load_index(store, pointer)
        for rows in index.slices(VERIFY_BYTES):
            await store.run(_fetch(store, index, rows))
        self.damaged.pop(pointer.name, None)

    def note_damage(self, pointer: ArchivePointer, segment: str, error: QuireError) -> str:
        """Note damage of an object that the record of `segment` names, and log new damage; return a description."""
        what = str(error)
        if isinstance(error, NotFound):
            what = f"object {pointer.name} is missing in {pointer.store}"
        if pointer.name not in self.damaged:
            log.error(
                "the archived copy of %s is damaged: %s; if bookies have a copy, upload it again with `quire archive "
                "repair`",
                segment,
                what,
            )
        self.damaged[pointer.name] = what
        return f"the archived copy of {segment} is damaged: {what}"

    async def delete(self, pointers: Sequence[ArchivePointer]) -> None:
        """Delete objects that no record names any longer, each after its label and its sidecar.

        The metadata store and the object stores are verified once, before the first deletion. After a failure, the
        other objects are still deleted, and the last error is raised at the end: `WrongCluster`, `Unavailable`,
        `OutcomeUnknown`. The caller may try again; otherwise, a scrub deletes the remaining objects.
        """
        homes = await self._confirm(pointers)
        failed: QuireError | None = None
        for pointer, store in zip(pointers, homes, strict=True):
            self.damaged.pop(pointer.name, None)
            try:
                await store.delete(segment_label.label_of(pointer.name))
                await store.delete(sidecar_of(pointer.name))
                await store.delete(pointer.name)
            except QuireError as error:
                failed = error
        if failed is not None:
            raise failed

    async def _confirm(self, pointers: Sequence[ArchivePointer]) -> list[ObjectStore]:
        """Verify that the current or former stores of `pointers` belong to the cluster. Return each pointer's store."""
        homes = [await self._home_of(pointer) for pointer in pointers]
        for store in {location_of(home.url): home for home in homes}.values():
            if store is self.store:
                await self.place.confirm()
            else:  # a former store that this cluster recorded, perhaps before stores had markers
                former = Place(self.place.metadata, store, self.place.cluster, StoreRole.ARCHIVE)
                await former.enter([store.url])  # the first call verifies both stores
        return homes

    def store_of(self, pointer: ArchivePointer) -> ObjectStore:
        """Return the store that the pointer names. Raises `ConfigurationError`."""
        if location_of(pointer.store) == location_of(self.store.url):
            return self.store
        return self._open(pointer.store)

    async def _home_of(self, pointer: ArchivePointer) -> ObjectStore:
        """Return the store that has the object; if no store has it, the store that the pointer names.

        Raises the errors of `store_of`, and `Unavailable`.
        """
        return await find_home(pointer, self.store_of(pointer), self.store)

    def _open(self, url: str) -> ObjectStore:
        if url not in self._others:
            self._others[url] = open_store(url)
        return self._others[url]

    async def close(self) -> None:
        """Cancel reads in progress and close the stores."""
        await self.cache.close()
        for store in (self.store, *self._others.values()):
            await store.close()


class _SegmentUpload:
    """Source of one segment object's bytes, which are generated during the upload."""

    def __init__(self, topic: str, segment: SegmentRecord, reader: SegmentReader) -> None:
        self._what = f"segment {segment.ledger_id} of {topic}"
        self._segment = segment
        self._reader = reader
        self.builder = SegmentBuilder(segment.ledger_id)
        from quire.wire.publish_time import PublishTimes  # here, because importing protobuf slows the start

        self._times = PublishTimes()
        self.object_bytes = 0
        self.crc = 0
        self.is_source_gone = False

    @property
    def is_complete(self) -> bool:
        """True if the source was read to its end, so that `object_bytes` and `crc` are known."""
        return self.object_bytes > 0

    async def parts(self) -> AsyncIterator[Buffer]:
        builder = self.builder
        while builder.next_entry <= self._segment.last_entry:
            try:
                blocks = await self._reader.read(builder.next_entry, STEP_BYTES)
            except NotFound:
                self.is_source_gone = True
                raise
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
            await add_blocks(self.builder, blocks)
        except CorruptionError as error:
            raise CorruptionError(f"{self._what} cannot be archived: {error}") from error
        await add_times(self._times, blocks)

    def archived(self, pointer: ArchivePointer) -> SegmentRecord:
        """Return the segment's record with the pointer to its verified object and the publish times."""
        times = self._times
        if not times:  # all messages of the segment were lost and given up
            return replace(self._segment, archive=pointer)
        return replace(
            self._segment,
            archive=pointer,
            publish_min_ms=times.min_ms,
            publish_max_ms=times.max_ms,
            publish_ahead_ms=times.ahead_ms,
        )

    def _finish(self) -> bytes:
        footer, tail = self.builder.finish()
        segment = self._segment
        found = (footer.last_entry, footer.message_count, footer.first_index)
        recorded = (segment.last_entry, segment.messages, segment.first_index)
        if found != recorded:
            raise CorruptionError(
                f"{self._what} has (last entry, messages, first index) {found}, but its record has {recorded}"
            )
        self.object_bytes = footer.object_bytes
        self.crc = footer_crc(tail)
        return tail


async def add_blocks(builder: SegmentBuilder, blocks: Sequence[Buffer]) -> None:
    """Verify blocks and add them to `builder`; yield to the event loop after every `BLOCKS_PER_TURN` blocks."""
    for start in range(0, len(blocks), BLOCKS_PER_TURN):
        for block in blocks[start : start + BLOCKS_PER_TURN]:
            builder.add(block)
        await asyncio.sleep(0)


async def add_times(times: PublishTimes, blocks: Sequence[Buffer]) -> None:
    """Add the publish times of verified blocks to `times`; yield to the loop after about `ENTRIES_PER_TURN` entries."""
    looked_at = 0
    for block in blocks:
        header = peek(block)
        times.add(block, header)
        looked_at += header.entry_count
        if looked_at >= ENTRIES_PER_TURN:
            looked_at = 0
            await asyncio.sleep(0)


def _fetch(store: ObjectStore, index: Index, rows: range) -> Callable[[], Chunk]:
    return lambda: fetch_runs(store.blocking, index, rows)


async def _prove_run(
    builder: SegmentBuilder, run: memoryview, row: Row, place: str, times: PublishTimes | None
) -> None:
    """Verify the blocks of a run, and that its row describes the first block.

    The caller has verified the run's checksum. Add the blocks' publish times to `times`, if given.
    """
    blocks = split(run)
    first = peek(blocks[0])
    if (first.first_entry, first.first_index, first.clock_ms) != row[:3]:
        raise SegmentError("an index row does not describe the run at its offset", place, row.offset)
    try:
        await add_blocks(builder, blocks)
    except CorruptionError as error:
        raise SegmentError(str(error), place, builder.blocks_bytes) from error
    if times is not None:
        await add_times(times, blocks)
