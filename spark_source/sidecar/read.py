"""A slice by its sidecar, in a task: rows as they are wanted, and spans of entries that the caller reads elsewhere.

Whatever is wrong with a sidecar, from there on the slice is one span. A group's rows are handed out only when all of it
was proven and decoded, so nothing is short, and nothing comes twice.
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
    """All that is wanted of a slice, in its order."""
    at = piece.first_entry
    if choose.helps(piece, options):
        try:
            for done, found in _steps(piece, options):
                at = done
                yield from found
            return
        except NotFound:
            pass  # it has none
        except QuireError as error:
            _log.warning("an object is read without its sidecar: %s", error)
    if at < piece.end_entry:
        yield Span(at, piece.end_entry)


def opened(piece: Slice, options: Options) -> Sidecar:
    """The sidecar of a slice's object, which has all of the slice. Raises as `open_sidecar`."""
    assert piece.archived is not None
    store = fetch.open_store(options.archive or piece.archived.store)
    sidecar = open_sidecar(store, piece.archived, piece.origin.ledger_id)
    end = sidecar.groups[-1].end_entry
    if end < piece.end_entry:
        raise SidecarError(
            f"a sidecar ends at entry {end - 1}, before {piece.end_entry - 1}", sidecar.name, 0
        )
    return sidecar


def _steps(piece: Slice, options: Options) -> Iterator[tuple[int, Sequence[Step]]]:
    """Up to which entry, and what is wanted of those."""
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
    """Where in a slice the wanted values are, and what lies little apart between them."""
    assert piece.archived is not None
    entries = [np.empty(0, np.int64)]
    for _, table in sidecar.tables(numbers, choose.columns_of_spans(options.filter)):
        with arrow_errors(sidecar.name):
            entries.append(choose.wanted_entries(table, piece, options.filter))
    gap = choose.GAP_BYTES * sidecar.groups[-1].end_entry // piece.archived.bytes
    return list(choose.spans(np.concatenate(entries), piece, gap))
