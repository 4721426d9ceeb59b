"""The journal's files: which are in use, which are ready to be written over, and one that is always being made ready.

Segments are written over and over, never extended while it matters: a file whose blocks exist already is
written in a third of the time. New segments are pre-written with zeros in the background, in small pieces, and
only while nobody uses them; if one is needed sooner it is taken with its room reserved but not pre-written.

    on the disk   → spare    made and pre-written, or used before, and the mark has passed all that is in it
    spare         → live     `take` and `begin`: a new epoch's header is on disk before its first group
    live          → spare    `recycle`, when the mark has passed its last group
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from quire.bookie.journal_core import GROUP_HEADER_BYTES, SegmentHeader, encode_segment_header
from quire.runtime.disk import PAGE_BYTES, Buffer, Disk, File, Worker, aligned_buffer, pages_up
from quire.runtime.errors import DiskFull, NotFound
from quire.runtime.limits import MIB

log = logging.getLogger(__name__)

PREFIX: Final = "segment-"
_PIECE_BYTES: Final = 1 * MIB
_FIRST_SEGMENT_BYTES: Final = 16 * MIB
"""The segment made while a start waits for it: pre-written in some 10 ms."""


@dataclass(slots=True, eq=False)
class Segment:
    """One file of the journal."""

    disk: Disk
    name: str
    size_bytes: int
    header: SegmentHeader | None = None
    position: int = PAGE_BYTES
    exists: bool = True
    _file: File | None = None

    def create(self) -> None:
        """Make the file, with all its room, durably."""
        self._file = self.disk.open(self.name, create=True)
        self._file.allocate(self.size_bytes)
        self._file.sync()
        self.disk.sync_directory()
        self.exists = True

    def write_header(self) -> None:
        """Make sure that the file is there and begins with its header."""
        if not self.exists:
            self.create()
        assert self.header is not None
        page = aligned_buffer(PAGE_BYTES)
        page.write(encode_segment_header(self.header))
        self.write(page, 0, durable=True)

    def write_zeros(self, offset: int) -> None:
        """Pre-write one piece."""
        size_bytes = min(_PIECE_BYTES, self.size_bytes - offset)
        self.write(memoryview(_zeros())[:size_bytes], offset)

    def write(self, buffer: Buffer, offset: int, *, durable: bool = False) -> None:
        self.opened().write(buffer, offset, durable=durable)

    def opened(self) -> File:
        if self._file is None:
            self._file = self.disk.open(self.name)
        return self._file

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def remove(self) -> None:
        """It may never have been there."""
        try:
            self.disk.remove(self.name)
        except NotFound:
            pass


class SegmentPool:
    """`background` is the thread that makes spare segments."""

    def __init__(
        self,
        disk: Disk,
        background: Worker,
        rng: Random,
        *,
        bookie: bytes,
        segment_bytes: int,
        group_bytes_max: int,
    ) -> None:
        self.smallest_bytes = PAGE_BYTES + pages_up(group_bytes_max + GROUP_HEADER_BYTES)
        """A segment must hold the largest group."""
        assert segment_bytes % PAGE_BYTES == 0 and segment_bytes >= self.smallest_bytes
        assert len(bookie) == 16
        self.disk = disk
        self.segment_bytes = segment_bytes
        self.live: deque[Segment] = deque()
        """Used segments that a replay may need, oldest first; the last one is written to."""
        self.spares: deque[Segment] = deque()
        self.newest = SegmentHeader(0, 0, 0, bookie, 0)
        """Of the last epoch that was begun; its mark is the last one that was heard of."""
        self.next_file = 1
        self.is_dead = False
        """The journal failed: nothing is written to it any more, and no spare is made."""
        self.is_closing = False
        self._background = background
        self._rng = rng
        self._preparing = False

    @property
    def bytes_live(self) -> int:
        """Size of the segments that a replay would need."""
        return sum(segment.size_bytes for segment in self.live)

    def open(self, incarnation: int, first_number: int, on_full: Callable[[bool], None]) -> None:
        """Begin a new epoch in another file, its header on disk before any group. Blocks.

        `on_full` tells, on the loop, whether there is no spare segment and no room for one.
        """
        self._on_full = on_full
        self.disk.sync_directory()  # a spare's name may be in a cache only, if its maker died
        self.newest = self.newest._replace(incarnation=incarnation)
        segment = self._take_spare()
        if segment is None:
            segment = self._new_segment(
                max(min(_FIRST_SEGMENT_BYTES, self.segment_bytes), self.smallest_bytes)
            )
            segment.create()
            for offset in range(0, segment.size_bytes, _PIECE_BYTES):
                segment.write_zeros(offset)
            segment.opened().sync()
        self._begin_epoch(segment, first_number)
        segment.write_header()
        self.live.append(segment)
        self.ensure_spare()

    async def close(self) -> None:
        """Wait for what is under way, then close the files."""
        assert self.is_closing
        await self._background.run(lambda: None)
        for segment in self.live:
            segment.close()

    # -- spare, live, spare again ------------------------------------------------------------------------
    def take(self, first_number: int) -> Segment:
        """A segment for groups from `first_number` on, its header not on disk yet; it may have to be made."""
        segment = self._take_spare() or self._new_segment(self.segment_bytes)
        self._begin_epoch(segment, first_number)
        return segment

    def begin(self, segment: Segment) -> None:
        """What was taken has its header and a group: it is the one that is written to."""
        self.live[-1].close()
        self.live.append(segment)
        self.ensure_spare()

    def recycle(self, mark: int) -> None:
        """Groups up to `mark` are not needed any more: their segments may be written over."""
        self.newest = self.newest._replace(mark=mark)
        while len(self.live) > 1:
            following = self.live[1].header
            assert following is not None
            if following.first_number > mark + 1:
                break
            self.spares.append(self.live.popleft())
        self.look_for_room()

    def look_for_room(self) -> None:
        """There may be room for the next segment, in a recycled one or on the disk: `on_full` is told of it."""
        if self.spares:
            self._on_full(False)
        self.ensure_spare()

    def _take_spare(self) -> Segment | None:
        while self.spares:
            segment = self.spares.popleft()
            if segment.size_bytes >= self.smallest_bytes:
                return segment
        return None

    def _new_segment(self, size_bytes: int) -> Segment:
        segment = Segment(self.disk, f"{PREFIX}{self.next_file:06d}", size_bytes, exists=False)
        self.next_file += 1
        return segment

    def _begin_epoch(self, segment: Segment, first_number: int) -> None:
        segment.header = self.newest = self.newest._replace(
            epoch=self.newest.epoch + 1, first_number=first_number, salt=self._rng.getrandbits(32)
        )
        segment.position = PAGE_BYTES

    # -- pre-writing, one small piece after the other ----------------------------------------------------
    def ensure_spare(self) -> None:
        """Make one, if there is none and nobody is at it."""
        if self.spares or self._preparing or self.is_closing or self.is_dead:
            return
        if self.disk.space().free_bytes < self.segment_bytes:
            asyncio.get_running_loop().call_soon(self._on_full, True)
            return
        self._preparing = True
        segment = self._new_segment(self.segment_bytes)

        def created(_: None, error: BaseException | None) -> None:
            if error is not None:
                self._give_up(segment, error)
            else:
                self._on_full(False)
                self._prewrite(segment, 0)

        self._background.submit(segment.create, created)

    def _prewrite(self, segment: Segment, offset: int) -> None:
        def written(_: None, error: BaseException | None) -> None:
            if error is not None:
                self._give_up(segment, error)
            elif self.is_closing or offset + _PIECE_BYTES >= segment.size_bytes:
                self._prepared(segment)
            else:
                self._prewrite(segment, offset + _PIECE_BYTES)

        self._background.submit(lambda: segment.write_zeros(offset), written)

    def _prepared(self, segment: Segment) -> None:
        self._preparing = False
        segment.close()
        self.spares.append(segment)

    def _give_up(self, segment: Segment, error: BaseException) -> None:
        """Without a spare the journal cannot go on for long; the storage takes no more blocks than it must."""
        self._preparing = False
        if isinstance(error, DiskFull):
            self.discard(segment, self._background)
        else:
            segment.close()
            log.error("cannot prepare a journal segment in %s: %s", self.disk.root, error)

    def discard(self, segment: Segment, worker: Worker) -> None:
        """There is no room for it: what there is of it goes, on that thread, and then `on_full` is told."""
        segment.close()
        worker.submit(segment.remove, lambda _, error: self._on_full(True))


_zero_memory: list[memoryview] = []


def _zeros() -> memoryview:
    """A megabyte of zeros for direct I/O; one for all, as nobody writes to it."""
    if not _zero_memory:
        _zero_memory.append(memoryview(aligned_buffer(_PIECE_BYTES)))
    return _zero_memory[0]
