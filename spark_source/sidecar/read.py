"""Reading of a slice by its sidecar, in a task: matching rows, and spans of entries to be read from the object.

If the sidecar cannot be read, the rest of the slice is one span. A group's rows are yielded only after the whole group
was verified and decoded, so no row is missing or repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from quire.runtime.errors import NotFound, QuireError
from quire.spark_source import fetch
from quire.spark_source.options import Options
from quire.spark_source.plan import Slice
from quire.spark_source.sidecar import choose
from quire.spark_source.sidecar.choose import Rows, Span
from quire.spark_source.sidecar.layout import SidecarError
from quire.spark_source.sidecar.open import Sidecar, arrow_errors, open_sidecar

_log = logging.getLogger(__name__)

Step: TypeAlias = pa.RecordBatch | Span


def steps(piece: Slice, options: Options) -> Iterator[Step]:
    """Yield the matching rows of a slice, and the spans of the other entries that may have such rows, in order."""
    at = piece.first_entry
    if choose.helps(piece, options):
        try:
            for done, found in _steps(piece, options):
                at = done
                yield from found
            return
        except NotFound:
            pass  # the object has no sidecar
        except QuireError as error:
            _log.warning("reading an object without its sidecar: %s", error)
    if at < piece.end_entry:
        yield Span(at, piece.end_entry)


def opened(piece: Slice, options: Options) -> Sidecar:
    """Open the sidecar of a slice's object, and check that it covers the slice. Raises the errors of `open_sidecar`."""
    assert piece.archived is not None
    store = fetch.open_store(options.archive or piece.archived.store)
    sidecar = open_sidecar(store, piece.archived, piece.origin.ledger_id)
    end = sidecar.groups[-1].end_entry
    if end < piece.end_entry:
        raise SidecarError(
            f"a sidecar ends at entry {end - 1}, but the slice at {piece.end_entry - 1}", sidecar.name, 0
        )
    return sidecar


def _steps(piece: Slice, options: Options) -> Iterator[tuple[int, Sequence[Step]]]:
    """Yield (entry after the group's last one, steps) for each group, or once for the whole slice."""
    sidecar = opened(piece, options)
    numbers = choose.groups_of(sidecar.groups, piece, options.filter)
    if choose.has_values(options):
        yield piece.end_entry, _spans(sidecar, numbers, piece, options)
        return
    rows = Rows(piece, options)
    for group, table in sidecar.tables(numbers, rows.columns):
        with arrow_errors(sidecar.name):
            found = list(rows.of(group, table))
        yield group.end_entry, found


def _spans(sidecar: Sidecar, numbers: Sequence[int], piece: Slice, options: Options) -> list[Span]:
    """Return the spans of a slice's entries that may have matching rows, combined across small gaps."""
    assert piece.archived is not None
    entries = [np.empty(0, np.int64)]
    for _, table in sidecar.tables(numbers, choose.columns_of_spans(options.filter)):
        with arrow_errors(sidecar.name):
            entries.append(choose.wanted_entries(table, piece, options.filter))
    gap = choose.GAP_BYTES * sidecar.groups[-1].end_entry // piece.archived.bytes
    return list(choose.spans(np.concatenate(entries), piece, gap))
