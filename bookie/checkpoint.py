"""Checkpoint: writes a frozen memtable to the entry log, and moves the mark past its journal groups.

The order is essential (rule 21): write and sync the entry log; commit rows, fences, LACs, tombstones, limbo and mark
in one transaction of the index; only then reuse journal segments before the mark. After a crash, the mark is either
the old one, and the replay restores everything, or the new one, and nothing is missing. The collector reclaims bytes in
entry logs that no row refers to. A checkpoint is the counterpart of BookKeeper's
[SyncThread](https://github.com/apache/bookkeeper/blob/master/bookkeeper-server/src/main/java/org/apache/bookkeeper/bookie/SyncThread.java).

The mark is the number of the last journal group up to which every block is in the entry log and the index:

    mark      8 bytes, big-endian: group number

`rebuild` makes a new index from the entry logs when the old one is lost. Entry logs do not contain fences, LACs and
tombstones, so all ledgers are fenced after a rebuild (rule 22).

All functions block; they run on the checkpoint's own thread, or during a start.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import PurePath
from typing import Final

from quire.bookie.collector import Collector
from quire.bookie.entry_log import EntryLogs
from quire.bookie.entry_log_scanner import EntryLogScanner, TornRecord, blocks_of
from quire.bookie.index import Index, IndexRow
from quire.bookie.ledgers import LedgerState
from quire.bookie.memtable import Memtable
from quire.runtime.errors import CorruptionError
from quire.wire.block import Buffer

log = logging.getLogger(__name__)

_ROWS_PER_COMMIT: Final = 100_000
"""Maximum number of rows per transaction of a rebuild, which limits the transaction's memory."""


def encode_mark(number: int) -> bytes:
    return number.to_bytes(8, "big")


def decode_mark(mark: bytes) -> int:
    return int.from_bytes(mark, "big")


@dataclass(slots=True)
class Checkpoint:
    """Content of one checkpoint: a memtable, changed ledgers, and the mark after it."""

    table: Memtable
    changed: Sequence[LedgerState]
    """Ledgers with blocks in the table, and ledgers with a new fence, tombstone or LAC."""
    deleted: Sequence[int]
    mark: int
    is_counted: bool = False

    @classmethod
    def of(cls, table: Memtable, changed: Sequence[LedgerState], mark: int) -> Checkpoint:
        """Create a checkpoint from the result of `WriteCache.freeze`; it deletes the ledgers with a tombstone."""
        deleted = [state.ledger_id for state in changed if state.tombstone_version is not None]
        return cls(table, changed, deleted, mark)

    def runs(self) -> Iterator[tuple[int, Sequence[Buffer]]]:
        """Return an iterator of (ledger id, its blocks), sorted by ledger, without deleted ledgers."""
        deleted = set(self.deleted)
        return (run for run in self.table.runs() if run[0] not in deleted)

    def count(self) -> None:
        """Add the table's blocks to the flushed totals of their ledgers, once even if the checkpoint is retried."""
        if self.is_counted:
            return
        self.is_counted = True
        for state in self.changed:
            found = self.table.ledgers.get(state.ledger_id)
            if found is not None:
                state.flushed_last_entry = max(state.flushed_last_entry, found.last_entry)
                state.flushed_bytes += found.size_bytes


def perform(checkpoint: Checkpoint, logs: EntryLogs, index: Index) -> None:
    """Execute one checkpoint. After `DiskFull`, the caller retries it; after other errors, the journal must be kept."""
    rows = logs.append(checkpoint.runs())
    logs.sync()
    checkpoint.count()
    records = {state.ledger_id: state.encode() for state in checkpoint.changed}
    index.commit(rows, records, encode_mark(checkpoint.mark), checkpoint.deleted)


def free_deleted(states: Sequence[LedgerState], logs: EntryLogs, index: Index, collector: Collector) -> None:
    """Free the space of the deleted ledgers in `states`, because the disk is too full for the checkpoint.

    Their tombstones may be committed before the blocks of earlier journal groups, because the mark does not move.
    Compaction keeps its rate limit.
    """
    if states:
        records = {state.ledger_id: state.encode() for state in states}
        index.commit((), records, index.mark(), list(records))
    while collector.run() == 0:
        pass
    while logs.trim_spares(keep=0):  # the active log can grow into free space, but not into a spare file
        pass


@dataclass(slots=True)
class Rebuilt:
    """Result of a rebuild."""

    rows: int
    damage: list[str]
    """Descriptions of records that were durable, but are damaged or missing now, so that blocks may be lost."""


def rebuild(logs: EntryLogs, index: Index) -> Rebuilt:
    """Fill an empty index from the entry logs, and fence every ledger that has blocks there. Set the mark to 0."""
    damage: list[str] = []
    held: set[int] = set()

    def report(error: CorruptionError) -> None:
        if isinstance(error, TornRecord):
            log.info("index rebuild: incomplete tail: %s", error)
            return
        log.error("index rebuild: %s", error)
        damage.append(str(error))
        held.add(int(PurePath(error.file).stem))

    logs.sync_all()  # if the last process crashed, its records may be only in the page cache
    rows = _latest(EntryLogScanner(logs, report).scan_all(), logs)
    for start in range(0, len(rows), _ROWS_PER_COMMIT):
        index.commit(rows[start : start + _ROWS_PER_COMMIT], {}, b"")
    for log_id in held:
        index.hold(log_id, 1)
    states = _states_of(rows)
    index.commit((), {ledger_id: state.encode() for ledger_id, state in states.items()}, encode_mark(0))
    return Rebuilt(len(rows), damage)


def _latest(found: Iterable[IndexRow], logs: EntryLogs) -> list[IndexRow]:
    """Return rows without overlaps, sorted by ledger and first entry.

    If several rows contain an entry, the row that was written last is used, because compaction or a restore wrote it.
    An older row that later rows cover in part is replaced by rows of its other blocks.
    """
    rows = sorted(found, key=lambda row: (row.ledger_id, -row.log_id, -row.offset))
    kept: list[IndexRow] = []
    for _, of_ledger in groupby(rows, key=lambda row: row.ledger_id):
        taken: list[IndexRow] = []
        for row in of_ledger:
            for piece in [row] if not (later := _overlapping(taken, row)) else _rest_of(row, later, logs):
                insort(taken, piece)
        kept += taken
    return kept


def _overlapping(rows: list[IndexRow], row: IndexRow) -> list[IndexRow]:
    """Return the rows of `rows` that share an entry with `row`; `rows` is sorted, without overlaps."""
    begin = bisect_left(rows, row.first_entry, key=lambda one: one.last_entry)
    end = bisect_right(rows, row.last_entry, key=lambda one: one.first_entry)
    return rows[begin:end]


def _rest_of(row: IndexRow, later: list[IndexRow], logs: EntryLogs) -> list[IndexRow]:
    """Return rows for those blocks of a row that have no entry in `later`."""
    held = sum(
        min(one.last_entry, row.last_entry) - max(one.first_entry, row.first_entry) + 1 for one in later
    )
    if held == row.last_entry - row.first_entry + 1:
        return []
    return [block for block in blocks_of(logs, row) if not _overlapping(later, block)]


def _states_of(rows: Iterable[IndexRow]) -> dict[int, LedgerState]:
    states: dict[int, LedgerState] = {}
    for row in rows:
        state = states.get(row.ledger_id)
        if state is None:
            state = states[row.ledger_id] = LedgerState(row.ledger_id)
            state.fence()
        state.lac = max(state.lac, row.lac)
        state.flushed_last_entry = max(state.flushed_last_entry, row.last_entry)
        state.flushed_bytes += row.length
    return states
