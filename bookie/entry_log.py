"""Entry logs: a few large files with the blocks of all ledgers; blocks of the same ledger are adjacent.

A checkpoint appends a whole memtable sorted by ledger, like BookKeeper's
[SortedLedgerStorage](https://github.com/apache/bookkeeper/blob/master/bookkeeper-server/src/main/java/org/apache/bookkeeper/bookie/SortedLedgerStorage.java).
Blocks are stored byte for byte, many to a *record* (format: `bookie/entry_record.py`). A record is one direct write of
up to 2 MiB. Whole blocks of one ledger that are adjacent in a record are a *run*, with one `IndexRow`.

**The log id is the epoch.** The file of a log without live rows is renamed to `<log id>.free`, and later to the next
log id. The new name is durable before the first write, so old records in the file contain another log id and are never
read. A write into allocated space takes microseconds, but a write into a new file takes milliseconds at the p99. So a
few freed logs are kept as *spares* and reused, and files, whose deletion is slow, are rarely deleted. A new file grows
by steps of 64 MiB, which are allocated but not filled with zeros.

**A started bookie never appends to an old log**, because after the last committed row, the log may contain records that
the index does not name. Each start begins a new log, and the collector merges small ones. (`entry_log_scanner` finds
all runs without the index.)

**An unreadable page** affects only the blocks on it, because reads skip the page (`Salvaged`). If the header of a block
is on the page, or damaged, later blocks of the run are also unreadable, until that block is restored.

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
    """Unverified bytes `run` from `offset` of a log, and the errors of unreadable pages, by their offset in the log.

    `run` contains zeros for unreadable pages.
    """

    run: memoryview
    offset: int
    unreadable: dict[int, str]

    def is_read(self, start: int, end: int) -> bool:
        """Return whether all of `run[start:end]` is readable."""
        return not self._why_not(start, end)

    def error(self, what: str, file: str, start: int, end: int) -> QuireError:
        """Return the error of an invalid `run[start:end]`: `DiskError` for unreadable pages, else `CorruptionError`."""
        why = self._why_not(start, end)
        return DiskError(why[0]) if why else CorruptionError(what, file, self.offset + start)

    def _why_not(self, start: int, end: int) -> list[str]:
        start, end = start + self.offset, end + self.offset
        return [why for page, why in self.unreadable.items() if page < end and start < page + PAGE_BYTES]


class LogFreed(Unavailable):
    """Raised by a read from a log that was freed after its row was looked up. The caller looks up the entry again."""


class EntryLogs:
    """Entry logs in `directory` of `disk`.

    A log has at most `file_bytes` and grows by `step_bytes`. A record has at most `record_bytes`; a larger block is a
    record of its own.
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
        """Find existing logs and spares. The first append begins a new log."""
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
        """Close all files; no method may be called afterwards. Bytes that were not synced are not durable."""
        with self._lock:
            for file in [*self._logs.values(), *self._idle_files]:
                file.close()
            self._logs.clear()
            self._idle_files.clear()

    # -- writing -----------------------------------------------------------------------------------------

    def append(self, runs: Iterable[tuple[int, Sequence[Buffer]]]) -> list[IndexRow]:
        """Write the blocks in `runs`; return their rows, in the same order.

        Each item of `runs` is a ledger id and its blocks in order of entries. The blocks are durable after `sync`.
        After an error (`DiskFull`, `DiskError`) no row is valid; the same blocks may be appended again.
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
            self._active = None  # the file's content is unknown, so the next append begins another file
            self._unsynced.clear()
            raise
        return found.finish()

    def _add(self, ledger_id: int, block: Buffer, found: RunBuilder) -> None:
        """Copy one block into the open record. This runs once per block."""
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
        """Write the open record, and reserve space for the next one in the buffer and in the file.

        The first block of the next record has `block_bytes`.
        """
        active = self._active
        if active is not None:
            self._write_record(active)
        record_bytes = max(self._record_bytes, pages_up(HEADER_BYTES + block_bytes))
        if record_bytes != len(self._view):
            self._view.release()
            self._view = memoryview(aligned_buffer(record_bytes))
        if active is not None and active.end and active.end + record_bytes > self._file_bytes:
            self.sync()  # so that the first record of the next log proves that this log is durable
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
        assert active.end % PAGE_BYTES == 0 and active.end + whole <= active.allocated
        active.file.write(self._view[:whole], active.end)
        active.end += whole
        active.number += 1
        active.filled = 0

    def sync(self) -> None:
        """Make everything appended durable.

        After an error, rows of blocks appended since the last sync must not be committed; the next append begins a new
        log.
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
        """Make all logs durable, including writes of earlier processes."""
        for file in self._logs.values():
            file.sync()

    def _new_log(self) -> _Active:
        """Begin a new log in a renamed spare or a new file, whose name is durable before the first write."""
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
        """Extend the file to at least `size_bytes`, usually by a whole step; by less if the disk is nearly full."""
        if size_bytes <= active.allocated:
            return
        wanted = max(size_bytes, min(self._file_bytes, active.allocated + self._step_bytes))
        if self._disk.space().free_bytes < 2 * (wanted - active.allocated):
            wanted = size_bytes
        active.file.allocate(wanted)
        active.allocated = wanted

    def room_bytes(self) -> int:
        """Return the bytes that can be appended before `DiskFull`."""
        return self._disk.space().free_bytes + self.unused_bytes()

    def unused_bytes(self) -> int:
        """Return the allocated bytes without content: the rest of the active log, and spares."""
        active = self._active
        unwritten = active.allocated - active.end if active is not None else 0
        return unwritten + sum(tuple(self._spares.values()))

    # -- freeing -----------------------------------------------------------------------------------------

    def sizes(self) -> dict[int, int]:
        """Return the size of each log's file, without the active log."""
        active = self._active.log_id if self._active else 0
        with self._lock:
            return {log_id: file.size_bytes() for log_id, file in self._logs.items() if log_id != active}

    def free(self, log_id: int) -> None:
        """Free a log without live rows: it becomes a spare."""
        assert self._active is None or self._active.log_id != log_id
        assert all(written.log_id != log_id for written in self._unsynced)
        with self._lock:
            file = self._logs.pop(log_id)
            self._idle_files.append(file)
        size_bytes = file.size_bytes()
        # After a crash, the file may have its old name again. It has no row, so it is freed again.
        self._disk.rename(self._path(log_id), self._path(log_id, "free"))
        self._spares[log_id] = size_bytes
        self._close_idle_files()

    def trim_spares(self, keep: int = ENTRY_LOG_SPARES_MAX) -> bool:
        """Remove one spare file if there are more than `keep`; return whether one was removed.

        Removing a file is slow.
        """
        self._close_idle_files()
        if len(self._spares) <= keep:
            return False
        log_id = next(reversed(self._spares))
        self._disk.remove(self._path(log_id, "free"))
        del self._spares[log_id]
        return True

    def _close_idle_files(self) -> None:
        """Close the files of freed logs when no read is in progress."""
        with self._lock:
            if not self._reads:
                for file in self._idle_files:
                    file.close()
                self._idle_files.clear()

    # -- reading -----------------------------------------------------------------------------------------

    def read(self, log_id: int, offset: int, length: int) -> memoryview:
        """Return `length` unverified bytes from `offset`, in a new buffer.

        Raises `LogFreed`, `CorruptionError` if the file is too short, `DiskError`.
        """
        found = self.salvage(log_id, offset, length)
        if found.unreadable:
            raise DiskError(next(iter(found.unreadable.values())))
        return found.run

    def salvage(self, log_id: int, offset: int, length: int) -> Salvaged:
        """Read like `read`, with zeros for unreadable pages. Raises `DiskError` if there are too many of them."""
        with self._reading(log_id) as file:
            if offset + length > (size_bytes := file.size_bytes()):
                raise CorruptionError("an entry log is truncated", file.name, size_bytes)
        return self.salvage_into(aligned_buffer(offset % PAGE_BYTES + length), log_id, offset, length)

    def salvage_into(self, buffer: mmap, log_id: int, offset: int, length: int) -> Salvaged:
        """Read like `salvage`, into a page-aligned buffer with space for whole pages; `run` is a view into it."""
        start = offset % PAGE_BYTES
        view = memoryview(buffer)[: pages_up(start + length)]
        with self._reading(log_id) as file:
            got, unreadable = read_around(file, view, offset - start, UNREADABLE_PAGES_MAX)
        if got < start + length:
            raise CorruptionError("an entry log is truncated", file.name, offset - start + got)
        return Salvaged(memoryview(buffer)[start : start + length], offset, unreadable)

    @contextmanager
    def _reading(self, log_id: int) -> Iterator[File]:
        """Keep the log's file open during a read. Raises `LogFreed`, also if the log is freed during the read."""
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
        if freed:  # the file may have been reused under another name during the read
            raise LogFreed(f"entry log {log_id} was freed")

    def files(self) -> dict[int, File]:
        """Return the logs' files, oldest log first."""
        return dict(sorted(self._logs.items()))

    def file_name(self, log_id: int) -> str:
        """Return the name of the log's file for error messages."""
        file = self._logs.get(log_id)
        return file.name if file is not None else self._path(log_id)

    def _path(self, log_id: int, kind: str = "log") -> str:
        name = f"{log_id:08d}.{kind}"
        return f"{self._directory}/{name}" if self._directory else name


class _Active:
    """Log that is being written. `filled` is the size of the open record; 0 if there is none."""

    def __init__(self, log_id: int, file: File, allocated: int) -> None:
        self.log_id = log_id
        self.file = file
        self.allocated = allocated
        self.end = 0
        self.number = 0
        self.filled = 0
