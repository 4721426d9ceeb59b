"""In-memory index of a WAL: the position of each ledger's blocks in the WAL's objects.

A run is a sequence of consecutive blocks of one ledger that are contiguous in an object. Each object lists its runs in
rows, sorted by (ledger, first entry); see `wal_object`. The index keeps the encoded rows: ten thousand topics with
little traffic make a million rows in eight hours, which take 48 MB. A look-up is a binary search in the encoded
rows, because big-endian numbers compare like their bytes.

A block may be in two objects (a data object, and the set made from it): briefly after a flush, or after a takeover.
Both copies have the same bytes, so either one may be read.

The index performs no I/O, and is used by one thread.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final, NamedTuple

from quire.wal.wal_object import ROW, SET_ROW

_KEY: Final = Struct(">QQ")
"""Prefix of a row: ledger and first entry."""

_SPAN_BYTES: Final = 32
"""Approximate memory in bytes per ledger and object: two entry ids, a reference, and spare capacity."""


class Run(NamedTuple):
    """Run: whole blocks of `ledger_id` from `first_entry` to `last_entry`, in `length` bytes of an object."""

    object_name: str
    ledger_id: int
    first_entry: int
    last_entry: int
    offset: int
    length: int
    crc: int
    clock_ms: int = -1
    """Clock of the last block; -1 if the object has no clocks in its rows."""


class _Share(NamedTuple):
    """Range of a ledger's entries in one object; the range may have gaps."""

    ledger_id: int
    first_entry: int
    last_entry: int
    bytes: int


class RunTable:
    """Rows of one object, encoded as `ROW`, or as `SET_ROW` in a set."""

    __slots__ = ("_row", "_rows", "_starts", "object_name")

    def __init__(self, object_name: str, rows: bytes, row: Struct) -> None:
        assert row in (ROW, SET_ROW) and len(rows) % row.size == 0
        self.object_name = object_name
        self._rows = rows
        self._row = row
        self._starts = range(0, len(rows), row.size)

    def __len__(self) -> int:
        return len(self._starts)

    def run(self, number: int) -> Run:
        return Run(self.object_name, *self._row.unpack_from(self._rows, self._starts[number]))

    @property
    def size_bytes(self) -> int:
        return len(self._rows)

    def ledgers(self) -> Iterator[_Share]:
        """Yield the entry range of each ledger in one pass, because a takeover reads rows of thousands of ledgers."""
        ledger_id = first_entry = last_entry = -1
        size = 0
        for of_ledger, entry, last, _, length, *_ in self._row.iter_unpack(self._rows):
            if of_ledger != ledger_id:
                if ledger_id >= 0:
                    yield _Share(ledger_id, first_entry, last_entry, size)
                ledger_id, first_entry, size = of_ledger, entry, 0
            last_entry = last
            size += length
        if ledger_id >= 0:
            yield _Share(ledger_id, first_entry, last_entry, size)

    def of_ledger(self, ledger_id: int) -> range:
        """Return the numbers of the ledger's rows."""
        return range(self._place(ledger_id, 0), self._place(ledger_id + 1, 0))

    def at(self, ledger_id: int, entry: int) -> Run | None:
        """Return the ledger's run that contains `entry`, or the next one after it."""
        rows = self.of_ledger(ledger_id)
        key = _KEY.pack(ledger_id, entry)
        number = bisect_right(self._starts, key, rows.start, rows.stop, key=self._key)
        if number > rows.start and (before := self.run(number - 1)).last_entry >= entry:
            return before
        return self.run(number) if number < rows.stop else None

    def find_time(self, ledger_id: int, time_ms: int) -> Run | None:
        """Return the ledger's first run that may have a block of `time_ms` or later; clocks never decrease."""
        rows = self.of_ledger(ledger_id)
        if self._row is SET_ROW:
            rows = rows[bisect_left(rows, time_ms, key=lambda each: self.run(each).clock_ms) :]
        return self.run(rows[0]) if rows else None

    def _place(self, ledger_id: int, entry: int) -> int:
        return bisect_left(self._starts, _KEY.pack(ledger_id, entry), key=self._key)

    def _key(self, start: int) -> bytes:
        return self._rows[start : start + _KEY.size]


