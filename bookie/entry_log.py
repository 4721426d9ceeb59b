"""The entry logs: a few large files in which the blocks of all ledgers lie, those of one ledger together.

A checkpoint appends a whole memtable sorted by ledger. Blocks are stored byte for byte, many to a *record*
(`bookie/entry_record.py` has its bytes), and a record is one direct write of up to 2 MiB. Whole blocks of one
ledger that lie side by side in a record make a run, and a run is one `IndexRow`.

**The log id is the epoch.** A log that holds nothing any more is renamed to `<log id>.free` and later to the next
log id, the new name durable before the first write: what a former life left in the file names another log id
and is never read. Writing into room that a file already has costs microseconds where a fresh file costs
milliseconds at the p99, so freed logs are kept (a few) and nothing is deleted while the path is hot. A new file
grows by steps of 64 MiB, reserved and not written: writing it twice would cost more than it gains.

**A start never appends to an old log**: behind its last committed row may lie records that no index names. It begins
a new one, and the collector merges what stays small. (`entry_log_scanner` finds every run again without the index.)

**A page that cannot be read** costs the blocks on it and no others: reads go around it (`Salvaged`). (Where a block's
header lies on it, those behind it in the run must wait until that block is mended, as behind a rotten one.)

One thread appends, syncs and frees; any thread may read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from mmap import mmap
from threading import Lock
from typing import NamedTuple

from quire.bookie.entry_record import HEADER_BYTES, RunBuilder, seal
from quire.bookie.index import IndexRow
from quire.runtime.disk import PAGE_BYTES, Disk, File, aligned_buffer, pages_up, read_around
from quire.runtime.errors import CorruptionError, DiskError, DiskFull, QuireError, Unavailable
from quire.runtime.limits import (
    ENTRY_LOG_BYTES,
    ENTRY_LOG_RECORD_BYTES,
    ENTRY_LOG_SPARES_MAX,
    ENTRY_LOG_STEP_BYTES,
    UNREADABLE_PAGES_MAX,
)
from quire.wire.block import Buffer, brief


class Salvaged(NamedTuple):
    """Unverified bytes from `offset` of a log, and why pages cannot be read, by their offsets: zeros in `run`."""

    run: memoryview
    offset: int
    unreadable: dict[int, str]

    def is_read(self, start: int, end: int) -> bool:
        """Whether all of `run[start:end]` could be read."""
        return not self._why_not(start, end)

    def error(self, what: str, file: str, start: int, end: int) -> QuireError:
        """What to raise when `run[start:end]` is not what it should be: that it cannot be read, or `what`."""
        why = self._why_not(start, end)
        return DiskError(why[0]) if why else CorruptionError(what, file, self.offset + start)

    def _why_not(self, start: int, end: int) -> list[str]:
        start, end = start + self.offset, end + self.offset
        return [why for page, why in self.unreadable.items() if page < end and start < page + PAGE_BYTES]


class LogFreed(Unavailable):
    """The log was freed since its row was read: the run lies elsewhere now, or nowhere. Ask the index again."""


class EntryLogs:
    """The entry logs in `directory` of `disk`.

    `file_bytes` is what a log holds, `step_bytes` what it grows by, `record_bytes` the most that one write
    holds (a larger block is a record of its own).
    """

    def __init__(
        self,
        disk: Disk,
        directory: str = "",
        *,
        file_bytes: int = ENTRY_LOG_BYTES,
        step_bytes: int = ENTRY_LOG_STEP_BYTES,
        record_bytes: int = ENTRY_LOG_RECORD_BYTES,
    ) -> None:
        assert not (file_bytes % PAGE_BYTES or step_bytes % PAGE_BYTES or record_bytes % PAGE_BYTES)
        self._disk = disk
        self._directory = directory
        self._file_bytes, self._step_bytes, self._record_bytes = file_bytes, step_bytes, record_bytes
        self._lock = Lock()
        self._logs: dict[int, File] = {}
        self._spares: dict[int, int] = {}
        self._reads = 0
        self._idle_files: list[File] = []
        self._active: _Active | None = None
        self._unsynced: list[_Active] = []
        self._durable = (0, 0)
        self._last_log_id = 0
        self._view = memoryview(aligned_buffer(record_bytes))

    def open(self) -> None:
        """Find the logs and the spare ones. The first append begins a new log."""
        self._disk.make_directory(self._directory)
        for name in self._disk.names(self._directory):
            stem, _, kind = name.partition(".")
            if kind not in ("log", "free") or not stem.isdigit():
                continue
            log_id = int(stem)
            self._last_log_id = max(self._last_log_id, log_id)
            file = self._disk.open(self._path(log_id, kind))
            if kind == "log":
                self._logs[log_id] = file
            else:
                self._spares[log_id] = file.size_bytes()
                file.close()

    def close(self) -> None:
        """Nothing may be called afterwards. What was not synced is not durable."""
        with self._lock:
            for file in [*self._logs.values(), *self._idle_files]:
                file.close()
            self._logs.clear()
            self._idle_files.clear()

    # -- writing -----------------------------------------------------------------------------------------

    def append(self, runs: Iterable[tuple[int, Sequence[Buffer]]]) -> list[IndexRow]:
        """Write the blocks, each ledger's in order of entries; answer the rows that find them, in the same order.

        Nothing is durable before `sync`. When it raises (`DiskFull`, `DiskError`) no row stands for anything: append
        the same again, later or never.
        """
        found = RunBuilder()
        try:
            for ledger_id, blocks in runs:
                for block in blocks:
                    self._add(ledger_id, block, found)
            if self._active is not None:
                self._write_record(self._active)
        except DiskFull:
            if self._active is not None:
                self._active.filled = 0
            raise
        except BaseException:
            self._active = None  # nobody knows what is in the file: begin another one
            self._unsynced.clear()
            raise
        return found.finish()

    def _add(self, ledger_id: int, block: Buffer, found: RunBuilder) -> None:
        """Copy one block into the record that is being filled. This runs once per block."""
        length = len(block)
        active = self._active
        if active is None or not active.filled or active.filled + length > len(self._view):
            active = self._next_record(length)
        start = active.filled
        active.filled = end = start + length
        self._view[start:end] = block
        in_brief = brief(block)
        assert in_brief[1] == ledger_id
        found.add(active.log_id, active.end + start, length, in_brief)

    def _next_record(self, block_bytes: int) -> _Active:
        """Write what is filled and make room, in buffer and file, for a record that begins with such a block."""
        active = self._active
        if active is not None:
            self._write_record(active)
        record_bytes = max(self._record_bytes, pages_up(HEADER_BYTES + block_bytes))
        if record_bytes != len(self._view):
            self._view.release()
            self._view = memoryview(aligned_buffer(record_bytes))
        if active is not None and active.end and active.end + record_bytes > self._file_bytes:
            self.sync()  # so that the next log's first record can say that all of this one is durable
            self._active = active = None
        if active is None:
            self._active = active = self._new_log()
        self._grow(active, active.end + record_bytes)
        active.filled = HEADER_BYTES
        return active

    def _write_record(self, active: _Active) -> None:
        if not active.filled:
            return
        whole = seal(self._view, active.filled, active.log_id, active.number, self._durable)
        if active not in self._unsynced:
            self._unsynced.append(active)
        active.file.write(self._view[:whole], active.end)
        active.end += whole
        active.number += 1
        active.filled = 0

    def sync(self) -> None:
        """Make everything appended durable. When it raises, what was appended since the last sync is not to be
        committed; the next append begins a new log.
        """
        try:
            for written in self._unsynced:
                written.file.sync()
        except BaseException:
            self._active = None
            self._unsynced.clear()
            raise
        with_records = [active for active in self._unsynced if active.number]
        if with_records:
            self._durable = (with_records[-1].log_id, with_records[-1].number - 1)
        self._unsynced.clear()

    def sync_all(self) -> None:
        """Make everything durable that was ever written here, by whichever process."""
        for file in self._logs.values():
            file.sync()

    def _new_log(self) -> _Active:
        """A spare file under a new name, or a new file; the name is durable before anything is written."""
        log_id = self._last_log_id + 1
        if self._spares:
            spare = next(iter(self._spares))
            self._disk.rename(self._path(spare, "free"), self._path(log_id))
            del self._spares[spare]
        elif self._disk.space().free_bytes < self._record_bytes:
            raise DiskFull(f"{self._disk.root} has no room for another entry log; free space or add a disk")
        self._last_log_id = log_id
        file = self._disk.open(self._path(log_id), create=True)
        self._disk.sync_directory(self._directory)
        with self._lock:
            self._logs[log_id] = file
        return _Active(log_id, file, file.size_bytes())

    def _grow(self, active: _Active, size_bytes: int) -> None:
        """By a step; by what is needed where the disk has no more, for a step would take all of what is left."""
        if size_bytes <= active.allocated:
            return
        wanted = max(size_bytes, min(self._file_bytes, active.allocated + self._step_bytes))
        if self._disk.space().free_bytes < 2 * (wanted - active.allocated):
            wanted = size_bytes
        active.file.allocate(wanted)
        active.allocated = wanted

    def room_bytes(self) -> int:
        """What can be appended before `DiskFull`."""
        return self._disk.space().free_bytes + self.unused_bytes()

    def unused_bytes(self) -> int:
        """Room that files have and nothing is in: of the log that is being written, and of spare ones."""
        active = self._active
        unwritten = active.allocated - active.end if active is not None else 0
        return unwritten + sum(tuple(self._spares.values()))

    # -- freeing -----------------------------------------------------------------------------------------

    def sizes(self) -> dict[int, int]:
        """For each log the bytes it occupies; the one that is being written is not among them."""
        active = self._active.log_id if self._active else 0
        with self._lock:
            return {log_id: file.size_bytes() for log_id, file in self._logs.items() if log_id != active}

    def free(self, log_id: int) -> None:
        """Give up a log that no row points into: it becomes a spare."""
        assert self._active is None or self._active.log_id != log_id
        assert all(written.log_id != log_id for written in self._unsynced)
        with self._lock:
            file = self._logs.pop(log_id)
            self._idle_files.append(file)
        size_bytes = file.size_bytes()
        # The file may come back under its old name after a crash: no row points to it, it is freed again.
        self._disk.rename(self._path(log_id), self._path(log_id, "free"))
        self._spares[log_id] = size_bytes
        self._close_idle_files()

    def trim_spares(self, keep: int = ENTRY_LOG_SPARES_MAX) -> bool:
        """Remove one spare file beyond `keep`, not more, because a removal costs; answer whether there was one."""
        self._close_idle_files()
        if len(self._spares) <= keep:
            return False
        log_id = next(reversed(self._spares))
        self._disk.remove(self._path(log_id, "free"))
        del self._spares[log_id]
        return True

    def _close_idle_files(self) -> None:
        """Close what readers may still have had in hand when it was freed, once nobody reads."""
        with self._lock:
            if not self._reads:
                for file in self._idle_files:
                    file.close()
                self._idle_files.clear()

    # -- reading -----------------------------------------------------------------------------------------

    def read(self, log_id: int, offset: int, length: int) -> memoryview:
        """`length` bytes from `offset`, unverified, in memory of their own.

        Raises `LogFreed`, `CorruptionError` when the file ends before, `DiskError`.
        """
        found = self.salvage(log_id, offset, length)
        if found.unreadable:
            raise DiskError(next(iter(found.unreadable.values())))
        return found.run

    def salvage(self, log_id: int, offset: int, length: int) -> Salvaged:
        """Like `read`, but around pages that cannot be read. `DiskError` is for a disk on which they are many."""
        with self._reading(log_id) as file:
            if offset + length > (size_bytes := file.size_bytes()):
                raise CorruptionError("an entry log is cut short", file.name, size_bytes)
        return self.salvage_into(aligned_buffer(offset % PAGE_BYTES + length), log_id, offset, length)

    def salvage_into(self, buffer: mmap, log_id: int, offset: int, length: int) -> Salvaged:
        """Like `salvage`, into an aligned buffer that holds the pages around; `run` is a view into it."""
        start = offset % PAGE_BYTES
        view = memoryview(buffer)[: pages_up(start + length)]
        with self._reading(log_id) as file:
            got, unreadable = read_around(file, view, offset - start, UNREADABLE_PAGES_MAX)
        if got < start + length:
            raise CorruptionError("an entry log is cut short", file.name, offset - start + got)
        return Salvaged(memoryview(buffer)[start : start + length], offset, unreadable)

    @contextmanager
    def _reading(self, log_id: int) -> Iterator[File]:
        """The log's file, which stays open meanwhile. Raises `LogFreed`, also when it was freed meanwhile."""
        with self._lock:
            file = self._logs.get(log_id)
            if file is None:
                raise LogFreed(f"entry log {log_id} was freed")
            self._reads += 1
        try:
            yield file
        finally:
            with self._lock:
                self._reads -= 1
                freed = self._logs.get(log_id) is not file
        if freed:  # its file may have been written to under another name while we read
            raise LogFreed(f"entry log {log_id} was freed")

    def files(self) -> dict[int, File]:
        """The logs' files, oldest log first."""
        return dict(sorted(self._logs.items()))

    def file_name(self, log_id: int) -> str:
        """What to call the log in a message."""
        file = self._logs.get(log_id)
        return file.name if file is not None else self._path(log_id)

    def _path(self, log_id: int, kind: str = "log") -> str:
        name = f"{log_id:08d}.{kind}"
        return f"{self._directory}/{name}" if self._directory else name


class _Active:
    """A log that is being written. `filled` is what is in the record that is open, 0: none is."""

    def __init__(self, log_id: int, file: File, allocated: int) -> None:
        self.log_id = log_id
        self.file = file
        self.allocated = allocated
        self.end = 0
        self.number = 0
        self.filled = 0
