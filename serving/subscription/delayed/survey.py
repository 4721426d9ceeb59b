"""What a dispatcher found between mark-delete and where it has read to, for the one that comes after it: a core.

A subscription with delayed entries keeps its mark-delete position at the first of them, however far it has read. What
it found after that is a fact about the topic and never changes: how many messages each entry has, which are to be
delivered later and when, which slot each key has. So it is written down piece by piece as reading goes on, and a
dispatcher that begins anew (after a restart, on another broker, for the next consumer) takes it in and reads on where
the survey ends, instead of reading all of it again.

A piece covers consecutive entries of one ledger; its times are bit slices, as in `delays`. Pieces follow each other
without gaps; one that does not continue what is here begins a new survey. What was acknowledged since is of no
interest, and dropped when the survey is written anew (`prune`) or taken in.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Final, NamedTuple

from pyroaring import BitMap

from quire.serving.model.ports import Position

PIECE_ENTRIES_MAX: Final = 1 << 16
"""25 slices of 8 KiB and the slots: about 300 KiB in a record."""

PIECE_BYTES: Final = 1_000
"""What a piece takes by itself, about."""

Unacknowledged = Callable[[int, BitMap], BitMap]
"""See `Cursor.unacknowledged`."""


class Times(NamedTuple):
    """When entries are due: ticks of `tick_ms` since the tick `base`, slice k the entries that have bit k set."""

    tick_ms: int
    base: int
    entries: BitMap
    slices: list[BitMap]

    def part(self, wanted: BitMap) -> Times:
        """Of those of `wanted` alone; in bitmaps of their own."""
        return self._replace(entries=self.entries & wanted, slices=[one & wanted for one in self.slices])

    def joined(self, others: Times) -> Times | None:
        """Both as one, where they count alike."""
        if not (self.entries and others.entries):
            return self if self.entries else others
        if self[:2] != others[:2]:
            return None
        pairs = zip_longest(self.slices, others.slices, fillvalue=BitMap())
        return self._replace(
            entries=self.entries | others.entries, slices=[mine | theirs for mine, theirs in pairs]
        )

    def ticks(self) -> dict[int, int]:
        """The tick of each entry, one by one."""
        found = dict.fromkeys(self.entries, self.base)
        for bit, entries in enumerate(self.slices):
            for entry_id in entries:
                found[entry_id] += 1 << bit
        return found


NO_TIMES: Final = Times(1, 0, BitMap(), [])


class Piece(NamedTuple):
    """Entries `first` .. `stop`-1 of a ledger: `each` messages, or what `counts` says, the first with `first_index`.

    `slots` are those of all of them (0 where nobody will ask), if the dispatcher dispatches by key.
    """

    ledger_id: int
    first: int
    stop: int
    first_index: int
    each: int
    counts: array[int] | None
    times: Times = NO_TIMES
    slots: array[int] | None = None
    is_first: bool = False
    """It begins a new survey; the former is of no use any more."""

    @property
    def next_index(self) -> int:
        """Topic-wide index after its last message."""
        messages = (self.stop - self.first) * self.each if self.counts is None else sum(self.counts)
        return self.first_index + messages

    def since(self, first: int) -> Piece:
        """The piece from entry `first` on."""
        gone = first - self.first
        if gone <= 0:
            return self
        counts = None if self.counts is None else self.counts[gone:]
        skipped = gone * self.each if self.counts is None else sum(self.counts[:gone])
        return self._replace(
            first=first,
            first_index=self.first_index + skipped,
            counts=counts,
            times=self.times.part(BitMap(range(first, self.stop))),
            slots=None if self.slots is None else self.slots[gone:],
        )

    def between(self, first: int, stop: int) -> Piece:
        """Its entries `first` .. `stop`-1, without times and slots."""
        part = self._replace(times=NO_TIMES, slots=None).since(first)
        counts = None if part.counts is None else part.counts[: stop - first]
        return part._replace(stop=stop, counts=counts)

    def pruned(self, unacknowledged: Unacknowledged) -> Piece:
        """Without what is known of acknowledged entries but their messages."""
        left = unacknowledged(self.ledger_id, BitMap(range(self.first, self.stop)))
        return self._replace(times=self.times.part(left), slots=self.slots if left else None)

    def held_bytes(self) -> int:
        return (
            PIECE_BYTES + 4 * len(self.times.entries) + 4 * len(self.counts or ()) + 2 * len(self.slots or ())
        )

    def continues(self, former: Piece) -> bool:
        if self.ledger_id == former.ledger_id:
            return self.first == former.stop
        return self.first == 0 and self.ledger_id > former.ledger_id

    def joined(self, following: Piece) -> Piece | None:
        """Both as one, where that is a piece like others."""
        times = self.times.joined(following.times)
        if (
            times is None
            or following.ledger_id != self.ledger_id
            or following.stop - self.first > PIECE_ENTRIES_MAX
            or not self.each == following.each > 0
            or (self.slots is None) != (following.slots is None)
        ):
            return None
        slots = None if self.slots is None or following.slots is None else self.slots + following.slots
        return self._replace(stop=following.stop, times=times, slots=slots)


class Survey:
    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces: list[Piece] = []

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def __iter__(self) -> Iterator[Piece]:
        return iter(self._pieces)

    def extend(self, piece: Piece) -> None:
        """Add what was found next, or begin anew with it."""
        pieces = self._pieces
        if pieces and (piece.is_first or not piece.continues(pieces[-1])):
            pieces.clear()
        joined = pieces[-1].joined(piece) if pieces else None
        if joined is not None:
            pieces[-1] = joined
        else:
            pieces.append(piece)

    def since(self, position: Position) -> list[Piece]:
        """The pieces from the entry at `position` on; none when what was found does not begin there."""
        for at, piece in enumerate(self._pieces):
            if piece.ledger_id == position.ledger_id and piece.first <= position.entry_id < piece.stop:
                return [piece.since(position.entry_id), *self._pieces[at + 1 :]]
        return []

    def prune(self, mark_delete: Position, unacknowledged: Unacknowledged) -> None:
        """Drop what lies before mark-delete, and the times of what is acknowledged."""
        left = [one for one in self._pieces if (one.ledger_id, one.stop - 1) > mark_delete]
        self._pieces = [one.pruned(unacknowledged) for one in left]

    def held_bytes(self) -> int:
        """Memory that it takes, about."""
        return sum(one.held_bytes() for one in self._pieces)