class _Spans:
    """Objects with blocks of one ledger, sorted by the ledger's first entry in each object.

    The spans are kept in arrays to save memory: a takeover may index a million pairs of ledger and data object.
    """

    __slots__ = ("bytes", "firsts", "lasts", "tables")

    def __init__(self) -> None:
        self.firsts = array("Q")
        self.lasts = array("Q")
        self.tables: list[RunTable] = []
        self.bytes = 0
        """Bytes of all blocks; blocks in two objects count twice."""

    def __len__(self) -> int:
        return len(self.tables)

    def add(self, share: _Share, table: RunTable) -> None:
        place = bisect_right(self.firsts, share.first_entry)
        self.firsts.insert(place, share.first_entry)
        self.lasts.insert(place, share.last_entry)
        self.tables.insert(place, table)
        self.bytes += share.bytes

    def remove(self, share: _Share, table: RunTable) -> None:
        place = bisect_left(self.firsts, share.first_entry)
        while self.tables[place] is not table:
            place += 1
        del self.firsts[place], self.lasts[place], self.tables[place]
        self.bytes -= share.bytes

    def next(self, ledger_id: int, entry: int) -> Run | None:
        """Return the run that contains `entry`, or the next one after it."""
        after = bisect_right(self.firsts, entry)
        best = self.tables[after].at(ledger_id, entry) if after < len(self) else None
        for place in range(after - 1, -1, -1):
            if self.lasts[place] < entry:
                if place == after - 1 and max(self.lasts[:after]) < entry:
                    break  # the common case: a look-up beyond the end, or in a gap between two objects
                continue
            found = self.tables[place].at(ledger_id, entry)
            assert found is not None, (
                "the object contains the ledger's last entry, which is not before `entry`"
            )
            if found.first_entry <= entry:
                return found
            if best is None or found.first_entry < best.first_entry:
                best = found
        return best


class RunIndex:
    """Rows of all indexed objects of a WAL."""

    def __init__(self) -> None:
        self._tables: dict[str, RunTable] = {}
        self._spans: dict[int, _Spans] = {}
        self._ledger_counts: dict[str, int] = {}
        self.size_bytes = 0
        """Approximate size in memory."""

    def __contains__(self, object_name: str) -> bool:
        return object_name in self._tables

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def add(self, table: RunTable) -> None:
        """Add an object's rows."""
        if table.object_name in self._tables:
            return
        self._tables[table.object_name] = table
        count = 0
        for share in table.ledgers():
            count += 1
            spans = self._spans.get(share.ledger_id)
            if spans is None:
                spans = self._spans[share.ledger_id] = _Spans()
            spans.add(share, table)
        self._ledger_counts[table.object_name] = count
        self.size_bytes += table.size_bytes + _SPAN_BYTES * count

    def remove(self, object_name: str) -> None:
        """Remove an object's rows."""
        table = self._tables.pop(object_name, None)
        if table is None:
            return
        self.size_bytes -= table.size_bytes + _SPAN_BYTES * self._ledger_counts.pop(object_name)
        for share in table.ledgers():
            spans = self._spans[share.ledger_id]
            spans.remove(share, table)
            if not spans:
                del self._spans[share.ledger_id]

    def ledgers(self) -> Iterable[int]:
        """Return the ids of all ledgers with blocks in the indexed objects."""
        return self._spans.keys()

    def runs_of(self, object_name: str) -> Iterator[Run]:
        """Yield all runs of an object."""
        table = self._tables[object_name]
        return map(table.run, range(len(table)))

    def objects_of(self, ledger_id: int) -> Iterator[str]:
        """Yield the names of the objects with blocks of the ledger."""
        spans = self._spans.get(ledger_id)
        return (table.object_name for table in spans.tables) if spans is not None else iter(())

    def without_life(self, dead: Iterable[int]) -> set[str]:
        """Return the names of the objects in which all blocks belong to `dead` (deleted) ledgers."""
        counts = Counter(name for ledger_id in dead for name in self.objects_of(ledger_id))
        return {name for name, count in counts.items() if count == self._ledger_counts[name]}

    def next(self, ledger_id: int, entry: int) -> Run | None:
        """Return the run that contains `entry`, or the next one after it."""
        spans = self._spans.get(ledger_id)
        return spans.next(ledger_id, entry) if spans is not None else None

    def find(self, ledger_id: int, entry: int) -> Run | None:
        """Return the run that contains `entry`; None if no run does."""
        found = self.next(ledger_id, entry)
        return found if found is not None and found.first_entry <= entry else None

    def rows(self, ledger_id: int, from_entry: int, limit: int) -> list[Run]:
        """Return up to `limit` runs in order, from the run that contains `from_entry`, or else from the next run."""
        found: list[Run] = []
        while len(found) < limit and (run := self.next(ledger_id, from_entry)) is not None:
            found.append(run)
            from_entry = run.last_entry + 1
        return found

    def last_entry(self, ledger_id: int) -> int:
        """Return the ledger's last indexed entry; -1 without entries."""
        spans = self._spans.get(ledger_id)
        return max(spans.lasts) if spans is not None else -1

    def bytes_of(self, ledger_id: int) -> int:
        """Return the bytes of the ledger's blocks; blocks in two objects count twice."""
        spans = self._spans.get(ledger_id)
        return spans.bytes if spans is not None else 0

    def find_time(self, ledger_id: int, time_ms: int) -> int:
        """Return an entry such that no block with a clock of `time_ms` or later lies before it.

        Objects without clocks in their rows may contain any time. If all blocks are older, the entry after the last one
        is returned.
        """
        spans = self._spans.get(ledger_id)
        for table in spans.tables if spans is not None else ():
            found = table.find_time(ledger_id, time_ms)
            if found is not None:
                return found.first_entry
        return self.last_entry(ledger_id) + 1
