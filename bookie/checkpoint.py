"""The checkpoint: a frozen memtable goes to the entry log, and the mark moves past its journal groups.

The order is the whole point (rule 21): entry log written → synced → rows, fences, LACs, tombstones, limbo and
mark committed in one transaction of the index → only then journal segments before the mark are written over. A
crash anywhere leaves either the old mark, and replay brings everything again, or the new one, and nothing is
missing. What lies in the entry log without a row is dead weight that the collector finds.

The mark is the number of the last journal group whose every block is in the entry log and index:

    mark      8 bytes, big-endian: group number

`rebuild` makes a new index out of the entry logs when the old one is lost. Fences, LACs and tombstones are not in
the entry logs, so everything is fenced afterwards (rule 22).

All this blocks and belongs on the checkpoint's own thread, or in a start.
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


def encode_mark(number: int) -> bytes:
    return number.to_bytes(8, "big")


def decode_mark(mark: bytes) -> int:
    return int.from_bytes(mark, "big")


@dataclass(slots=True)
class Checkpoint:
    """What one checkpoint writes: a memtable, the ledgers that changed beside it, and the mark that this allows."""

    table: Memtable
    changed: Sequence[LedgerState]
    """Every ledger with blocks in the table, and every ledger that was fenced, deleted or told its LAC."""
    deleted: Sequence[int]
    mark: int
    is_counted: bool = False

    @classmethod
    def of(cls, table: Memtable, changed: Sequence[LedgerState], mark: int) -> Checkpoint:
        """Of what `WriteCache.freeze` returns; ledgers with a tombstone are deleted with it."""
        deleted = [state.ledger_id for state in changed if state.tombstone_version is not None]
        return cls(table, changed, deleted, mark)

    def runs(self) -> Iterator[tuple[int, Sequence[Buffer]]]:
        """(ledger, blocks) by ledger, without the ledgers that were deleted meanwhile."""
        deleted = set(self.deleted)
        return (run for run in self.table.runs() if run[0] not in deleted)

    def count(self) -> None:
        """Add the table's blocks to what the ledgers have in the entry log; once, however often it is tried."""
        if self.is_counted:
            return
        self.is_counted = True
        for state in self.changed:
            found = self.table.ledgers.get(state.ledger_id)
            if found is not None:
                state.flushed_last_entry = max(state.flushed_last_entry, found.last_entry)
                state.flushed_bytes += found.size_bytes


def perform(checkpoint: Checkpoint, logs: EntryLogs, index: Index) -> None:
    """Make one checkpoint. `DiskFull`: try the same again later. Any other error: the journal stays needed."""
    rows = logs.append(checkpoint.runs())
    logs.sync()
    checkpoint.count()
    records = {state.ledger_id: state.encode() for state in checkpoint.changed}
    index.commit(rows, records, encode_mark(checkpoint.mark), checkpoint.deleted)


def free_deleted(states: Sequence[LedgerState], logs: EntryLogs, index: Index, collector: Collector) -> None:
    """A disk that is full for the checkpoint: what was deleted since gives its room back.

    Tombstones may be committed before the blocks and journal groups around them: the mark stays. What compaction can
    win beyond that comes at its own pace.
    """
    if states:
        records = {state.ledger_id: state.encode() for state in states}
        index.commit((), records, index.mark(), list(records))
    while collector.run() == 0:
        pass
    while logs.trim_spares(keep=0):  # what is being written can grow into free room, not into another file
        pass


@dataclass(slots=True)
class Rebuilt:
    """What a rebuild found."""

    rows: int
    damage: list[str]
    """Records that had been durable and are damaged or missing: blocks may be lost."""


def rebuild(logs: EntryLogs, index: Index) -> Rebuilt:
    """Fill an empty index from the entry logs; every ledger found is fenced. The mark starts at 0."""
    damage: list[str] = []
    held: set[int] = set()

    def report(error: CorruptionError) -> None:
        if isinstance(error, TornRecord):
            log.info("index rebuild: unfinished tail: %s", error)
            return
        log.error("index rebuild: %s", error)
        damage.append(str(error))
        held.add(int(PurePath(error.file).stem))

    logs.sync_all()  # what is found may be in a cache only, if its writer died
    rows = _latest(EntryLogScanner(logs, report).scan_all(), logs)
    for start in range(0, len(rows), _ROWS_PER_COMMIT):
        index.commit(rows[start : start + _ROWS_PER_COMMIT], {}, b"")
    for log_id in held:
        index.hold(log_id, 1)
    states = _states_of(rows)
    index.commit((), {ledger_id: state.encode() for ledger_id, state in states.items()}, encode_mark(0))
    return Rebuilt(len(rows), damage)


def _latest(found: Iterable[IndexRow], logs: EntryLogs) -> list[IndexRow]:
    """Rows by ledger and first entry. Of what several hold the latest counts: it was compacted, or mended.

    An older row of which later ones hold a part is cut at its blocks.
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
    """Those of sorted rows, none of which overlap, that hold entries of `row`."""
    begin = bisect_left(rows, row.first_entry, key=lambda one: one.last_entry)
    end = bisect_right(rows, row.last_entry, key=lambda one: one.first_entry)
    return rows[begin:end]


def _rest_of(row: IndexRow, later: list[IndexRow], logs: EntryLogs) -> list[IndexRow]:
    """The blocks of a row of which no entry is in `later`."""
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
