"""Files of the journal: segments in use, and spares that may be overwritten. A spare is prepared in advance.

Segments are overwritten, not extended on the hot path, because a write into allocated and written space takes a third
of the time. New segments are filled with zeros in the background, in small pieces. If a segment is needed before a
spare is ready, it is only allocated, not filled.

    (new)         → spare    `ensure_spare`: the file was created and filled with zeros
    found         → spare    at a start, if the mark has passed all groups of the file
    spare         → live     `take` and `begin`: a new epoch's header is on disk before its first group
    live          → spare    `recycle`: the mark has passed the segment's last group
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
"""Bytes that are filled with zeros per write, so that the journal's own writes rarely wait for such a write."""
_FIRST_SEGMENT_BYTES: Final = 16 * MIB
"""Size of the segment that a start without a spare creates and waits for: filling it takes some 10 ms."""


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
        """Create the file durably, and allocate all its space."""
        self._file = self.disk.open(self.name, create=True)
        self._file.allocate(self.size_bytes)
        self._file.sync()
        self.disk.sync_directory()
        self.exists = True

    def write_header(self) -> None:
        """Write the header, and create the file if necessary."""
        if not self.exists:
            self.create()
        assert self.header is not None
        page = aligned_buffer(PAGE_BYTES)
        page.write(encode_segment_header(self.header))
        self.write(page, 0, durable=True)

    def write_zeros(self, offset: int) -> None:
        """Fill one piece with zeros."""
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
        """Remove the file, if it exists."""
        try:
            self.disk.remove(self.name)
        except NotFound:
            pass


class SegmentPool:
    """Pool of one journal's segments. `background` is the thread that prepares spares."""

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
        """Minimum size of a segment: the largest group must fit."""
        assert segment_bytes % PAGE_BYTES == 0 and segment_bytes >= self.smallest_bytes
        assert len(bookie) == 16
        self.disk = disk
        self.segment_bytes = segment_bytes
        self.live: deque[Segment] = deque()
        """Used segments that a replay may need, oldest first; groups are written to the last one."""
        self.spares: deque[Segment] = deque()
        self.newest = SegmentHeader(0, 0, 0, bookie, 0)
        """Header of the last epoch; its field `mark` is updated by `recycle`."""
        self.next_file = 1
        self.is_dead = False
        """Set when the journal has failed; then no spares are prepared any more."""
        self.is_closing = False
        self._background = background
        self._rng = rng
        self._preparing = False

    @property
    def bytes_live(self) -> int:
        """Size of the segments that a replay would need."""
        return sum(segment.size_bytes for segment in self.live)

    def open(self, incarnation: int, first_number: int, on_full: Callable[[bool], None]) -> None:
        """Begin a new epoch in another segment, whose header is on disk before any group. Blocks.

        Later, `on_full` is called on the event loop: with True if there is neither a spare nor space for one, else with
        False.
        """
        self._on_full = on_full
        self.disk.sync_directory()  # if the last process crashed, a spare's name may not be durable yet
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
        """Wait for work in progress, then close the files."""
        assert self.is_closing
        await self._background.run(lambda: None)
        for segment in self.live:
            segment.close()

    # -- spare, live, spare again ------------------------------------------------------------------------
    def take(self, first_number: int) -> Segment:
        """Return a segment for groups from `first_number` on.

        The caller must write its header, which also creates the file if it does not exist.
        """
        segment = self._take_spare() or self._new_segment(self.segment_bytes)
        self._begin_epoch(segment, first_number)
        return segment

    def begin(self, segment: Segment) -> None:
        """Make a segment from `take` the current one, after its header and a first group are on disk."""
        self.live[-1].close()
        self.live.append(segment)
        self.ensure_spare()

    def recycle(self, mark: int) -> None:
        """Free the segments without groups after `mark`, so that they may be overwritten."""
        self.newest = self.newest._replace(mark=mark)
        while len(self.live) > 1:
            following = self.live[1].header
            assert following is not None
            if following.first_number > mark + 1:
                break
            self.spares.append(self.live.popleft())
        self.look_for_room()

    def look_for_room(self) -> None:
        """Check again whether there is a spare, or disk space to prepare one; report the result to `on_full`."""
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
        assert segment not in self.live, "a segment that a replay may need would be overwritten"
        assert first_number >= self.newest.first_number
        segment.header = self.newest = self.newest._replace(
            epoch=self.newest.epoch + 1, first_number=first_number, salt=self._rng.getrandbits(32)
        )
        segment.position = PAGE_BYTES

    # -- pre-writing, one small piece after the other ----------------------------------------------------
    def ensure_spare(self) -> None:
        """Prepare a spare, unless one exists or is being prepared."""
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
        """Handle a failure to prepare a spare. If the disk is full, `on_full` makes the bookie refuse blocks."""
        self._preparing = False
        if isinstance(error, DiskFull):
            self.discard(segment, self._background)
        else:
            segment.close()
            log.error("cannot prepare a journal segment in %s: %s", self.disk.root, error)

    def discard(self, segment: Segment, worker: Worker) -> None:
        """Remove the file of a segment for which the disk has no space, on `worker`; then call `on_full(True)`."""
        segment.close()
        worker.submit(segment.remove, lambda _, error: self._on_full(True))


_zero_memory: list[memoryview] = []


def _zeros() -> memoryview:
    """Return a megabyte of zeros for direct I/O, shared because it is never written to."""
    if not _zero_memory:
        _zero_memory.append(memoryview(aligned_buffer(_PIECE_BYTES)))
    return _zero_memory[0]
