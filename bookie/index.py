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

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import merge
from typing import Final, NamedTuple, Protocol

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
    index: Index, kept: Sequence[tuple[int, int]], ledger_id: int, entry: int, last_entry: int
) -> int:
    """The first entry from `entry` on that lies in no row and in no span of `kept`; behind the last one when none.

    What was in memory when `kept` was taken may be in the index by now, and never in neither.
    """
    for first, last in merge(_spans(index, ledger_id, entry), kept):
        if first > entry or entry > last_entry:
            break
        entry = max(entry, last + 1)
    return min(entry, last_entry + 1)


def _spans(index: Index, ledger_id: int, entry: int) -> Iterator[tuple[int, int]]:
    while rows := index.rows(ledger_id, entry, _ROWS_AT_ONCE):
        yield from ((row.first_entry, row.last_entry) for row in rows)
        entry = rows[-1].last_entry + 1


class MemoryIndex:
    """The fake: in memory, with the same guarantees, and able to crash.

    `fail(error, kept)` makes the next durable transaction raise `error`, having happened (`kept`) or not: that is
    all that a caller can see of a commit that was interrupted. `crash()` ends this index, as the death of its
    process would, and returns the one that is found at the next start.
    """

    def __init__(self) -> None:
        self._rows: dict[int, list[IndexRow]] = {}
        self._records: dict[int, bytes] = {}
        self._mark = b""
        self._usage: dict[int, int] = {}
        self._failure: tuple[Exception, bool] | None = None
        self._closed = False

    def fail(self, error: Exception, kept: bool) -> None:
        """See the class."""
        self._failure = (error, kept)

    def crash(self) -> MemoryIndex:
        """The index as the next process finds it."""
        self._closed = True
        found = MemoryIndex()
        found._rows = {ledger_id: list(rows) for ledger_id, rows in self._rows.items()}
        found._records, found._usage, found._mark = dict(self._records), dict(self._usage), self._mark
        return found

    def commit(
        self,
        rows: Iterable[IndexRow],
        ledgers: Mapping[int, bytes],
        mark: bytes,
        deleted: Iterable[int] = (),
    ) -> None:
        with _Transaction(self) as happens:
            if happens:
                for ledger_id in deleted:
                    self._delete(ledger_id)
                for row in rows:
                    self._put(row)
                self._records.update(ledgers)
                self._mark = mark

    def replace(self, old: Iterable[IndexRow], new: Iterable[IndexRow]) -> None:
        with _Transaction(self) as happens:
            if happens:
                for row in old:
                    self._remove(row)
                for row in new:
                    self._put(row)

    def find(self, ledger_id: int, entry_id: int) -> IndexRow | None:
        rows = self.rows(ledger_id, entry_id, 1)
        return rows[0] if rows and rows[0].first_entry <= entry_id else None

    def rows(self, ledger_id: int, from_entry: int, limit: int) -> list[IndexRow]:
        assert not self._closed
        rows = self._rows.get(ledger_id, [])
        start = bisect_right(rows, from_entry, key=lambda row: row.first_entry)
        if start and rows[start - 1].last_entry >= from_entry:
            start -= 1
        return rows[start : start + limit]

    def last_entry(self, ledger_id: int) -> int:
        assert not self._closed
        rows = self._rows.get(ledger_id)
        return rows[-1].last_entry if rows else -1

    def find_time(self, ledger_id: int, time_ms: int) -> int:
        return search_time(self, ledger_id, time_ms)

    def ledgers(self) -> Iterator[tuple[int, bytes]]:
        assert not self._closed
        return iter(sorted(self._records.items()))

    def mark(self) -> bytes:
        assert not self._closed
        return self._mark

    def usage(self) -> dict[int, int]:
        assert not self._closed
        return dict(self._usage)

    def hold(self, log_id: int, size_bytes: int) -> None:
        with _Transaction(self) as happens:
            if happens:
                self._charge(log_id, size_bytes)

    def drop_log(self, log_id: int) -> None:
        with _Transaction(self) as happens:
            if happens:
                assert not self._usage.get(log_id)
                self._usage.pop(log_id, None)

    def verify(self) -> None:
        assert not self._closed

    def close(self) -> None:
        self._closed = True

    def _delete(self, ledger_id: int) -> None:
        self._records.pop(ledger_id, None)
        for row in self._rows.pop(ledger_id, []):
            self._charge(row.log_id, -row.length)

    def _put(self, row: IndexRow) -> None:
        rows = self._rows.setdefault(row.ledger_id, [])
        place = bisect_right(rows, row.first_entry, key=lambda other: other.first_entry)
        if place and rows[place - 1].first_entry == row.first_entry:
            self._remove(rows[place - 1])
            place -= 1
        rows.insert(place, row)
        self._charge(row.log_id, row.length)

    def _remove(self, row: IndexRow) -> None:
        self._rows[row.ledger_id].remove(row)
        self._charge(row.log_id, -row.length)

    def _charge(self, log_id: int, size_bytes: int) -> None:
        self._usage[log_id] = self._usage.get(log_id, 0) + size_bytes


class _Transaction:
    """Whether a `MemoryIndex`'s transaction happens, and the error that its caller hears."""

    def __init__(self, index: MemoryIndex) -> None:
        assert not index._closed
        self._failure, index._failure = index._failure, None

    def __enter__(self) -> bool:
        return self._failure is None or self._failure[1]

    def __exit__(self, *_: object) -> None:
        if self._failure is not None:
            raise self._failure[0]
