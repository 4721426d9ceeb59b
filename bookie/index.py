"""The index: where in the entry logs the blocks of a ledger lie, and what else must survive with that knowledge.

It is sparse: one `IndexRow` per *run*, whole blocks of one ledger that lie together (256 KiB or 1,000 entries
at most), so an entry is found by one lookup here and a walk over a few block headers there. The row holds the
times of its first and last block, so a seek by time needs no other file.

`Index` is the interface. `LmdbIndex` (`bookie/index_lmdb.py`) is the one that lasts; `MemoryIndex` here is the
shipped fake: it keeps what was committed, forgets the rest at `crash()`, and passes the same contract test.

Rules:

- `commit` is one durable transaction: rows, ledger records (fences, LACs, tombstones, limbo) and the
  checkpoint mark become visible and durable together or not at all.
- Per entry log the index counts the bytes of the rows that point into it, in the same transaction. A log whose
  count is zero holds nothing that anyone can find; this is what the collector decides on. A log whose bytes are
  not all accounted for, because of damage, is *held*: it is charged bytes that nobody deletes.
- Compaction swaps rows for rows of the same entries by `replace`, in one transaction, too.
- No row is contained in another of the same ledger: with that, the row with the highest first entry <= e is
  the only one that can hold e. A flush never writes the same entry twice; a rebuild drops such rows.

One thread writes; any thread may read. Errors: `CorruptionError` names the file, `DiskFull`, `DiskError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import merge
from typing import Final, NamedTuple, Protocol

from quire.bookie.neighbours import Runs

_ROWS_AT_ONCE: Final = 500


class IndexRow(NamedTuple):
    """One run: the blocks of `ledger_id` from `first_entry` to `last_entry`, without a gap.

    They are `length` bytes from `offset` of entry log `log_id`. `lac` is the highest any of them says (-1: none).
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
    """What the storage, the readers and the collector ask of an index."""

    def commit(
        self,
        rows: Iterable[IndexRow],
        ledgers: Mapping[int, bytes],
        mark: bytes,
        deleted: Iterable[int] = (),
    ) -> None:
        """One durable transaction: first everything of the `deleted` ledgers goes (rows and record), then
        `rows`, the records in `ledgers` (a tombstone is such a record) and the mark are put.
        """
        ...

    def replace(self, old: Iterable[IndexRow], new: Iterable[IndexRow]) -> None:
        """One durable transaction: `new` stands for what `old` stood for. Every old row must be there."""
        ...

    def find(self, ledger_id: int, entry_id: int) -> IndexRow | None:
        """The row that holds the entry; None when there is none."""
        ...

    def rows(self, ledger_id: int, from_entry: int, limit: int) -> list[IndexRow]:
        """At most `limit` rows in order, from the one that holds `from_entry` or the next one after it."""
        ...

    def last_entry(self, ledger_id: int) -> int:
        """The last entry that any row of the ledger holds; -1 when it has none."""
        ...

    def find_time(self, ledger_id: int, time_ms: int) -> int:
        """The first entry of the first row that holds a block of `time_ms` or later.

        The entry after the last one when every block is older, 0 when the ledger has no rows.
        """
        ...

    def ledgers(self) -> Iterator[tuple[int, bytes]]:
        """(ledger id, record) of every ledger that has a record, in order."""
        ...

    def mark(self) -> bytes:
        """The mark last committed; empty when there was none."""
        ...

    def usage(self) -> dict[int, int]:
        """For each entry log that was ever committed to and not dropped: its bytes that rows point at."""
        ...

    def hold(self, log_id: int, size_bytes: int) -> None:
        """Charge a log durably with bytes that no row accounts for, so that it is not freed."""
        ...

    def drop_log(self, log_id: int) -> None:
        """Forget a log that is about to be freed, durably. It must have no bytes in use."""
        ...

    def verify(self) -> None:
        """Read everything; `CorruptionError` when a checksum or a count does not hold."""
        ...

    def close(self) -> None:
        """Nothing may be called afterwards."""
        ...


def search_time(index: Index, ledger_id: int, time_ms: int) -> int:
    """`Index.find_time` by bisection over entry ids: the clock of a ledger's blocks never goes back.

    Takes log2(entries) lookups, whatever the rows' sizes.
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
    """The first entry from `entry` on that lies in no row and in no span of `kept`; behind the last one when none.

    What was in memory when `kept` was taken may be in the index by now, and never in neither.
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
