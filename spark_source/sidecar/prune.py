"""Slices by their sidecars, in the driver: what cannot hold a wanted row is no task, and a task has enough to do.

Only footers are read, `AT_ONCE` of them at a time: a group that has nothing of a query's range and filter is cut out
of its slice. Where no value is asked for, a task reads a hundredth of its slice, so what is left of a segment is one.

A driver need not reach the archive. Once it does not answer, the slices stay as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import groupby, pairwise
from typing import Final

from quire.runtime.errors import CorruptionError, NotFound, QuireError
from quire.spark_source.options import Options
from quire.spark_source.plan import ArchivedObject, Slice
from quire.spark_source.sidecar import choose
from quire.spark_source.sidecar.choose import Span
from quire.spark_source.sidecar.open import Sidecar
from quire.spark_source.sidecar.read import opened

AT_ONCE: Final = 16

SIDECAR_SHARE: Final = 64
"""What a task reads of a slice without values, at most about: a part of it by this."""

_log = logging.getLogger(__name__)


def pruned(pieces: Sequence[Slice], options: Options) -> list[Slice]:
    """What is left of a plan's slices, in their order."""
    segments = [list(some) for _, some in groupby(pieces, lambda one: (one.origin, one.archived))]
    sidecars = _sidecars([some[-1] for some in segments if choose.helps(some[-1], options)], options)
    return [piece for some in segments for piece in _left(some, sidecars.get(some[-1].archived), options)]


def _sidecars(lasts: Sequence[Slice], options: Options) -> dict[ArchivedObject | None, Sidecar]:
    """The sidecars that are there, by their objects; each is asked for by its segment's last slice."""
    out_of_reach: list[QuireError] = []

    def ask(piece: Slice) -> Sidecar | None:
        if out_of_reach:
            return None
        try:
            return opened(piece, options)
        except (NotFound, CorruptionError):
            return None  # its tasks read the object
        except QuireError as error:
            out_of_reach.append(error)
            return None

    if not lasts:
        return {}
    with ThreadPoolExecutor(min(AT_ONCE, len(lasts)), "quire-sidecars") as pool:
        found = {
            piece.archived: sidecar
            for piece, sidecar in zip(lasts, pool.map(ask, lasts), strict=True)
            if sidecar is not None
        }
    if out_of_reach:
        _log.warning("the plan goes without some sidecars: %s", out_of_reach[0])
    return found


def _left(pieces: Sequence[Slice], sidecar: Sidecar | None, options: Options) -> Iterable[Slice]:
    """What is left of one segment's slices."""
    if sidecar is None:
        return pieces
    if not choose.has_values(options):
        pieces = [_joined(pieces)]
    return [part for piece in pieces for part in _cut(piece, sidecar, options)]


def _joined(pieces: Sequence[Slice]) -> Slice:
    """Slices that follow one another as one."""
    assert all(one.end_entry == following.first_entry for one, following in pairwise(pieces)), pieces
    first, last = pieces[0], pieces[-1]
    window = replace(first.window, end=last.window.end)
    return replace(first, end_entry=last.end_entry, window=window, bytes=sum(one.bytes for one in pieces))


def _cut(piece: Slice, sidecar: Sidecar, options: Options) -> Iterator[Slice]:
    """The parts of a slice whose groups may hold wanted rows; one part where a task reads sidecars only."""
    numbers = choose.groups_of(sidecar.groups, piece, options.filter)
    found = [Span(sidecar.groups[n].first_entry, sidecar.groups[n].end_entry) for n in numbers]
    if found and not choose.has_values(options):
        found = [Span(found[0].first, found[-1].end)]
    for span in _merged(found):
        part = piece.part(*choose.clipped(span, piece))
        yield part if choose.has_values(options) else replace(part, bytes=part.bytes // SIDECAR_SHARE)


def _merged(found: Sequence[Span]) -> list[Span]:
    """Spans that touch are one."""
    merged: list[Span] = []
    for span in found:
        if merged and merged[-1].end == span.first:
            merged[-1] = Span(merged[-1].first, span.end)
        else:
            merged.append(span)
    return merged
