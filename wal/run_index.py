"""Where the blocks of a WAL's ledgers lie in its objects: the index of a node on object storage, wholly in memory.

An object tells its runs in rows, sorted by (ledger, first entry); see `wal_object`. They are kept as they came: ten
thousand topics that trickle make a million rows in eight hours, which are 48 MB. A look-up bisects in the bytes, for
two numbers in big-endian order compare as bytes.

The same block may be in two objects, for a moment or after a takeover (a data object, and the set that was made of it):
the bytes are the same, so either will do.

A core: no I/O. On one thread.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final, NamedTuple

from quire.wal.wal_object import ROW, SET_ROW

_KEY: Final = Struct(">QQ")
"""What a row begins with: ledger and first entry."""

_ROWS_AT_ONCE: Final = 500


class Run(NamedTuple):
    """Whole blocks of `ledger_id` from `first_entry` to `last_entry`, without a gap: `length` bytes of an object."""

    object_name: str
    ledger_id: int
    first_entry: int
    last_entry: int
    offset: int
    length: int
    crc: int
    clock_ms: int = -1
    """Of its last block; -1 where the object does not tell."""


class RunTable:
    """The rows of one object, which are `ROW` or, of a set, `SET_ROW`."""

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

    def ledgers(self) -> Iterator[tuple[int, int, int]]:
        """Each ledger, its first entry here and its last. One pass: a takeover reads tables of thousands of ledgers."""
        ledger_id = first_entry = last_entry = -1
        for of_ledger, entry, last, *_ in self._row.iter_unpack(self._rows):
            if of_ledger != ledger_id:
                if ledger_id >= 0:
                    yield ledger_id, first_entry, last_entry
                ledger_id, first_entry = of_ledger, entry
            last_entry = last
        if ledger_id >= 0:
            yield ledger_id, first_entry, last_entry

    def of_ledger(self, ledger_id: int) -> range:
        """Numbers of the ledger's rows."""
        return range(self._place(ledger_id, 0), self._place(ledger_id + 1, 0))

    def at(self, ledger_id: int, entry: int) -> Run | None:
        """The ledger's run that holds `entry`, or the next one after it."""
        rows = self.of_ledger(ledger_id)
        key = _KEY.pack(ledger_id, entry)
        number = bisect_right(self._starts, key, rows.start, rows.stop, key=self._key)
        if number > rows.start and (before := self.run(number - 1)).last_entry >= entry:
            return before
        return self.run(number) if number < rows.stop else None

    def find_time(self, ledger_id: int, time_ms: int) -> Run | None:
        """The ledger's first run that may hold a block of `time_ms` or later; a ledger's clock never goes back."""
        rows = self.of_ledger(ledger_id)
        if self._row is SET_ROW:
            rows = rows[bisect_left(rows, time_ms, key=lambda each: self.run(each).clock_ms) :]
        return self.run(rows[0]) if rows else None

    def _place(self, ledger_id: int, entry: int) -> int:
        return bisect_left(self._starts, _KEY.pack(ledger_id, entry), key=self._key)

    def _key(self, start: int) -> bytes:
        return self._rows[start : start + _KEY.size]


class _Span(NamedTuple):
    """What one object has of a ledger: nothing outside of these entries, and not all within, perhaps."""

    first_entry: int
    last_entry: int
    object_name: str


class RunIndex:
    """The rows of all objects of a WAL that count."""

    def __init__(self) -> None:
        self._tables: dict[str, RunTable] = {}
        self._spans: dict[int, list[_Span]] = {}
        """Of each ledger, by first entry."""
        self._ledger_counts: dict[str, int] = {}

    def __contains__(self, object_name: str) -> bool:
        return object_name in self._tables

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def add(self, table: RunTable) -> None:
        """Know an object's rows from now on."""
        if table.object_name in self._tables:
            return
        self._tables[table.object_name] = table
        count = 0
        for ledger_id, first_entry, last_entry in table.ledgers():
            count += 1
            span = _Span(first_entry, last_entry, table.object_name)
            insort(self._spans.setdefault(ledger_id, []), span)
        self._ledger_counts[table.object_name] = count

    def remove(self, object_name: str) -> None:
        """The object does not count any more."""
        table = self._tables.pop(object_name, None)
        if table is None:
            return
        del self._ledger_counts[object_name]
        for ledger_id, _, _ in table.ledgers():
            left = [span for span in self._spans[ledger_id] if span.object_name != object_name]
            if left:
                self._spans[ledger_id] = left
            else:
                del self._spans[ledger_id]

    def ledgers(self) -> Iterable[int]:
        """Of which there are blocks."""
        return self._spans.keys()

    def runs_of(self, object_name: str) -> Iterator[Run]:
        """All runs of an object."""
        table = self._tables[object_name]
        return map(table.run, range(len(table)))

    def objects_of(self, ledger_id: int) -> Iterator[str]:
        """Names of the objects that have blocks of the ledger."""
        return (span.object_name for span in self._spans.get(ledger_id, ()))

    def without_life(self, dead: Iterable[int]) -> set[str]:
        """Names of the objects that have blocks of `dead` ledgers, and of no others."""
        counts = Counter(name for ledger_id in dead for name in self.objects_of(ledger_id))
        return {name for name, count in counts.items() if count == self._ledger_counts[name]}

    def next(self, ledger_id: int, entry: int) -> Run | None:
        """The run that holds `entry`, or the next one after it."""
        best: Run | None = None
        for span in self._spans.get(ledger_id, ()):
            if best is not None and span.first_entry > max(entry, best.first_entry):
                break
            if span.last_entry < entry:
                continue
            found = self._tables[span.object_name].at(ledger_id, entry)
            if found is not None and (best is None or found.first_entry < best.first_entry):
                best = found
            if best is not None and best.first_entry <= entry:
                break
        return best

    def find(self, ledger_id: int, entry: int) -> Run | None:
        """The run that holds `entry`."""
        found = self.next(ledger_id, entry)
        return found if found is not None and found.first_entry <= entry else None

    def rows(self, ledger_id: int, from_entry: int, limit: int) -> list[Run]:
        """At most `limit` runs in order, from the one that holds `from_entry` or the next one after it."""
        found: list[Run] = []
        while len(found) < limit and (run := self.next(ledger_id, from_entry)) is not None:
            found.append(run)
            from_entry = run.last_entry + 1
        return found

    def last_entry(self, ledger_id: int) -> int:
        """The last entry that is here; -1 when there is none."""
        return max((span.last_entry for span in self._spans.get(ledger_id, ())), default=-1)

    def bytes_of(self, ledger_id: int) -> int:
        """Bytes of the ledger's blocks; of those that are in two objects, for a moment, some count twice."""
        total, entry = 0, 0
        while rows := self.rows(ledger_id, entry, _ROWS_AT_ONCE):
            total += sum(run.length for run in rows)
            entry = rows[-1].last_entry + 1
        return total

    def find_time(self, ledger_id: int, time_ms: int) -> int:
        """Where reading must begin to miss no block whose clock is `time_ms` or later.

        What tells no clocks may hold any. The entry after the last one when every block is older.
        """
        for span in self._spans.get(ledger_id, ()):
            found = self._tables[span.object_name].find_time(ledger_id, time_ms)
            if found is not None:
                return found.first_entry
        return self.last_entry(ledger_id) + 1
