"""The journal: what is queued here is on disk when its `done` is called, and comes back at the next start.

The bytes and the decisions are in `journal_core`; this file performs them. One group is in flight: one direct
write of whole pages, durable in the same system call, on a thread of its own. What arrives meanwhile is the next
group, so the busier the disk the larger the group. The next group is handed to the disk *before* those who wait
for the last one are told, and they are told in one turn of the loop.

Segments are written over and over, never extended while it matters: a file whose blocks exist already is
written in a third of the time. New segments are pre-written with zeros in the background, in small pieces, and
only while nobody uses them; if one is needed sooner it is taken with its room reserved but not pre-written.

A replay may find its last group in a cache only: its process died, or heard of an error, before it was synced. So that
group is written once more, durably, before anybody is told of what is in it. (Those before it were synced before it
was begun.)

A page that cannot be read at a replay is damage, never a torn tail: what was on it may have been answered. Unless it
lies before a group that begins where the mark is, or behind the last one before another epoch. A segment with such
damage is set aside (`unreadable-…`), for the disk may have its good moments, and its bad ones.

A disk without room for another segment has written nothing: the group waits, and with it all after it, until there is
room, or a checkpoint has made an older segment free.

After a failed write nobody knows what is on disk, so the journal is dead from there: everything queued and
everything that comes later is answered `IO_ERROR`. Trying the write again could report a success that is none.

Order of life: `replay` (blocking), `open` (blocking), then `append` and the rest on the loop, `close`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from quire.bookie.journal_core import (
    GROUP_HEADER_BYTES,
    BadSegment,
    Chain,
    FoundGroup,
    Group,
    GroupQueue,
    SegmentHeader,
    decode_segment_header,
    encode_group,
    encode_segment_header,
    scan_segment,
    segments_needed,
)
from quire.runtime.disk import PAGE_BYTES, Disk, File, Worker, aligned_buffer, pages_up, read_around
from quire.runtime.errors import ConfigurationError, DiskError, DiskFull, NotFound, QuireError
from quire.runtime.limits import JOURNAL_GROUP_BYTES_MAX, JOURNAL_SEGMENT_BYTES, MIB, UNREADABLE_PAGES_MAX
from quire.wire.block import Buffer
from quire.wire.bookie import AddDone, Status

log = logging.getLogger(__name__)

_PREFIX: Final = "segment-"
_ASIDE: Final = "unreadable-"
_PIECE_BYTES: Final = 1 * MIB
_READ_BYTES: Final = 8 * MIB
_ROOM_RETRY_S: Final = 1.0
_FIRST_SEGMENT_BYTES: Final = 16 * MIB
"""The segment made while a start waits for it: pre-written in some 10 ms."""


@dataclass(slots=True)
class _Segment:
    name: str
    size_bytes: int
    header: SegmentHeader | None = None
    position: int = PAGE_BYTES
    file: File | None = None
    exists: bool = True


@dataclass(slots=True)
class Replay:
    """What a replay found. `damage` says in words what is missing; empty after an ordinary stop or crash."""

    groups: int = 0
    bytes: int = 0
    damage: list[str] = field(default_factory=list)


class Journal:
    """See the top of the file. `on_failure` and `on_full` tell the storage, once each, on the loop."""

    def __init__(
        self,
        disk: Disk,
        writer: Worker,
        background: Worker,
        rng: Random,
        *,
        bookie: bytes,
        segment_bytes: int = JOURNAL_SEGMENT_BYTES,
        group_bytes_max: int = JOURNAL_GROUP_BYTES_MAX,
        durable: bool = True,
        on_failure: Callable[[QuireError], None] = lambda error: None,
        on_full: Callable[[bool], None] = lambda is_full: None,
    ) -> None:
        assert segment_bytes % PAGE_BYTES == 0
        assert segment_bytes >= PAGE_BYTES + pages_up(group_bytes_max + GROUP_HEADER_BYTES)
        assert len(bookie) == 16
        self._disk = disk
        self._writer = writer
        self._background = background
        self._rng = rng
        self._bookie = bookie
        self._segment_bytes = segment_bytes
        self._group_bytes_max = group_bytes_max
        self._durable = durable
        self._on_failure = on_failure
        self._on_full = on_full
        self._memory = aligned_buffer(group_bytes_max + GROUP_HEADER_BYTES)
        self._view = memoryview(self._memory)
        self._live: deque[_Segment] = deque()
        """Used segments that replay may need, oldest first; the last one is written to."""
        self._spares: deque[_Segment] = deque()
        self._bad: list[_Segment] = []
        self._unreadable: list[_Segment] = []
        self._preparing = False
        self._closing = False
        self._next_file = 1
        self._epoch = 0
        self._mark = 0
        self._incarnation = 0
        self._queue = GroupQueue(1, group_bytes_max)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting_for_room: asyncio.TimerHandle | None = None
        self._may_wait = True
        self.failure: QuireError | None = None
        self.groups_written = 0
        self.bytes_written = 0

    @property
    def durable_number(self) -> int:
        """The last group that is on disk."""
        return self._queue.durable_number

    @property
    def bytes_live(self) -> int:
        """Size of the segments that a replay would need."""
        return sum(segment.size_bytes for segment in self._live)

    # -- start -------------------------------------------------------------------------------------------
    def replay(self, mark: int, apply: Callable[[int, bytes], None], *, mark_is_lost: bool = False) -> Replay:
        """Call `apply(mark, group)` for every valid group behind the mark, in order. Blocks.

        What was applied before may be flushed with that `mark`: the group before this one, or the last one before
        which nothing is missing, until the caller has recorded what the damage means.
        The mark is lost when the index was rebuilt: the segments know it well enough. One that is only older than they
        know comes from an index that lost what it had committed, and the fences and tombstones with it: damage.
        Raises `DiskError`, and `ConfigurationError` when a segment belongs to another bookie.
        """
        used = self._find_segments()
        known = max((header.mark for _, header in used), default=0)
        is_older = known > mark and not mark_is_lost
        mark = self._mark = max(mark, known)
        report = Replay()
        needed = segments_needed([(segment.name, header) for segment, header in used], mark)
        by_name = {segment.name: segment for segment, _ in used}
        self._spares += [segment for segment, _ in used if segment.name not in {name for name, _ in needed}]
        self._live += [by_name[name] for name, _ in needed]
        chain = Chain(mark)
        if is_older:
            chain.damage.append(
                f"the index is older than the journal in {self._disk.root}, which was flushed up to {mark}"
            )
        if not needed and mark > 0:
            chain.damage.append(
                f"no segment of the journal in {self._disk.root} is left, but groups up to {mark}"
            )
        ends: list[int | None] = [header.first_number for _, header in needed[1:]]
        for (name, header), end_number in zip(needed, [*ends, None], strict=False):
            self._replay_segment(by_name[name], header, chain, end_number, report, apply)
        chain.damage += [f"{segment.name} in {self._disk.root} has lost its header" for segment in self._bad]
        chain.damage += [
            f"{segment.name} in {self._disk.root} cannot be read" for segment in self._unreadable
        ]
        report.damage = chain.damage
        self._queue = GroupQueue(chain.last_number + 1, self._group_bytes_max)
        self._epoch = max((header.epoch for _, header in used), default=0)
        return report

    def _find_segments(self) -> list[tuple[_Segment, SegmentHeader]]:
        used = []
        with memoryview(aligned_buffer(PAGE_BYTES)) as page:
            for name in self._disk.names():
                if not name.startswith(_PREFIX):
                    continue
                self._next_file = max(self._next_file, int(name.removeprefix(_PREFIX)) + 1)
                file = self._disk.open(name)
                count, unreadable = read_around(file, page, 0, 1)
                segment = _Segment(name, file.size_bytes() // PAGE_BYTES * PAGE_BYTES)
                file.close()
                header = decode_segment_header(page[:count])
                if unreadable:
                    self._unreadable.append(segment)
                elif isinstance(header, BadSegment):
                    self._bad.append(segment)
                elif header is not None:
                    self._check_owner(name, header)
                    segment.header = header
                    used.append((segment, header))
                elif segment.size_bytes >= self._segment_bytes:
                    self._spares.append(segment)
                else:  # its making was interrupted
                    self._disk.remove(name)
        return used

    def _check_owner(self, name: str, header: SegmentHeader) -> None:
        if header.bookie != self._bookie:
            raise ConfigurationError(
                f"journal segment {self._disk.root}/{name} belongs to bookie {header.bookie.hex()}, not to "
                f"{self._bookie.hex()}; give this bookie its own journal directory"
            )

    def _replay_segment(
        self,
        segment: _Segment,
        header: SegmentHeader,
        chain: Chain,
        end_number: int | None,
        report: Replay,
        apply: Callable[[int, bytes], None],
    ) -> None:
        path = f"{self._disk.root}/{segment.name}"
        chain.segment(path, header.first_number)
        image, unreadable = self._read_image(segment)
        groups = list(scan_segment(image, header))
        if lost := [why for page, why in unreadable.items() if chain.may_matter(page, groups, end_number)]:
            chain.damage += lost
            self._unreadable.append(segment)
        last: FoundGroup | None = None
        for found in groups:
            mark = chain.whole_to
            if chain.group(path, found, end_number):
                apply(mark, bytes(image[found.offset : found.offset + found.length]))
                report.groups += 1
                report.bytes += found.length
                last = found
        if last is not None and end_number is None:
            pages = image[last.offset : last.offset + pages_up(last.length)]
            self._file(segment).write(pages, last.offset, durable=self._durable)
            self._close_file(segment)

    def _read_image(self, segment: _Segment) -> tuple[memoryview, dict[int, str]]:
        """All of the segment, and why some pages are zeros here, by their offsets: they cannot be read."""
        image = memoryview(aligned_buffer(segment.size_bytes))
        unreadable: dict[int, str] = {}
        file = self._disk.open(segment.name)
        try:
            for offset in range(0, segment.size_bytes, _READ_BYTES):
                piece, left = image[offset : offset + _READ_BYTES], UNREADABLE_PAGES_MAX - len(unreadable)
                unreadable |= read_around(file, piece, offset, left)[1]
        finally:
            file.close()
        return image, unreadable

    def forget_damage(self) -> None:
        """Clear wrong headers, and set unreadable segments aside, never to be used again. Blocks.

        Only after what they mean is recorded elsewhere, and what they hold is in the entry log.
        """
        for segment in self._bad:
            file = self._disk.open(segment.name)
            file.write(aligned_buffer(PAGE_BYTES), 0, durable=True)
            file.close()
        self._spares += self._bad
        self._bad.clear()
        for segment in self._unreadable:
            log.error("%s/%s is set aside as %s", self._disk.root, segment.name, _ASIDE + segment.name)
            self._disk.rename(segment.name, _ASIDE + segment.name)
        self._disk.sync_directory()
        self._live = deque(live for live in self._live if live not in self._unreadable)
        self._unreadable.clear()

    def open(self, incarnation: int) -> None:
        """Begin a new epoch in another file, its header on disk before any group. Blocks."""
        self._disk.sync_directory()  # a spare's name may be in a cache only, if its maker died
        self._loop = asyncio.get_running_loop()
        self._incarnation = incarnation
        segment = self._take_spare()
        if segment is None:
            size_bytes = max(min(_FIRST_SEGMENT_BYTES, self._segment_bytes), self._smallest_segment_bytes)
            segment = self._new_segment(size_bytes)
            self._create(segment)
            for offset in range(0, size_bytes, _PIECE_BYTES):
                self._write_zeros(segment, offset)
            self._file(segment).sync()
        self._begin_epoch(segment, self._queue.durable_number + 1)
        self._use(segment)
        self._live.append(segment)
        self._ensure_spare()

    @property
    def _smallest_segment_bytes(self) -> int:
        return PAGE_BYTES + pages_up(self._group_bytes_max + GROUP_HEADER_BYTES)

    # -- the hot path ------------------------------------------------------------------------------------
    def append(
        self, parts: Sequence[Buffer], size_bytes: int, done: AddDone, statuses: Sequence[Status]
    ) -> None:
        """Queue records that belong together; `done(statuses)` on the loop when all are durable.

        Never called back before this returns. The records are not to be changed any more.
        """
        if self.failure is not None:
            self._refuse(done, statuses)
            return
        self._queue.append(parts, size_bytes, done, statuses)
        if self._queue.in_flight is None:
            self._write_next()

    def barrier(self, done: AddDone, statuses: Sequence[Status]) -> None:
        """`done(statuses)` when everything appended before is durable."""
        if self.failure is not None:
            self._refuse(done, statuses)
        elif not self._queue.barrier(done, statuses):
            self._running_loop.call_soon(done, statuses)

    def seal(self) -> int:
        """Let the next record begin a new group; answer the number of the last group before it."""
        return self._queue.seal()

    def _write_next(self) -> None:
        group = self._queue.begin()
        if group is not None:
            self._write(group)

    def _write(self, group: Group) -> None:
        segment = self._live[-1]
        is_fresh = segment.position + pages_up(group.bytes) > segment.size_bytes
        if is_fresh:
            segment = self._take_spare() or self._new_segment(self._segment_bytes)
            self._begin_epoch(segment, group.number)
        assert segment.header is not None
        self._memory.seek(0)
        size_bytes = encode_group(group, segment.header, self._memory.write, self._view)

        def write() -> None:
            if is_fresh:
                self._use(segment)
            self._file(segment).write(self._view[:size_bytes], segment.position, durable=self._durable)

        def written(_: None, error: BaseException | None) -> None:
            if isinstance(error, DiskFull) and not segment.exists:
                self._wait_for_room(group, segment)
                return
            if error is not None:
                self._fail(error)
                return
            segment.position += size_bytes
            self.bytes_written += size_bytes
            if is_fresh:
                self._replaced(segment)
            self._answer_group()

        self._writer.submit(write, written)

    def _answer_group(self) -> None:
        group = self._queue.written()
        self.groups_written += 1
        self._write_next()  # the disk works while we answer
        _tell(group)

    def _wait_for_room(self, group: Group, segment: _Segment) -> None:
        """There was none for `segment`, to which nothing was written: try again later, perhaps in another one."""
        log.warning("the journal in %s waits for room for another segment", self._disk.root)
        self._close_file(segment)
        self._writer.submit(lambda: self._remove(segment), lambda _, error: self._on_full(True))
        if not self._may_wait:
            self._fail(self._no_room())
            return

        def again() -> None:
            self._waiting_for_room = None
            self._write(group)

        self._waiting_for_room = self._running_loop.call_later(_ROOM_RETRY_S, again)

    @property
    def waits_for_checkpoint(self) -> bool:
        """A group waits for a segment, and older ones could be written over if the mark passed what is in them."""
        return self._waiting_for_room is not None and len(self._live) > 1 and not self._spares

    def stop_waiting(self) -> None:
        """The node stops: what waits for room is refused, now and from now on."""
        self._may_wait = False
        if self._waiting_for_room is not None:
            self._waiting_for_room.cancel()
            self._waiting_for_room = None
            self._fail(self._no_room())

    def _no_room(self) -> DiskFull:
        return DiskFull(f"{self._disk.root} has no room for another journal segment")

    def _fail(self, error: BaseException) -> None:
        self.failure = error if isinstance(error, QuireError) else DiskError(f"the journal failed: {error!r}")
        log.critical(
            "the journal in %s is dead, nothing is acknowledged any more: %s", self._disk.root, error
        )
        groups = self._queue.fail()
        self._on_failure(self.failure)
        for group in groups:
            for done, statuses in group.waiters:
                self._refuse(done, statuses)

    def _refuse(self, done: AddDone, statuses: Sequence[Status]) -> None:
        refused = [Status.IO_ERROR if status is Status.OK else status for status in statuses]
        self._running_loop.call_soon(done, refused)

    @property
    def _running_loop(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None
        return self._loop

    # -- segments ----------------------------------------------------------------------------------------
    def recycle(self, mark: int) -> None:
        """Groups up to `mark` are not needed any more: their segments may be written over."""
        self._mark = mark
        while len(self._live) > 1:
            following = self._live[1].header
            assert following is not None
            if following.first_number > mark + 1:
                break
            self._spares.append(self._live.popleft())
        self.look_for_room()

    def look_for_room(self) -> None:
        """There may be room for the next segment, in a recycled one or on the disk: `on_full` is told of it."""
        if self._spares:
            self._on_full(False)
        self._ensure_spare()

    def _take_spare(self) -> _Segment | None:
        while self._spares:
            segment = self._spares.popleft()
            if segment.size_bytes >= self._smallest_segment_bytes:
                return segment
        return None

    def _new_segment(self, size_bytes: int) -> _Segment:
        segment = _Segment(f"{_PREFIX}{self._next_file:06d}", size_bytes, exists=False)
        self._next_file += 1
        return segment

    def _begin_epoch(self, segment: _Segment, first_number: int) -> None:
        self._epoch += 1
        salt = self._rng.getrandbits(32)
        segment.header = SegmentHeader(
            self._epoch, first_number, salt, self._bookie, self._incarnation, self._mark
        )
        segment.position = PAGE_BYTES

    def _use(self, segment: _Segment) -> None:
        """On the disk: make sure that the file is there and begins with its new header."""
        if not segment.exists:
            self._create(segment)
        assert segment.header is not None
        page = aligned_buffer(PAGE_BYTES)
        page.write(encode_segment_header(segment.header))
        self._file(segment).write(page, 0, durable=True)

    def _create(self, segment: _Segment) -> None:
        segment.file = self._disk.open(segment.name, create=True)
        segment.file.allocate(segment.size_bytes)
        segment.file.sync()
        self._disk.sync_directory()
        segment.exists = True

    def _file(self, segment: _Segment) -> File:
        if segment.file is None:
            segment.file = self._disk.open(segment.name)
        return segment.file

    def _replaced(self, segment: _Segment) -> None:
        """`segment` took over from the one that was written to."""
        self._close_file(self._live[-1])
        self._live.append(segment)
        self._ensure_spare()

    def _close_file(self, segment: _Segment) -> None:
        if segment.file is not None:
            segment.file.close()
            segment.file = None

    # -- pre-writing, one small piece after the other ---------------------------------------------------
    def _ensure_spare(self) -> None:
        if self._spares or self._preparing or self._closing or self.failure is not None:
            return
        if self._disk.space().free_bytes < self._segment_bytes:
            self._running_loop.call_soon(self._on_full, True)
            return
        self._preparing = True
        segment = self._new_segment(self._segment_bytes)

        def created(_: None, error: BaseException | None) -> None:
            if error is not None:
                self._give_up(segment, error)
            else:
                self._on_full(False)
                self._prewrite(segment, 0)

        self._background.submit(lambda: self._create(segment), created)

    def _prewrite(self, segment: _Segment, offset: int) -> None:
        def written(_: None, error: BaseException | None) -> None:
            if error is not None:
                self._give_up(segment, error)
            elif self._closing or offset + _PIECE_BYTES >= segment.size_bytes:
                self._prepared(segment)
            else:
                self._prewrite(segment, offset + _PIECE_BYTES)

        self._background.submit(lambda: self._write_zeros(segment, offset), written)

    def _write_zeros(self, segment: _Segment, offset: int) -> None:
        size_bytes = min(_PIECE_BYTES, segment.size_bytes - offset)
        self._file(segment).write(memoryview(_zeros())[:size_bytes], offset)

    def _prepared(self, segment: _Segment) -> None:
        self._preparing = False
        self._close_file(segment)
        self._spares.append(segment)

    def _give_up(self, segment: _Segment, error: BaseException) -> None:
        """Without a spare the journal cannot go on for long; the storage takes no more blocks than it must."""
        self._preparing = False
        self._close_file(segment)
        if isinstance(error, DiskFull):
            self._background.submit(lambda: self._remove(segment), lambda _, error: self._on_full(True))
        else:
            log.error("cannot prepare a journal segment in %s: %s", self._disk.root, error)

    def _remove(self, segment: _Segment) -> None:
        try:
            self._disk.remove(segment.name)
        except NotFound:
            pass

    async def close(self) -> None:
        """Wait for what was appended, then close the files."""
        self._closing = True
        if self.failure is None and self._queue.in_flight is not None:
            drained = self._running_loop.create_future()
            self.barrier(lambda statuses: drained.set_result(None), (Status.OK,))
            await drained
        await self._writer.run(lambda: None)
        await self._background.run(lambda: None)
        for segment in self._live:
            self._close_file(segment)


_zero_memory: list[memoryview] = []


def _zeros() -> memoryview:
    """A megabyte of zeros for direct I/O; one for all, as nobody writes to it."""
    if not _zero_memory:
        _zero_memory.append(memoryview(aligned_buffer(_PIECE_BYTES)))
    return _zero_memory[0]


def _tell(group: Group) -> None:
    for done, statuses in group.waiters:
        try:
            done(statuses)
        except Exception:
            log.exception("a callback of journal group %d failed", group.number)
