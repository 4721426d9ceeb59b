"""Cutting of slices into tasks of about equal bytes.

A task costs Spark some 60 ms of a core, so one task reads several small segments. Spark retries a task as a whole, so
large segments are cut. The slices of a query, in order, are treated as one range of bytes. This range is cut into equal
parts, each of two thirds to four thirds of `slice_bytes`: by default 64 to 128 MiB. Only a query with less data has a
smaller part.

    segments    ├────────────┼──┼─┼──────┼─┼───────────────────────────┤
    tasks       ├───────┼───────────┼───────────┼───────────┼──────────┤

The driver reads the index of an archived segment to find the entry of a cut (one request, 40 bytes per 64 KiB). If the
index cannot be read, and in segments that are not archived yet, bytes are assumed to be spread evenly over the entries.
Cuts are between entries, so each entry is in exactly one task, even if the estimate is wrong.

Spark may repeat a micro-batch of a stream after segments were sealed and archived. It must have the same tasks then,
because a sink recognizes rows that were already written by their task. The bytes of a sealed segment do not change, and
all segments but the last one are sealed. So sealed segments are cut by entries, without their indexes, and the last
segment is a task of its own.
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
"""Non-empty sequence of the slices that one task reads, in this order."""

EntryAt = Callable[[Slice, float], int]
"""Function of a slice and a share (0 to 1). It returns the entry before which about that share of the bytes is."""

_log = logging.getLogger(__name__)


class Cut(NamedTuple):
    """Cut within slice number `number`: the fraction `share` of the slice's bytes is before the cut."""

    number: int
    share: float


def tasks(pieces: Sequence[Slice], options: Options) -> list[Task]:
    """Return the tasks of a query. With `compacted`, each partition is one task."""
    if options.compacted:
        return [tuple(of_one) for _, of_one in groupby(pieces, lambda piece: piece.origin.name)]
    cuts = cuts_of([piece.bytes for piece in pieces], options.slice_bytes)
    indexes = _indexes([pieces[number] for number in {cut.number for cut in cuts}], options.archive)

    def entry_at(piece: Slice, share: float) -> int:
        found = indexes.get(piece)
        return evenly(piece, share) if found is None else by_index(found, piece, share)

    return list(gathered(pieces, cuts, entry_at))


def slices(pieces: Sequence[Slice], options: Options) -> list[Slice]:
    """Return a query's slices for callers that read each by itself: large ones are cut, small ones not combined."""
    return [piece for task in tasks(pieces, options) for piece in task]


def tasks_of_stream(pieces: Sequence[Slice], slice_bytes: int) -> list[Task]:
    """Return the tasks of a micro-batch in one partition, which are the same whenever the micro-batch is repeated."""
    sealed = pieces[:-1]
    cuts = cuts_of([piece.bytes for piece in sealed], slice_bytes)
    return [*gathered(sealed, cuts, evenly), *((piece,) for piece in pieces[-1:])]


# -- cuts of the range of bytes --------------------------------------------------------------------------


def cuts_of(sizes: Sequence[int], slice_bytes: int) -> list[Cut]:
    """Return the cuts that divide slices of these sizes into parts of equal length."""
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
    """Yield the tasks: the slices, and parts of slices, between consecutive cuts."""
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


# -- positions in a slice --------------------------------------------------------------------------------


def evenly(piece: Slice, share: float) -> int:
    """Return the entry at a share of a slice, as if all entries had the same size."""
    return piece.first_entry + round((piece.end_entry - piece.first_entry) * share)


def by_index(index: Index, piece: Slice, share: float) -> int:
    """Return the first entry of the first run that begins at or after the given share of the slice's bytes."""
    begin = index.row(index.find_entry(piece.first_entry)).offset
    end = index.row(index.find_entry(piece.end_entry - 1)).end
    number = index.find_offset(begin + round((end - begin) * share))
    return index.row(number).first_entry if number < len(index) else piece.end_entry


def _indexes(pieces: Sequence[Slice], archive_url: str | None) -> dict[Slice, Index]:
    """Return the indexes of the archived slices among `pieces`, except slices whose archive does not answer."""
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
                "cutting slices of %s by entries, because the index cannot be read: %s",
                piece.origin.name,
                error,
            )
            return None

    archived = [piece for piece in pieces if piece.archived is not None]
    with ThreadPoolExecutor(INDEXES_AT_ONCE, "quire-plan") as pool:
        found = pool.map(read, archived)
        return {piece: index for piece, index in zip(archived, found, strict=True) if index is not None}
