"""Selection, by a sidecar, of the sidecar's rows and of the spans of the object's entries that a query needs.

| query or group | selected |
|---|---|
| query without values | matching rows of each group, and spans of the entries set apart (`layout`) |
| query with values | spans of the entries that may have matching rows, and of the entries set apart |
| group without matching rows and without entries set apart | nothing |

Rows and spans are in the order of the entries, and no entry is selected twice. The rows of a span are filtered again
after decoding, so a span may have more rows than needed. Rows of the sidecar are exactly the matching rows.

If a query needs keys, and a key of a group is longer than a sidecar stores, then the whole group is a span.

This file performs no I/O.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quire.runtime.limits import MIB
from quire.spark_source import schema
from quire.spark_source.filters import Filter
from quire.spark_source.options import Options
from quire.spark_source.plan import Slice
from quire.spark_source.positions import Window
from quire.spark_source.protobuf import Flags, Ints
from quire.spark_source.sidecar.layout import KEY_BYTES_MAX, Group

GAP_BYTES: Final = MIB
"""Greatest gap between two entries that is read along with them, because another request would cost as much."""

BATCH_BYTES: Final = 2 * MIB


class Span(NamedTuple):
    """The entries `[first, end)`."""

    first: int
    end: int


def has_values(options: Options) -> bool:
    """Return whether a query needs values, and so the objects themselves. Typed keys may be in the values."""
    return "value" in options.columns or options.typed is not None


def is_selective(window: Window, filter_: Filter) -> bool:
    """Return whether a query has conditions that may drop some rows of a range of entries."""
    return bool(filter_.columns) or window.start_ms is not None or window.end_ms is not None


def helps(piece: Slice, options: Options) -> bool:
    """Return whether a sidecar of this slice's object would save work."""
    if piece.archived is None or not options.sidecars or options.compacted:
        return False
    return not has_values(options) or is_selective(piece.window, options.filter)


def groups_of(groups: Sequence[Group], piece: Slice, filter_: Filter) -> list[int]:
    """Return the numbers of the groups that may have a matching row of a slice."""
    return [
        number
        for number, group in enumerate(groups)
        if group.first_entry < piece.end_entry
        and group.end_entry > piece.first_entry
        and (group.apart or _may_match(group, piece.window, filter_))
    ]


def _may_match(group: Group, window: Window, filter_: Filter) -> bool:
    if not group.rows:
        return False
    times = (group.publish_min_ms, group.publish_max_ms, window.start_ms, window.end_ms)
    events = (group.event_min_ms, group.event_max_ms, filter_.event_start_ms, filter_.event_end_ms)
    return _overlap(*times) and _overlap(*events) and _has_key(group, filter_.keys)


def _overlap(low: int | None, high: int | None, start: int | None, end: int | None) -> bool:
    """Return whether `[low, high]` and `[start, end)` overlap.

    None is an open bound for `start` and `end`. For `low` and `high` it means that the group has no times.
    """
    if start is None and end is None:
        return True
    if low is None or high is None:
        return False
    return (start is None or high >= start) and (end is None or low < end)


def _has_key(group: Group, keys: Sequence[bytes] | None) -> bool:
    if keys is None:
        return True
    if group.key_min is None or group.key_max is None:
        return False
    low, high = bytes.fromhex(group.key_min), bytes.fromhex(group.key_max)
    return any(low <= key[:KEY_BYTES_MAX] <= high for key in keys)


# -- rows ------------------------------------------------------------------------------------------------


