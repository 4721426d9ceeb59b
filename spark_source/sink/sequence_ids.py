"""The sequence ids of what one task writes to one topic partition. No I/O.

    63       47            23          0
     | epoch | entry       | digest    |      epoch: of a stream, modulo 65,536; entry: its place in the epoch

An entry of several rows has the ids from digest 0 up to its digest, so that no row but the last needs a number of
its own on the wire; an entry of one row has the last one only. The digest is of the rows of this entry and of all
before it, in order, with all that makes a message. It makes numbers that a broker keeps anyway say what they were
given for: 23 bits of it, so of eight million replays with other rows one would be taken for the same.

A broker that has only the first chunks of a message answers with its number less one.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple

from quire.runtime.errors import QuireError
from quire.wire.checksum import crc32c
from quire.wire.message import OutgoingMessage

DIGEST_BITS: Final = 23
ENTRY_BITS: Final = 24
EPOCH_BITS: Final = 16
EPOCHS: Final = 1 << EPOCH_BITS
"""So many have one producer name; the next ones have the next generation's."""

ENTRIES_MAX: Final = 1 << ENTRY_BITS
EPOCH_MAX: Final = (1 << 63) - 1

REMEDY: Final = (
    "; write them with row_order=content if only the order differs, or with delivery=at_least_once, which writes the "
    "rows of this epoch a second time"
)

assert EPOCH_BITS + ENTRY_BITS + DIGEST_BITS == 63


class ReplayDiffers(QuireError):
    """A task that is run again was not given the rows that it was given before."""


class EpochOver(QuireError):
    """A later epoch of the same query has been written."""


class EntryIds(NamedTuple):
    """The first and last sequence id of an entry."""

    first: int
    last: int


class SequenceIds:
    """Counts the entries of one epoch, and compares them with what a broker has."""

    def __init__(self, epoch: int) -> None:
        self._base = epoch % EPOCHS << ENTRY_BITS + DIGEST_BITS
        self._digest = 0
        self._last = array("q")
        """The last id of each entry so far."""
        self._recorded = -1

    def __len__(self) -> int:
        return len(self._last)

    def recorded(self, sequence_id: int) -> None:
        """A broker has this as the last one of the name. Raises `EpochOver`, `ReplayDiffers`."""
        if sequence_id >= self._base + (1 << ENTRY_BITS + DIGEST_BITS):
            raise EpochOver(
                "a later epoch of the same query is there already; was it started from an old copy of its checkpoint? "
                "Start it from the newest, or with a new one"
            )
        if sequence_id > self._recorded:
            self._recorded = sequence_id
            self._compare()

    def next(self, rows: Sequence[OutgoingMessage]) -> EntryIds:
        """The numbers of the next entry. Raises `ReplayDiffers` when another one is stored in its place."""
        if len(self._last) == ENTRIES_MAX:
            raise QuireError(
                f"one Spark partition has more than {ENTRIES_MAX} entries for one topic partition; write larger "
                "batches (batching, batch_bytes_max), or repartition the rows"
            )
        self._digest = digest(rows, self._digest)
        first = self._base + (len(self._last) << DIGEST_BITS)
        last = first + (self._digest >> 32 - DIGEST_BITS)
        self._last.append(last)
        self._compare()
        return EntryIds(last if len(rows) == 1 else first, last)

    def end(self) -> None:
        """There are no more rows. Raises `ReplayDiffers` when more of them are stored."""
        if self._recorded >= self._base and self._place(self._recorded) >= len(self._last):
            raise ReplayDiffers(f"it has fewer rows than were written before{REMEDY}")

    def _compare(self) -> None:
        stored = self._recorded
        if stored < self._base:
            return
        chunked = self._place(stored + 1)
        if chunked < len(self._last) and self._last[chunked] == stored + 1:
            return
        place = self._place(stored)
        if place < len(self._last) and self._last[place] != stored:
            raise ReplayDiffers(f"its rows, or their order, are not those that were written before{REMEDY}")

    def _place(self, sequence_id: int) -> int:
        """Which entry of the epoch it is of; beyond all of them for what is of a later epoch."""
        return sequence_id - self._base >> DIGEST_BITS


def digest(rows: Sequence[OutgoingMessage], before: int) -> int:
    """CRC32C over all that makes the messages, in order, after `before`."""
    what = [
        (
            -1 if one.payload is None else len(one.payload),
            one.key,
            one.key_is_base64,
            one.ordering_key,
            one.event_time_ms,
            sorted(one.properties.items()) if one.properties else None,
        )
        for one in rows
    ]
    return crc32c(b"".join([one.payload or b"" for one in rows]), crc32c(repr(what).encode(), before))
