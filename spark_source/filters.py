"""Filters of rows by key and by event time, in addition to a query's range.

Spark's own filters are not pushed down (`source` says why), so these are options:

| option | means |
|---|---|
| key | only messages with this key |
| keys | only messages with one of these keys, separated by commas |
| event_start, event_end | only messages with an event time in this half-open range; times as in `start` |

An entry that could not be decoded (`on_undecodable=raw`) is always kept: its key and event time are unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from quire.runtime.errors import ConfigurationError
from quire.spark_source import schema
from quire.spark_source.plain import TIME_MS_MAX
from quire.spark_source.positions import parse_bound

OPTIONS: Final = ("key", "keys", "event_start", "event_end")


@dataclass(frozen=True)
class Filter:
    """Conditions on rows; a row must satisfy all that are not None. Event times are in milliseconds."""

    keys: tuple[bytes, ...] | None = None
    event_start_ms: int | None = None
    event_end_ms: int | None = None

    @property
    def of_event_time(self) -> bool:
        return self.event_start_ms is not None or self.event_end_ms is not None

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that the filter tests."""
        return ("key",) * (self.keys is not None) + ("event_time",) * self.of_event_time

    def wanted(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that satisfy the filter. `rows` must have its `columns`, and may have `undecoded`."""
        mask = self.mask(rows)
        return rows if mask is None else rows.filter(mask)

    def mask(self, rows: pa.RecordBatch | pa.Table) -> pa.Array | pa.ChunkedArray | None:
        """Return a mask of the rows that satisfy the filter; None if all do."""
        tests = []
        if self.keys is not None:
            tests.append(pc.is_in(rows["key"], value_set=pa.array(self.keys, pa.binary())))
        if self.event_start_ms is not None:
            tests.append(pc.greater_equal(rows["event_time"], _time(self.event_start_ms)))
        if self.event_end_ms is not None:
            tests.append(pc.less(rows["event_time"], _time(self.event_end_ms)))
        if not tests:
            return None
        mask = tests[0]
        for test in tests[1:]:
            mask = pc.and_(mask, test)
        mask = pc.fill_null(mask, False)
        if schema.UNDECODED in rows.schema.names:
            mask = pc.or_(mask, pc.is_valid(rows[schema.UNDECODED]))
        return mask


EVERYTHING: Final = Filter()


def _time(ms: int) -> pa.Scalar:
    return pa.scalar(ms * 1000, pa.int64()).cast(schema.TIME)


def parse_filter(options: Mapping[str, str]) -> Filter:
    """Parse the options of the module's table; others are ignored. Raises `ConfigurationError`."""
    if "key" in options and "keys" in options:
        raise ConfigurationError("options key and keys exclude each other; set one of them")
    keys = None
    if "keys" in options:
        keys = tuple(dict.fromkeys(part.strip().encode() for part in options["keys"].split(",")))
    elif "key" in options:
        keys = (options["key"].encode(),)
    return Filter(keys, _event_time(options, "event_start"), _event_time(options, "event_end"))


def _event_time(options: Mapping[str, str], name: str) -> int | None:
    if name not in options:
        return None
    bound = parse_bound(name, options[name].strip())
    if bound.time_ms is None or bound.time_ms > TIME_MS_MAX:
        raise ConfigurationError(f"option {name}={options[name]!r} is not a time: write epoch ms or ISO-8601")
    return bound.time_ms
