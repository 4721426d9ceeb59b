"""The collector: gives back the room of what was deleted.

A ledger is deleted by its tombstone, which takes its rows out of the index; nothing is ever deleted because some
listing lacks it. The index counts, per entry log, the bytes that rows still point at, and from that count and the
file's size `CollectorCore` decides what to do next:

    log                                                      then
    no count, and it was there when the node started         free: a crash came before its first commit
    no count, and younger                                    leave: its commit is still to come
    count 0                                                  free
    count at most half of the file, and the copy finds room  compact: the emptiest first
    the same at most nine tenths, and space is short         compact
    all else                                                 leave

To free a log is to drop its count, then to rename its file to a spare one. To compact it is to copy its live runs to
the log that is being written: copy synced, then the index swapped in one transaction, and when nothing is left the
log's count is 0. A crash anywhere leaves at most runs that no row names. What cannot be read is not copied: its log
stays, is reported, and is not tried again.

Copying is paced (`COMPACTION_BYTES_PER_S`) and done in batches; it may use what is left of the disk's reserve, so it
works when the disk is full and writers are refused (`room`). Where space is short no spare files are kept: others may
need theirs.

`Collector` is the shell. It runs on the thread that appends and commits, and only when all that was appended is
committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from quire.bookie.entry_log import EntryLogs
from quire.bookie.entry_log_scanner import EntryLogScanner
from quire.bookie.index import Index, IndexRow
from quire.bookie.room import Room
from quire.runtime.clock import Clock
from quire.runtime.errors import CorruptionError, DiskError, QuireError
from quire.runtime.limits import COMPACTION_BATCH_BYTES, COMPACTION_BYTES_PER_S
from quire.wire.block import BlockError, Buffer, verify

LIVE_SHARE_MAX: Final = 0.5
"""A log is compacted when at most this share of its file is in use: at worst a byte is copied once for each
byte that is won."""

LIVE_SHARE_MAX_SHORT: Final = 0.9
"""The same where space is short."""


class Free(NamedTuple):
    """Nothing points into the log."""

    log_id: int


class Compact(NamedTuple):
    """The log is mostly empty; `live_bytes` are to be copied."""

    log_id: int
    live_bytes: int


class Wait(NamedTuple):
    """There is something to compact, but not yet."""

    seconds: float


Step = Free | Compact | Wait | None


class CollectorCore:
    """Decides; without I/O. `found_at_start` are the logs that were there when the node started."""

    def __init__(self, found_at_start: set[int], *, bytes_per_s: int = COMPACTION_BYTES_PER_S) -> None:
        self._found_at_start = found_at_start
        self._bytes_per_s = bytes_per_s
        self._not_before_s = 0.0
        self._given_up: set[int] = set()

    def choose(
        self,
        usage: Mapping[int, int],
        sizes: Mapping[int, int],
        room_bytes: int,
        now_s: float,
        *,
        is_short: bool = False,
    ) -> Step:
        """What to do next, by the index's counts and the logs' sizes; `room_bytes` is for copies, reserve included."""
        share_max = LIVE_SHARE_MAX_SHORT if is_short else LIVE_SHARE_MAX
        for log_id in sorted(sizes):
            if not usage.get(log_id, 0 if log_id in self._found_at_start else 1):
                return Free(log_id)
        candidates = [
            (usage[log_id] / size_bytes, log_id)
            for log_id, size_bytes in sizes.items()
            if log_id in usage
            and log_id not in self._given_up
            and usage[log_id] <= min(size_bytes * share_max, room_bytes)
        ]
        if not candidates:
            return None
        if now_s < self._not_before_s:
            return Wait(self._not_before_s - now_s)
        _, log_id = min(candidates)
        return Compact(log_id, usage[log_id])

    def copied(self, size_bytes: int, now_s: float) -> None:
        """A batch was copied: rest until the pace is kept."""
        self._not_before_s = max(now_s, self._not_before_s) + size_bytes / self._bytes_per_s

    def give_up(self, log_id: int) -> None:
        """The log cannot be emptied; leave it alone until the next start."""
        self._given_up.add(log_id)


class Collector:
    """Does what the core decides, a step at a time. `report` is told of damage that a copy met. Without `room` it may
    use all that the disk has.
    """

    def __init__(
        self,
        index: Index,
        logs: EntryLogs,
        clock: Clock,
        report: Callable[[QuireError], None],
        room: Room | None = None,
        *,
        bytes_per_s: int = COMPACTION_BYTES_PER_S,
        batch_bytes: int = COMPACTION_BATCH_BYTES,
    ) -> None:
        self._index = index
        self._logs = logs
        self._clock = clock
        self._report = report
        self._room = room
        self._batch_bytes = batch_bytes
        self._core = CollectorCore(set(logs.sizes()), bytes_per_s=bytes_per_s)
        self._job: _Job | None = None
        self.bytes_copied = self.logs_freed = 0

    def run(self) -> float | None:
        """Do one step, of a batch at most; answer in how many seconds to come again, None when all is done.

        Errors of the disk and the index come out; nothing is lost by them. The log that was being compacted is left
        alone until the next start.
        """
        room, room_bytes = self._room, self._logs.room_bytes()
        is_short = room is not None and room.is_short
        if room is not None:
            room_bytes = min(room_bytes, room.for_copies_bytes)
        if is_short and self._logs.trim_spares(keep=0):
            return 0
        step = self._core.choose(
            self._index.usage(), self._logs.sizes(), room_bytes, self._clock.monotonic(), is_short=is_short
        )
        match step:
            case Free(log_id):
                self._free(log_id)
            case Compact(log_id):
                self._compact(log_id)
            case Wait(seconds):
                return seconds
            case None:
                return 0 if self._logs.trim_spares() else None
        return 0

    def _free(self, log_id: int) -> None:
        self._index.drop_log(log_id)
        self._logs.free(log_id)
        self.logs_freed += 1

    def _compact(self, log_id: int) -> None:
        if self._job is None or self._job.log_id != log_id:
            self._job = _Job(log_id, self._logs, self._index, self._report)
        job = self._job
        try:
            size_bytes = self._copy(job)
        except QuireError:
            self._job = None
            self._core.give_up(log_id)
            raise
        self.bytes_copied += size_bytes
        self._core.copied(size_bytes, self._clock.monotonic())
        if job.is_done:
            self._job = None
            if self._index.usage().get(log_id):
                self._core.give_up(log_id)

    def _copy(self, job: _Job) -> int:
        """Copy a batch, durably, then let the index point at the copy; answer the bytes copied."""
        old, runs = job.batch(self._batch_bytes)
        if not old:
            return 0
        new = self._logs.append(runs)
        self._logs.sync()
        self._index.replace(old, new)
        return sum(row.length for row in new)


class _Job:
    """One log that is being emptied: its live runs, batch by batch, in order of offsets."""

    def __init__(
        self, log_id: int, logs: EntryLogs, index: Index, report: Callable[[QuireError], None]
    ) -> None:
        self.log_id = log_id
        self.is_done = False
        self._logs = logs
        self._index = index
        self._report = report
        self._rows: Iterator[IndexRow] = EntryLogScanner(logs, report).scan(log_id)

    def batch(self, size_bytes_max: int) -> tuple[list[IndexRow], list[tuple[int, list[Buffer]]]]:
        """Runs that are live now, about `size_bytes_max` of them: their rows, and their blocks by ledger, sorted."""
        rows: list[IndexRow] = []
        blocks: dict[IndexRow, list[Buffer]] = {}
        size_bytes = 0
        while size_bytes < size_bytes_max and not self.is_done:
            row = next(self._rows, None)
            if row is None:
                self.is_done = True
            elif self._index.find(row.ledger_id, row.first_entry) == row and (found := self._read(row)):
                rows.append(row)
                blocks[row] = found
                size_bytes += row.length
        rows.sort()
        return rows, [(row.ledger_id, blocks[row]) for row in rows]

    def _read(self, row: IndexRow) -> list[Buffer]:
        """The run's blocks, verified: what is copied unverified would get a fresh checksum over its damage."""
        found: list[Buffer] = []
        at = 0
        try:
            run = self._logs.read(row.log_id, row.offset, row.length)
            while at < row.length:
                length = verify(run, at).length
                found.append(run[at : at + length])
                at += length
        except BlockError as error:
            self._report(CorruptionError(str(error), self._logs.file_name(row.log_id), row.offset + at))
            return []
        except (CorruptionError, DiskError) as error:
            self._report(error)
            return []
        return found
