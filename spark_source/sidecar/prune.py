"""Pruning of slices by their sidecars, in the driver, before they are cut into tasks.

Only footers are read, up to `AT_ONCE` at a time. A group without a matching row is cut out of its slice. A task of a
query without values reads only a hundredth of its slice's bytes, so the remaining groups of a segment stay one slice.

A driver need not have access to the archive. If the archive does not answer, the slices are not pruned.
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
"""Reciprocal of the share of a slice's bytes that a task of a query without values reads at most, approximately."""

_log = logging.getLogger(__name__)


def pruned(pieces: Sequence[Slice], options: Options) -> list[Slice]:
    """Return the remaining parts of a plan's slices, in order."""
    segments = [list(some) for _, some in groupby(pieces, lambda one: (one.origin, one.archived))]
    sidecars = _sidecars([some[-1] for some in segments if choose.helps(some[-1], options)], options)
    return [piece for some in segments for piece in _left(some, sidecars.get(some[-1].archived), options)]


def _sidecars(lasts: Sequence[Slice], options: Options) -> dict[ArchivedObject | None, Sidecar]:
    """Open the existing sidecars of the segments whose last slices are `lasts`, and return them by their objects."""
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
        _log.warning("planning without some sidecars, because they cannot be read: %s", out_of_reach[0])
    return found


def _left(pieces: Sequence[Slice], sidecar: Sidecar | None, options: Options) -> Iterable[Slice]:
    """Return the remaining parts of one segment's slices."""
    if sidecar is None:
        return pieces
    if not choose.has_values(options):
        pieces = [_joined(pieces)]
    return [part for piece in pieces for part in _cut(piece, sidecar, options)]


def _joined(pieces: Sequence[Slice]) -> Slice:
    """Combine consecutive slices into one."""
    assert all(one.end_entry == following.first_entry for one, following in pairwise(pieces)), pieces
    first, last = pieces[0], pieces[-1]
    window = replace(first.window, end=last.window.end)
    return replace(first, end_entry=last.end_entry, window=window, bytes=sum(one.bytes for one in pieces))


def _cut(piece: Slice, sidecar: Sidecar, options: Options) -> Iterator[Slice]:
    """Yield the parts of a slice that may have matching rows, or one part if a task reads only the sidecar."""
    numbers = choose.groups_of(sidecar.groups, piece, options.filter)
    found = [Span(sidecar.groups[n].first_entry, sidecar.groups[n].end_entry) for n in numbers]
    if found and not choose.has_values(options):
        found = [Span(found[0].first, found[-1].end)]
    for span in _merged(found):
        part = piece.part(*choose.clipped(span, piece))
        yield part if choose.has_values(options) else replace(part, bytes=part.bytes // SIDECAR_SHARE)


def _merged(found: Sequence[Span]) -> list[Span]:
    """Combine adjacent spans."""
    merged: list[Span] = []
    for span in found:
        if merged and merged[-1].end == span.first:
            merged[-1] = Span(merged[-1].first, span.end)
        else:
            merged.append(span)
    return merged
