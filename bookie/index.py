"""Index: positions of a ledger's blocks in the entry logs, and the records that are committed with them.

It is sparse: there is one `IndexRow` per *run*, a sequence of adjacent blocks of one ledger (at most 256 KiB and 1,000
entries). So an entry is found by one lookup in the index and a scan of a few block headers in the entry log. The row
contains the clocks (ms) of its first and last block, so a search by time needs no other file.

`Index` is the interface. `LmdbIndex` (`bookie/index_lmdb.py`) is the persistent implementation. `MemoryIndex`
(`quire.testing`) is the shipped fake: it keeps committed transactions, forgets the rest at `crash()`, and passes the
same contract test.

Rules:

- `commit` is one durable transaction: rows, ledger records (fences, LACs, tombstones, limbo) and the checkpoint mark
  become visible and durable together, or none of them.
- In the same transaction, the index updates the number of bytes of live rows in each entry log. A log with a count of
  zero has no live block, and the collector frees it. A log with damaged records is *held*: extra bytes are added to its
  count, so it is never freed.
- Compaction replaces rows by rows of the same entries (`replace`), also in one transaction.
- The rows of a ledger do not overlap. So only the row with the highest first entry <= e can contain entry e. A flush
  never writes the same entry twice; a rebuild drops duplicate rows.

One thread writes; any thread may read. Errors: `CorruptionError` names the file, `DiskFull`, `DiskError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import merge
from typing import Final, NamedTuple, Protocol

from quire.bookie.neighbours import Runs

_ROWS_AT_ONCE: Final = 500


class IndexRow(NamedTuple):
    """Row of one run: the blocks of `ledger_id` from `first_entry` to `last_entry`, without a gap.

    They are `length` bytes from `offset` of entry log `log_id`. `lac` is the greatest LAC in these blocks; -1 if no
    block has a LAC.
    """

    ledger_id: int
    first_entry: int
    last_entry: int
    log_id: int
    offset: int
    length: int
    first_clock_ms: int
    last_clock_ms: int
    lac: int


class Index(Protocol):
    """Interface of the index, used by the storage, the readers and the collector."""

    def commit(
        self,
        rows: Iterable[IndexRow],
        ledgers: Mapping[int, bytes],
        mark: bytes,
        deleted: Iterable[int] = (),
    ) -> None:
        """Commit one durable transaction: delete the rows and records of `deleted` ledgers, then put all arguments.

        A tombstone is a record in `ledgers`.
        """
        ...

    def replace(self, old: Iterable[IndexRow], new: Iterable[IndexRow]) -> None:
        """Swap `old` rows for `new` rows in one durable transaction. Every old row must exist."""
        ...

    def find(self, ledger_id: int, entry_id: int) -> IndexRow | None:
        """Return the row that contains the entry; None if no row does."""
        ...

    def rows(self, ledger_id: int, from_entry: int, limit: int) -> list[IndexRow]:
        """Return at most `limit` rows in order, from the one that contains `from_entry` or the next one after it."""
        ...

    def last_entry(self, ledger_id: int) -> int:
        """Return the last entry in any row of the ledger; -1 if it has none."""
        ...

    def find_time(self, ledger_id: int, time_ms: int) -> int:
        """Return the first entry of the first row with a block whose clock is `time_ms` or later.

        Return the entry after the last one if every block is older, 0 if the ledger has no rows.
        """
        ...

    def ledgers(self) -> Iterator[tuple[int, bytes]]:
        """Return an iterator of (ledger id, record) over all ledgers with a record, in order of ids."""
        ...

    def mark(self) -> bytes:
        """Return the mark that was committed last; empty if there was no commit."""
        ...

    def usage(self) -> dict[int, int]:
        """Return the live bytes of each entry log that ever had a row, unless it was dropped."""
        ...

    def hold(self, log_id: int, size_bytes: int) -> None:
        """Add bytes without a row to a log's count, durably, so that the log is not freed."""
        ...

    def drop_log(self, log_id: int) -> None:
        """Remove the count of a log that is about to be freed, durably. The log must have no live bytes."""
        ...

    def verify(self) -> None:
        """Read the whole index. Raises `CorruptionError` if a checksum or a count does not match."""
        ...

    def close(self) -> None:
        """Close the index; no method may be called afterwards."""
        ...


def search_time(index: Index, ledger_id: int, time_ms: int) -> int:
    """Find an entry like `Index.find_time`, by bisection, because the clocks of a ledger's blocks never decrease.

    It takes log2(entries) lookups, independent of the rows' sizes.
    """
    low, high = 0, index.last_entry(ledger_id) + 1
    while low < high:
        middle = (low + high) // 2
        row = index.rows(ledger_id, middle, 1)[0]
        if row.last_clock_ms >= time_ms:
            high = middle
        else:
            low = row.last_entry + 1
    found = index.rows(ledger_id, low, 1)
    return found[0].first_entry if found else low


def find_hole(
    index: Runs, kept: Sequence[tuple[int, int]], ledger_id: int, entry: int, last_entry: int
) -> int:
    """Return the first entry from `entry` on that this bookie lacks; `last_entry` + 1 if it lacks none.

    `kept` contains (first entry, last entry) of each block in memory. A block may have been flushed since `kept` was
    read, but it is always in `kept` or in the index.
    """
    for first, last in merge(_spans(index, ledger_id, entry), kept):
        if first > entry or entry > last_entry:
            break
        entry = max(entry, last + 1)
    return min(entry, last_entry + 1)


def _spans(index: Runs, ledger_id: int, entry: int) -> Iterator[tuple[int, int]]:
    while rows := index.rows(ledger_id, entry, _ROWS_AT_ONCE):
        yield from ((row.first_entry, row.last_entry) for row in rows)
        entry = rows[-1].last_entry + 1
