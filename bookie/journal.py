"""Write-ahead journal: a record is on disk before its `done` is called, and is replayed at the next start.

`journal_core` defines the byte formats and makes decisions without I/O, `segment_pool` manages the files, and this
module commits groups of records. It is group commit, as in BookKeeper's
[Journal](https://github.com/apache/bookkeeper/blob/master/bookkeeper-server/src/main/java/org/apache/bookkeeper/bookie/Journal.java).
At most one group is in flight: one direct write of whole pages, made durable by the same system call, on the journal's
own thread. Records that arrive meanwhile form the next group, so the busier the disk, the larger the group. The next
group is passed to the disk *before* the callbacks of the written group run; these all run in one turn of the event
loop.

If the disk has no space for another segment, nothing is written. This group and all later ones wait until there is
space, or until a checkpoint has freed an older segment.

After any other failed write, the content of the disk is unknown, so the journal has failed: all queued and later
records are answered `IO_ERROR`. A repeated write could report success falsely (see
[fsyncgate](https://wiki.postgresql.org/wiki/Fsync_Errors)).

Life cycle: `replay` and `open` (blocking), then the other methods on the event loop, then `close`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from quire.bookie.journal_core import (
    CONTROL_BYTES,
    GROUP_HEADER_BYTES,
    Control,
    Group,
    GroupQueue,
    encode_control,
    encode_group,
)
from quire.bookie.journal_replay import Apply, JournalReplay
from quire.bookie.segment_pool import Segment, SegmentPool
from quire.runtime import slow
from quire.runtime.clock import Clock, SystemClock
from quire.runtime.disk import Worker, aligned_buffer, pages_up
from quire.runtime.errors import DiskError, DiskFull, QuireError
from quire.runtime.limits import JOURNAL_GROUP_BYTES_MAX
from quire.runtime.metrics import Histogram
from quire.wire.block import Buffer
from quire.wire.bookie import AddDone, Status
from quire.wire.ledger_ids import entry_to_tell

log = logging.getLogger(__name__)

OK: Final = (Status.OK,)
"""Statuses of one record, or of a barrier, on success."""

_ROOM_RETRY_S: Final = 1.0
"""Delay in seconds before another attempt to create a segment on a full disk."""


class Journal:
    """Group commit to the segments of `pool`. With `durable` false, acknowledgements do not wait for the disk."""

    def __init__(
        self,
        pool: SegmentPool,
        writer: Worker,
        *,
        group_bytes_max: int = JOURNAL_GROUP_BYTES_MAX,
        durable: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self._pool = pool
        self._writer = writer
        self._durable = durable
        self._memory = aligned_buffer(group_bytes_max + GROUP_HEADER_BYTES)
        self._view = memoryview(self._memory)
        self._queue = GroupQueue(1, group_bytes_max)
        self._waiting_for_room: asyncio.TimerHandle | None = None
        self._may_wait = True
        self.failure: QuireError | None = None
        self._clock = clock or SystemClock()
        self.sync_s = Histogram()
        """Duration of each group's disk write, in seconds."""
        self.groups_written = 0
        self.bytes_written = 0

    @property
    def durable_number(self) -> int:
        """Number of the last durable group."""
        return self._queue.durable_number

    @property
    def bytes_live(self) -> int:
        """Size of the segments that a replay would need."""
        return self._pool.bytes_live

    # -- start -------------------------------------------------------------------------------------------
    def replay(self, mark: int, apply: Apply, *, mark_is_lost: bool = False) -> JournalReplay:
        """Call `apply(mark, group)` for every valid group after the mark, in order. Blocks.

        If `apply` makes a checkpoint of the groups before this one, it must record the mark that it is passed. That is
        the number of the group before this one, or, after damage, the last group before which no group is missing.

        `mark_is_lost` is set after the index was rebuilt; then the mark in the segments is used. Otherwise, a mark that
        is older than the segments' mark comes from an index that lost committed transactions, with their fences and
        tombstones, and counts as damage. Raises `DiskError`, and `ConfigurationError` if a segment belongs to another
        bookie.
        """
        replay = JournalReplay(self._pool, apply, durable=self._durable)
        replay.run(mark, mark_is_lost=mark_is_lost)
        self._queue = GroupQueue(replay.last_number + 1, self._queue.bytes_max)
        return replay

    def open(
        self,
        incarnation: int,
        on_full: Callable[[bool], None],
        on_failure: Callable[[QuireError], None],
    ) -> None:
        """Begin a new epoch in another segment, whose header is on disk before any group. Blocks.

        Both callbacks run on the event loop. See `SegmentPool.open` for `on_full`; `on_failure` is called once, when
        the journal fails.
        """
        self._on_failure = on_failure
        self._pool.open(incarnation, self._queue.durable_number + 1, on_full)

    # -- the hot path ------------------------------------------------------------------------------------
    def append(
        self, parts: Sequence[Buffer], size_bytes: int, done: AddDone, statuses: Sequence[Status]
    ) -> None:
        """Queue records of one request, in one group; call `done(statuses)` on the event loop when they are durable.

        `done` is never called before this method returns. The caller must not change the records any more.
        """
        if self.failure is not None:
            self._refuse(done, statuses)
            return
        self._queue.append(parts, size_bytes, done, statuses)
        if self._queue.in_flight is None:
            self._write_next()

    def control(self, control: Control, done: AddDone) -> None:
        """Queue a change of a ledger's state; call `done(OK)` when it is durable."""
        self.append((encode_control(control),), CONTROL_BYTES, done, OK)

    def barrier(self, done: AddDone, statuses: Sequence[Status]) -> None:
        """Call `done(statuses)` when everything appended before is durable."""
        if self.failure is not None:
            self._refuse(done, statuses)
        elif not self._queue.barrier(done, statuses):
            asyncio.get_running_loop().call_soon(done, statuses)

    def seal(self) -> int:
        """Close the open group, so that the next record begins a new one; return the last closed group's number."""
        return self._queue.seal()

    def _write_next(self) -> None:
        group = self._queue.begin()
        if group is not None:
            self._write(group)

    def _write(self, group: Group) -> None:
        segment = self._pool.live[-1]
        is_fresh = segment.position + pages_up(group.bytes) > segment.size_bytes
        if is_fresh:
            segment = self._pool.take(group.number)
        assert segment.header is not None and segment.header.first_number <= group.number
        self._memory.seek(0)
        size_bytes = encode_group(group, segment.header, self._memory.write, self._view)
        assert segment.position + size_bytes <= segment.size_bytes

        def write() -> float:
            began_s = self._clock.monotonic()
            if is_fresh:
                segment.write_header()
            segment.opened().write(self._view[:size_bytes], segment.position, durable=self._durable)
            return self._clock.monotonic() - began_s

        def written(took_s: float | None, error: BaseException | None) -> None:
            if isinstance(error, DiskFull) and not segment.exists:
                self._wait_for_room(group, segment)
                return
            if error is not None:
                self._fail(error)
                return
            assert took_s is not None
            self.sync_s.observe(took_s)
            if took_s > slow.BOUND.s:
                _tell_slow(str(self._pool.disk.root), group, took_s)
            segment.position += size_bytes
            self.bytes_written += size_bytes
            if is_fresh:
                self._pool.begin(segment)
            self._answer_group()

        self._writer.submit(write, written)

    def _answer_group(self) -> None:
        group = self._queue.written()
        self.groups_written += 1
        self._write_next()  # so that the disk writes while the callbacks run
        _tell(group)

    def _wait_for_room(self, group: Group, segment: Segment) -> None:
        """Retry the write later: there was no space for `segment`, and nothing was written to it."""
        log.warning("the journal in %s waits for disk space for another segment", self._pool.disk.root)
        self._pool.discard(segment, self._writer)
        if not self._may_wait:
            self._fail(self._no_room())
            return

        def again() -> None:
            self._waiting_for_room = None
            self._write(group)

        self._waiting_for_room = asyncio.get_running_loop().call_later(_ROOM_RETRY_S, again)

    @property
    def waits_for_checkpoint(self) -> bool:
        """True while a group waits for a segment that a checkpoint could free."""
        return self._waiting_for_room is not None and len(self._pool.live) > 1 and not self._pool.spares

    def stop_waiting(self) -> None:
        """Fail the journal if a group waits for disk space, now or later, because the node is stopping."""
        self._may_wait = False
        if self._waiting_for_room is not None:
            self._waiting_for_room.cancel()
            self._waiting_for_room = None
            self._fail(self._no_room())

    def _no_room(self) -> DiskFull:
        return DiskFull(f"{self._pool.disk.root} has no space for another journal segment")

    def _fail(self, error: BaseException) -> None:
        self.failure = error if isinstance(error, QuireError) else DiskError(f"the journal failed: {error!r}")
        log.critical(
            "the journal in %s has failed and acknowledges no more records: %s", self._pool.disk.root, error
        )
        self._pool.is_dead = True
        groups = self._queue.fail()
        self._on_failure(self.failure)
        for group in groups:
            for done, statuses in group.waiters:
                self._refuse(done, statuses)

    def _refuse(self, done: AddDone, statuses: Sequence[Status]) -> None:
        refused = [Status.IO_ERROR if status is Status.OK else status for status in statuses]
        asyncio.get_running_loop().call_soon(done, refused)

    # -- its files ---------------------------------------------------------------------------------------
    def recycle(self, mark: int) -> None:
        """Free the segments without groups after `mark`, so that they may be overwritten."""
        self._pool.recycle(mark)

    def look_for_room(self) -> None:
        """Check again whether there is space for the next segment."""
        self._pool.look_for_room()

    async def close(self) -> None:
        """Wait until everything appended is durable, then close the files."""
        self._pool.is_closing = True
        if self.failure is None and self._queue.in_flight is not None:
            drained = asyncio.get_running_loop().create_future()
            self.barrier(lambda statuses: drained.set_result(None), (Status.OK,))
            await drained
        await self._writer.run(lambda: None)
        await self._pool.close()


def _tell(group: Group) -> None:
    for done, statuses in group.waiters:
        try:
            done(statuses)
        except Exception:
            log.exception("a callback of journal group %d failed", group.number)


def _tell_slow(place: str, group: Group, took_s: float) -> None:
    stored = [part for part in group.parts if len(part) > CONTROL_BYTES]
    if not stored:  # the group contains only control records, such as fences
        slow.tell("sync", f"the journal {place}", took_s, journal=place)
        return
    ledger, entry = entry_to_tell(stored)
    what = f"the journal {place} with {len(stored)} blocks from entry {ledger}:{entry} on"
    slow.tell("sync", what, took_s, journal=place, blocks=len(stored), ledger=ledger, entry=entry)
