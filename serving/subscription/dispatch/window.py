"""Window: the message counts of the entries between mark-delete and the read position. Performs no I/O.

Permits and backlogs count messages; acknowledgements contain entry ids. A block's table lists the number of messages of
each entry, but the block is no longer in memory when the acknowledgement arrives. So the window keeps these numbers for
entries that were read and that mark-delete has not passed.

Consecutive entries with equal numbers (all of an unbatched topic) are one *run* of constant size. So a consumer that
never acknowledges needs no memory per entry. Other runs have an array of numbers, four bytes for each entry.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator

from pyroaring import BitMap

from quire.serving.model.ports import Position

ARRAY_ENTRIES_MAX = 4_096
"""Length at which an array is not extended further, because a trim at the front moves all later numbers."""


class Run:
    """Entries `first` .. `stop`-1 of one ledger, with `each` messages per entry, or a number per entry in `counts`."""

    __slots__ = ("counts", "each", "first", "first_index", "ledger_id", "stop")

    def __init__(
        self, ledger_id: int, first: int, stop: int, first_index: int, each: int, counts: array[int] | None
    ) -> None:
        self.ledger_id = ledger_id
        self.first = first
        self.stop = stop
        self.first_index = first_index
        self.each = each
        self.counts = counts

    def messages_before(self, entry_id: int) -> int:
        """Count the messages of the run's entries before `entry_id`."""
        if self.counts is None:
            return (entry_id - self.first) * self.each
        return sum(self.counts[: entry_id - self.first])

    def messages_of(self, entries: BitMap) -> int:
        """Count the messages of `entries`, except entries that are not in the run."""
        if self.counts is None:
            return entries.range_cardinality(self.first, self.stop) * self.each
        if len(entries) == 1:
            at = entries.min() - self.first
            return self.counts[at] if 0 <= at < len(self.counts) else 0
        inside = entries & BitMap(range(self.first, self.stop))
        return sum(map(self.counts.__getitem__, [entry - self.first for entry in inside]))

    def cut_front(self, first: int) -> None:
        self.first_index += self.messages_before(first)
        if self.counts is not None:
            del self.counts[: first - self.first]
        self.first = first


class Window:
    """Runs in the topic's order. Entries are pushed at the end and trimmed at the front."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: list[Run] = []

    def __bool__(self) -> bool:
        return bool(self._runs)

    @property
    def first_index(self) -> int:
        """Topic-wide index of the first message in the window. Precondition: the window is not empty."""
        return self._runs[0].first_index

    def push(
        self, ledger_id: int, first: int, stop: int, first_index: int, each: int, counts: array[int] | None
    ) -> None:
        """Append entries `first` .. `stop`-1, which follow the last run. `counts` is kept, not copied."""
        if self._runs:
            last = self._runs[-1]
            if last.ledger_id == ledger_id and last.stop == first:
                if counts is None and last.counts is None and last.each == each:
                    last.stop = stop
                    return
                if last.counts is not None and len(last.counts) < ARRAY_ENTRIES_MAX:
                    last.counts.extend(counts if counts is not None else [each] * (stop - first))
                    last.stop = stop
                    return
        self._runs.append(Run(ledger_id, first, stop, first_index, each, counts))

    def messages_of(self, ledger_id: int, entries: BitMap) -> int:
        """Count the messages of `entries`, except entries that are not in the window."""
        runs = self._runs
        if len(runs) == 1 and runs[0].ledger_id == ledger_id:
            return runs[0].messages_of(entries)
        last = entries.max()
        total = 0
        for run in runs[self._at(ledger_id, entries.min()) :]:
            if run.ledger_id != ledger_id or run.first > last:
                break
            total += run.messages_of(entries)
        return total

    def index_at(self, position: Position) -> int:
        """Return the topic-wide index of the first message of the entry at `position`, which is in the window."""
        run = self._runs[self._at(*position)]
        assert run.ledger_id == position.ledger_id and run.first <= position.entry_id < run.stop
        return run.first_index + run.messages_before(position.entry_id)

    def trim(self, mark_delete: Position) -> None:
        """Remove all entries up to and including `mark_delete`."""
        runs = self._runs
        if not runs or runs[0].ledger_id > mark_delete.ledger_id:
            return
        after = mark_delete.entry_id + 1
        count = 0
        for run in runs:
            if run.ledger_id > mark_delete.ledger_id or (
                run.ledger_id == mark_delete.ledger_id and run.stop > after
            ):
                break
            count += 1
        del runs[:count]
        if runs and runs[0].ledger_id == mark_delete.ledger_id and runs[0].first < after:
            runs[0].cut_front(after)

    def spans(self) -> Iterator[tuple[int, int, int]]:
        """Yield (ledger id, first, stop) of each run, in order."""
        for run in self._runs:
            yield run.ledger_id, run.first, run.stop

    def since(self, position: Position) -> Iterator[Run]:
        """Yield copies of the runs from `position` on, in order; a copied run that contains `position` starts there."""
        for run in self._runs:
            if (run.ledger_id, run.stop) <= position:
                continue
            first = max(run.first, position.entry_id) if run.ledger_id == position.ledger_id else run.first
            cut = Run(
                run.ledger_id, run.first, run.stop, run.first_index, run.each, run.counts and run.counts[:]
            )
            cut.cut_front(first)
            yield cut

    def clear(self) -> None:
        self._runs.clear()

    def _at(self, ledger_id: int, entry_id: int) -> int:
        """Return the index of the last run that begins at or before the entry; 0 if there is none."""
        at = bisect_right(self._runs, (ledger_id, entry_id), key=_start) - 1
        return max(at, 0)


def _start(run: Run) -> tuple[int, int]:
    return run.ledger_id, run.first
