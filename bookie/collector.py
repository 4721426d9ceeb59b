"""Garbage collector: frees the space of deleted ledgers in the entry logs.

A ledger's rows are deleted from the index only after a tombstone, never because a ledger is missing from a list. The
index counts the bytes of live rows of each entry log. `CollectorCore` chooses the next step from these counts and the
sizes of the files:

    log                                                        step
    no count, and it existed when the bookie started           free: a crash preceded its first commit
    no count, and it is newer                                  keep: its first commit follows
    count 0                                                    free
    count at most half of the file, with space for the copy    compact, beginning with the lowest live share
    count at most nine tenths of the file, and space is short  compact
    otherwise                                                  keep

To free a log, its count is dropped, then its file is renamed to a spare. To compact a log, its live runs are copied to
the active log: the copy is synced, then the index swaps the rows in one transaction. When all runs are copied, the
log's count is 0. A crash at any time leaves at most some copied runs without a row. Unreadable runs are not copied; the
damage is reported, and their log is not compacted again. The collector is the counterpart of BookKeeper's
[GarbageCollectorThread](https://github.com/apache/bookkeeper/blob/master/bookkeeper-server/src/main/java/org/apache/bookkeeper/bookie/GarbageCollectorThread.java).

Copying has a rate limit (`COMPACTION_BYTES_PER_S`) and runs in batches. It may use a part of the disk's reserve, so it
works while the disk is full and writers are refused (`room`). While space is short, spare files are removed, because
other users of the disk may need the space.

`Collector` is the shell. It runs on the thread that appends and commits, and only when everything appended is
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
from quire.runtime.token_bucket import TokenBucket
from quire.wire.block import BlockError, Buffer, verify

LIVE_SHARE_MAX: Final = 0.5
"""Maximum live share of a file for compaction, so that at most one byte is copied per byte freed."""

LIVE_SHARE_MAX_SHORT: Final = 0.9
"""Maximum live share of a file for compaction while space is short."""


class Free(NamedTuple):
    """Step: free a log without live rows."""

    log_id: int


class Compact(NamedTuple):
    """Step: compact a log by copying its `live_bytes`."""

    log_id: int
    live_bytes: int


class Wait(NamedTuple):
    """Step: wait before the next batch, because of the rate limit."""

    seconds: float


Step = Free | Compact | Wait | None


class CollectorCore:
    """Policy that chooses the next step, without I/O.

    `found_at_start` contains the ids of logs that existed when the bookie started.
    """

    def __init__(self, found_at_start: set[int], *, bytes_per_s: int = COMPACTION_BYTES_PER_S) -> None:
        self._found_at_start = found_at_start
        self._rate = TokenBucket(bytes_per_s, 0.0, burst=0)
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
        """Return the next step, given the live bytes (`usage`) and the size of each log.

        `room_bytes` is the space that copies may use. `is_short`: disk space is short, so fuller logs are compacted.
        """
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
        wait_s = self._rate.wait_s(now_s)
        if wait_s > 0:
            return Wait(wait_s)
        _, log_id = min(candidates)
        return Compact(log_id, usage[log_id])

    def copied(self, size_bytes: int, now_s: float) -> None:
        """Record a copied batch, which delays the next one by the rate limit."""
        self._rate.reserve(size_bytes, now_s)

    def give_up(self, log_id: int) -> None:
        """Exclude a log that cannot be emptied from compaction, until the next start of the bookie."""
        self._given_up.add(log_id)


class Collector:
    """Executor of the core's steps, one per call of `run`. It calls `report` with damage that it finds while copying.

    Without `room`, it may use all space of the disk.
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
        """Execute one step, which copies at most one batch.

        Return the seconds until the next call, or None if no step is left. Raises errors of disk and index, after which
        no data are lost. A log whose compaction failed is excluded until the next start.
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
        """Copy a batch and sync it, then replace its rows in the index; return the bytes copied."""
        old, runs = job.batch(self._batch_bytes)
        if not old:
            return 0
        new = self._logs.append(runs)
        self._logs.sync()
        assert sum(row.length for row in new) == sum(row.length for row in old)
        self._index.replace(old, new)
        return sum(row.length for row in new)


class _Job:
    """Compaction of one log in progress; it returns the log's live runs in batches, in order of offsets."""

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
        """Return the next live runs, of about `size_bytes_max`: their rows, and their blocks by ledger, both sorted."""
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
        """Return the run's blocks after verifying them; [] if the run is damaged, which is reported.

        Without this check, damaged bytes would be copied into a record with a valid checksum.
        """
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
