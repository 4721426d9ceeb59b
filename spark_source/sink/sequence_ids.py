"""Sequence ids of the entries that one task writes to one topic partition. No I/O.

    63       47  46      23        15       0
     | epoch | 0 | entry | digest           |      epoch: the stream's, modulo 65,536; entry: its number in the epoch
     | epoch | 1 | entry | routes | digest  |      for a topic whose number of partitions has grown

An entry of several rows has a range of ids, from digest 0 up to its digest; an entry of one row has only the last id.
The digest covers all fields of the rows of this entry and of all entries before it, in order. So the ids that a broker
stores for deduplication also identify the rows. The digest has 23 bits: one of eight million replays with other rows
would be accepted as the same.

Rows are routed by the topic's number of partitions, which may grow between two attempts at an epoch. In a topic that
has grown, `routes` is the number that was used for the epoch, modulo 251 and plus one, so that a replay can use the
same number. Then the digest has 15 bits, and is never 0.

If a broker has only the first chunks of a message, it returns that message's sequence id minus one.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from quire.runtime.errors import QuireError
from quire.wire.checksum import crc32c
from quire.wire.message import OutgoingMessage

DIGEST_BITS: Final = 23
ENTRY_BITS: Final = 24
EPOCH_BITS: Final = 16
EPOCHS: Final = 1 << EPOCH_BITS
"""Number of epochs under one producer name. The next epoch has the name of the next generation."""

ENTRIES_MAX: Final = 1 << ENTRY_BITS - 1
EPOCH_MAX: Final = (1 << 63) - 1

REMEDY: Final = (
    "; write them with row_order=content if only the order differs, or with delivery=at_least_once, which writes the "
    "rows of this epoch a second time"
)

_ROUTED: Final = 1 << 46
_ROUTES_SHIFT: Final = 15
_ROUTES_MODULUS: Final = 251
"""Modulus of `routes`. It is prime, because numbers of partitions are often powers of two."""

assert EPOCH_BITS + ENTRY_BITS + DIGEST_BITS == 63
assert ENTRIES_MAX << DIGEST_BITS == _ROUTED and _ROUTES_MODULUS < 1 << DIGEST_BITS - _ROUTES_SHIFT


class ReplayDiffers(QuireError):
    """Error for a repeated task whose rows differ from the rows of its first attempt."""


class EpochOver(QuireError):
    """Error for an epoch that is older than one already written by the same query."""


class EntryIds(NamedTuple):
    """First and last sequence ids of an entry."""

    first: int
    last: int


class SequenceIds:
    """Sequence ids of one epoch, compared with the ids that the broker has stored.

    `routes` is 0 if no partitions were ever added to the topic.
    """

    def __init__(self, epoch: int, routes: int = 0) -> None:
        self._epoch_base = _base(epoch)
        self._base = self._epoch_base + (_ROUTED if routes else 0)
        self._routes = _residue(routes) if routes else 0
        self._digest = 0
        self._last = array("q")
        """Last sequence id of each entry so far."""
        self._recorded = -1

    def __len__(self) -> int:
        return len(self._last)

    def recorded(self, sequence_id: int) -> None:
        """Compare with the last sequence id that the broker has stored. Raises `EpochOver`, `ReplayDiffers`."""
        if sequence_id >= self._epoch_base + (1 << ENTRY_BITS + DIGEST_BITS):
            raise EpochOver(
                "a later epoch of the same query has been written; was the query started from an old copy of its "
                "checkpoint? Start it from the newest checkpoint, or with a new one"
            )
        if sequence_id > self._recorded:
            self._recorded = sequence_id
            self._compare()

    def next(self, rows: Sequence[OutgoingMessage]) -> EntryIds:
        """Return the ids of the next entry. Raises `ReplayDiffers` if the entry is stored with other rows."""
        if len(self._last) == ENTRIES_MAX:
            raise QuireError(
                f"one Spark partition has more than {ENTRIES_MAX} entries for one topic partition; write larger "
                "batches (batching, batch_bytes_max), or repartition the rows"
            )
        self._digest = digest(rows, self._digest)
        first = self._base + (len(self._last) << DIGEST_BITS)
        last = first + self._low_bits()
        self._last.append(last)
        self._compare()
        return EntryIds(last if len(rows) == 1 else first, last)

    def _low_bits(self) -> int:
        if not self._routes:
            return self._digest >> 32 - DIGEST_BITS
        return self._routes << _ROUTES_SHIFT | max(1, self._digest >> 32 - _ROUTES_SHIFT)

    def end(self) -> None:
        """End the epoch after its last row. Raises `ReplayDiffers` if more rows are stored."""
        if self._recorded >= self._base and self._place(self._recorded) >= len(self._last):
            raise ReplayDiffers(f"it has fewer rows than were written by an earlier attempt{REMEDY}")

    def _compare(self) -> None:
        stored = self._recorded
        if stored < self._epoch_base:
            return
        if stored < self._base:
            raise ReplayDiffers(f"an earlier attempt routed its rows by another number of partitions{REMEDY}")
        chunked = self._place(stored + 1)
        if chunked < len(self._last) and self._last[chunked] == stored + 1:
            return
        place = self._place(stored)
        if place < len(self._last) and self._last[place] != stored:
            raise ReplayDiffers(f"its rows, or their order, differ from those of an earlier attempt{REMEDY}")

    def _place(self, sequence_id: int) -> int:
        """Return the number in the epoch of an id's entry. An id of a later epoch has a number beyond all entries."""
        return sequence_id - self._base >> DIGEST_BITS


def _base(epoch: int) -> int:
    return epoch % EPOCHS << ENTRY_BITS + DIGEST_BITS


def _residue(routes: int) -> int:
    return routes % _ROUTES_MODULUS + 1


class Routing(NamedTuple):
    """Number of partitions by which an epoch's rows are routed, and whether its sequence ids contain that number."""

    routes: int
    is_numbered: bool


def routing_of(recorded: Mapping[int, int], epoch: int, partitions: int, grew_from: int) -> Routing:
    """Return the routing of an epoch into a topic that has grown from `grew_from` to `partitions`.

    `recorded` contains the last stored sequence id of each topic partition. Raises `ReplayDiffers` if earlier attempts
    used several routings, or an unknown one.
    """
    base = _base(epoch)
    end = base + (1 << ENTRY_BITS + DIGEST_BITS)
    stored = {number: one - base for number, one in recorded.items() if base <= one < end}
    if not stored:
        return Routing(partitions, True)
    fewest = max(stored) + 1
    marks = {one >> _ROUTES_SHIFT & 0xFF if one & _ROUTED else 0 for one in stored.values()}
    if marks == {0}:
        found = [Routing(grew_from, False)] if fewest <= grew_from else []
    else:
        found = [Routing(n, True) for n in range(fewest, partitions + 1) if {_residue(n)} == marks]
        found = [one for one in found if one.routes >= grew_from] or found
    if len(found) != 1:
        raise ReplayDiffers(
            f"an earlier attempt wrote a part of it when the topic had another, unknown number of partitions{REMEDY}"
        )
    return found[0]


def digest(rows: Sequence[OutgoingMessage], before: int) -> int:
    """Return the CRC32C of all fields of the messages, in order, continuing `before`."""
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
