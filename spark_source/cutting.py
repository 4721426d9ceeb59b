"""Slices to tasks: each task reads about as many bytes as the others.

A task costs Spark some 60 ms of a core, so small segments are read together by one; and it is run again as a whole, so
large ones are cut. The slices of a query, in their order, are one line of bytes, which is cut into parts of one length,
two thirds to four thirds of `slice_bytes`: with its default 64 to 128 MiB, and less only when there is no more.

    segments    ├────────────┼──┼─┼──────┼─┼───────────────────────────┤
    tasks       ├───────┼───────────┼───────────┼───────────┼──────────┤

A cut within an archived segment falls where its index says that so many bytes lie before. The driver reads the index
for it: one request, 40 bytes for each 64 KiB. Where the driver cannot, and in segments that are not archived yet, bytes
are taken to be spread evenly over the entries. Cuts are between entries, and each entry is in one task, whatever is
known of bytes.

A micro-batch of a stream may be done again when segments are sealed and archived, and then has to have the same tasks:
a sink knows by its tasks what of a micro-batch is written. What stays is how many bytes a segment had when it was
sealed, and each but the last was. So these are cut by entries, whatever indexes say, and the last is a task of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, groupby
from typing import Final, NamedTuple

from quire.runtime.errors import QuireError
from quire.spark_source import fetch
from quire.spark_source.options import Options
from quire.spark_source.plan import Slice
from quire.tiering.segment_object import Index

INDEXES_AT_ONCE: Final = 8

Task = tuple[Slice, ...]
"""What one task reads, in this order. Not empty."""

EntryAt = Callable[[Slice, float], int]
"""The entry of a slice before which about that share of its bytes lies, from 0 to 1."""

_log = logging.getLogger(__name__)


class Cut(NamedTuple):
    """A place within a slice, by the slice's number; `share` of its bytes lies before."""

    number: int
    share: float


def tasks(pieces: Sequence[Slice], options: Options) -> list[Task]:
    """The tasks of a query. With `compacted` each partition is one."""
    if options.compacted:
        return [tuple(of_one) for _, of_one in groupby(pieces, lambda piece: piece.origin.name)]
    cuts = cuts_of([piece.bytes for piece in pieces], options.slice_bytes)
    indexes = _indexes([pieces[number] for number in {cut.number for cut in cuts}], options.archive)

    def entry_at(piece: Slice, share: float) -> int:
        found = indexes.get(piece)
        return evenly(piece, share) if found is None else by_index(found, piece, share)

    return list(gathered(pieces, cuts, entry_at))


def slices(pieces: Sequence[Slice], options: Options) -> list[Slice]:
    """The same for who reads each slice by itself: what is large is cut, and what is small stays small."""
    return [piece for task in tasks(pieces, options) for piece in task]


def tasks_of_stream(pieces: Sequence[Slice], slice_bytes: int) -> list[Task]:
    """The tasks of a micro-batch in one partition, the same whenever it is done."""
    sealed = pieces[:-1]
    cuts = cuts_of([piece.bytes for piece in sealed], slice_bytes)
    return [*gathered(sealed, cuts, evenly), *((piece,) for piece in pieces[-1:])]


# -- the line of bytes -----------------------------------------------------------------------------------


def cuts_of(sizes: Sequence[int], slice_bytes: int) -> list[Cut]:
    """Where slices of these sizes are cut into even parts."""
    ends = list(accumulate(sizes))
    total = ends[-1] if ends else 0
    count = -(-3 * total // (4 * slice_bytes))
    cuts, number = [], 0
    for at in (total * i / count for i in range(1, count)):
        while ends[number] < at:
            number += 1
        cuts.append(Cut(number, 1 - (ends[number] - at) / sizes[number]))
    return cuts


def gathered(pieces: Sequence[Slice], cuts: Sequence[Cut], entry_at: EntryAt) -> Iterator[Task]:
    """What lies between the cuts."""
    task: list[Slice] = []
    places: list[list[float]] = [[] for _ in pieces]
    for cut in cuts:
        places[cut.number].append(cut.share)
    for piece, shares in zip(pieces, places, strict=True):
        begin = piece.first_entry
        for share in shares:
            entry = min(entry_at(piece, share), piece.end_entry)
            if entry > begin:
                task.append(piece.part(begin, entry))
                begin = entry
            if task:
                yield tuple(task)
                task = []
        if begin < piece.end_entry:
            task.append(piece.part(begin, piece.end_entry))
    if task:
        yield tuple(task)


# -- where in a slice ------------------------------------------------------------------------------------


def evenly(piece: Slice, share: float) -> int:
    """As if each entry had as many bytes."""
    return piece.first_entry + round((piece.end_entry - piece.first_entry) * share)


def by_index(index: Index, piece: Slice, share: float) -> int:
    """By an archived segment's index: the first run that begins there or after it."""
    begin = index.row(index.find_entry(piece.first_entry)).offset
    end = index.row(index.find_entry(piece.end_entry - 1)).end
    number = index.find_offset(begin + round((end - begin) * share))
    return index.row(number).first_entry if number < len(index) else piece.end_entry


def _indexes(pieces: Sequence[Slice], archive_url: str | None) -> dict[Slice, Index]:
    """Of those that are archived where the driver can look."""
    unreachable: set[str] = set()

    def read(piece: Slice) -> Index | None:
        assert piece.archived is not None
        url = archive_url or piece.archived.store
        if url in unreachable:
            return None
        try:
            return fetch.read_index(fetch.open_store(url), piece.archived)
        except QuireError as error:
            unreachable.add(url)
            _log.info(
                "slices of %s are cut by entries, for its index cannot be read: %s", piece.origin.name, error
            )
            return None

    archived = [piece for piece in pieces if piece.archived is not None]
    with ThreadPoolExecutor(INDEXES_AT_ONCE, "quire-plan") as pool:
        found = pool.map(read, archived)
        return {piece: index for piece, index in zip(archived, found, strict=True) if index is not None}
