"""Bookie index in memory, with the guarantees of the real index, and simulated crashes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping

from quire.bookie.index import IndexRow, search_time


class MemoryIndex:
    """Fake of `Index`: in memory, with the same guarantees, and with crashes.

    `fail(error, kept)` makes the next durable transaction raise `error`, either after the commit (`kept`) or instead of
    it. These are the two outcomes of an interrupted commit. `crash()` closes this index, as the end of its process
    would, and returns the index that the next process opens.
    """

    def __init__(self) -> None:
        self._rows: dict[int, list[IndexRow]] = {}
        self._records: dict[int, bytes] = {}
        self._mark = b""
        self._usage: dict[int, int] = {}
        self._failure: tuple[Exception, bool] | None = None
        self._closed = False

    def fail(self, error: Exception, kept: bool) -> None:
        """Let the next transaction raise `error`, after its commit if `kept`; see the class."""
        self._failure = (error, kept)

    def crash(self) -> MemoryIndex:
        """Close this index, and return the one that the next process opens."""
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
    """Transaction of a `MemoryIndex`, as a context manager.

    Its `with` yields whether the transaction will be committed, and raises the injected error at its end.
    """

    def __init__(self, index: MemoryIndex) -> None:
        assert not index._closed
        self._failure, index._failure = index._failure, None

    def __enter__(self) -> bool:
        return self._failure is None or self._failure[1]

    def __exit__(self, *_: object) -> None:
        if self._failure is not None:
            raise self._failure[0]