class Rows:
    """Selection of one slice's rows from its sidecar's groups."""

    def __init__(self, piece: Slice, options: Options) -> None:
        self._piece = piece
        self._columns = options.columns
        self._filter = options.filter
        self._batch_rows = options.batch_rows
        needed = {*options.columns, *options.filter.columns}
        self._needs_keys = "key" in needed
        needed |= {"entry", "batch_index", "publish_time", schema.UNDECODED}
        self.columns = sorted(needed - {"topic", "partition", "ledger"})
        """Columns of a group to be read."""

    def of(self, group: Group, table: pa.Table) -> Iterator[pa.RecordBatch | Span]:
        """Yield the matching rows of a group, and the spans of entries set apart."""
        if self._needs_keys and group.key_bytes_max > KEY_BYTES_MAX:
            yield clipped(Span(group.first_entry, group.end_entry), self._piece)
            return
        entry = table["entry"].to_numpy()
        apart = np.asarray(pc.is_valid(table[schema.UNDECODED]))
        edges = np.flatnonzero(np.diff(apart)) + 1
        for first, last in zip([0, *edges.tolist()], [*edges.tolist(), len(apart)], strict=True):
            if first == last:
                continue
            if apart[first]:
                yield from spans(entry[first:last], self._piece, gap=0)
            else:
                yield from self._batches(table.slice(first, last - first))

    def _batches(self, table: pa.Table) -> Iterator[pa.RecordBatch]:
        wanted = table.filter(pa.array(_in_window(table, self._piece)))
        made = pa.Table.from_arrays(
            [self._column(name, wanted) for name in (*self._columns, *self._extra)],
            schema=schema.arrow((*self._columns, *self._extra)),
        )
        mask = self._filter.mask(made)
        made = (made if mask is None else made.filter(mask)).select(list(self._columns))
        if not made.num_rows:
            return
        fitting = BATCH_BYTES * made.num_rows // max(made.nbytes, 1)
        yield from made.combine_chunks().to_batches(max_chunksize=max(1, min(self._batch_rows, fitting)))

    @property
    def _extra(self) -> tuple[str, ...]:
        return tuple(name for name in self._filter.columns if name not in self._columns)

    def _column(self, name: str, table: pa.Table) -> pa.Array:
        same = {
            "topic": self._piece.origin.topic,
            "partition": self._piece.origin.partition,
            "ledger": self._piece.origin.ledger_id,
        }
        kind = schema.FIELDS[name]
        if name in same:
            return pa.repeat(pa.scalar(same[name], kind), table.num_rows)
        return table[name].cast(kind)


def _in_window(table: pa.Table, piece: Slice) -> Flags:
    """Return a mask of the rows of a table that are in a slice's range."""
    window = piece.window
    entry = table["entry"].to_numpy()
    index = np.maximum(table["batch_index"].to_numpy(), 0)
    times = table["publish_time"].cast(pa.int64()).to_numpy()
    keep: Flags = (entry > window.first[0]) | ((entry == window.first[0]) & (index >= window.first[1]))
    keep &= (entry < window.end[0]) | ((entry == window.end[0]) & (index < window.end[1]))
    keep &= (entry >= piece.first_entry) & (entry < piece.end_entry)
    if window.start_ms is not None:
        keep &= times >= window.start_ms
    if window.end_ms is not None:
        keep &= times < window.end_ms
    return keep


# -- spans -----------------------------------------------------------------------------------------------


def columns_of_spans(filter_: Filter) -> list[str]:
    """Return the columns of a group that `wanted_entries` needs."""
    return ["entry", "publish_time", schema.UNDECODED, *filter_.columns]


def wanted_entries(table: pa.Table, piece: Slice, filter_: Filter) -> Ints:
    """Return the entries of a group that may have matching rows, ascending and each once."""
    apart = np.asarray(pc.is_valid(table[schema.UNDECODED]))
    times = pc.fill_null(table["publish_time"].cast(pa.int64()), 0).to_numpy()
    keep = np.ones(table.num_rows, np.bool_)
    if piece.window.start_ms is not None:
        keep &= times >= piece.window.start_ms
    if piece.window.end_ms is not None:
        keep &= times < piece.window.end_ms
    mask = _prefixes(filter_).mask(_in_microseconds(table))
    if mask is not None:
        keep &= np.asarray(mask)
    return np.unique(table["entry"].to_numpy()[keep | apart])


def spans(entries: Ints, piece: Slice, gap: int) -> Iterator[Span]:
    """Combine ascending entries to spans within a slice. Spans that are at most `gap` entries apart become one."""
    inside = entries[(entries >= piece.first_entry) & (entries < piece.end_entry)]
    if not len(inside):
        return
    breaks = np.flatnonzero(np.diff(inside) > gap + 1) + 1
    for first, last in zip([0, *breaks.tolist()], [*(breaks - 1).tolist(), -1], strict=True):
        yield Span(int(inside[first]), int(inside[last]) + 1)


def clipped(span: Span, piece: Slice) -> Span:
    """Return the part of a span within a slice."""
    return Span(max(span.first, piece.first_entry), min(span.end, piece.end_entry))


def _prefixes(filter_: Filter) -> Filter:
    """Return a filter by the stored prefixes of keys. A row that it keeps may match; a row that it drops cannot."""
    keys = None if filter_.keys is None else tuple(key[:KEY_BYTES_MAX] for key in filter_.keys)
    return Filter(keys, filter_.event_start_ms, filter_.event_end_ms)


def _in_microseconds(table: pa.Table) -> pa.Table:
    if "event_time" not in table.schema.names:
        return table
    at = table.schema.names.index("event_time")
    return table.set_column(at, "event_time", table["event_time"].cast(schema.TIME))
