"""Conversion of rows to columns: Arrow arrays, each created on demand from the offsets that `rows` found.

Arrow gathers the bytes of a column. In a binary array with the offsets (start, end, start, end …) over the chunk, every
even element is a value and every odd one is a gap. `take` of the even elements copies only the values. Values of equal
length at equal distances, as in many batches and blocks, are copied as the rows of a numpy matrix, which takes two
thirds of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

from quire.runtime.limits import KIB
from quire.spark_source import plain, schema
from quire.spark_source.protobuf import Bytes, Flags, Ints, Shape, read
from quire.spark_source.rows import PRODUCER, SCHEMA_VERSION, Entries, Metadata, Odd, Rows

_LARGE_BYTES: Final = 64 * KIB
"""Mean length in bytes from which values are copied one by one."""

_ALIKE_MIN: Final = 16
"""Minimum mean number of values per run of equal distances: with shorter runs, searching for runs costs too much."""

_KEY_VALUE: Final = Shape(numbers=frozenset(), spans=frozenset((1, 2)))


@dataclass(frozen=True)
class Origin:
    """Values of the columns that are equal in all rows of a segment, and the partition's name."""

    topic: str
    """Full name without `-partition-N`: the value of the column `topic`."""
    partition: int
    ledger_id: int
    name: str
    """Full name with `-partition-N`, for requests and errors."""


def gather(data: Bytes, start: Ints, end: Ints, null: Flags | None = None) -> pa.Array:
    """Copy the bytes `[start, end)` of each row into one binary array."""
    count = len(start)
    if null is None and (alike := _gather_alike(data, start, end)) is not None:
        return alike
    offsets = np.empty(2 * count + 1, np.int32)
    offsets[0 : 2 * count : 2] = start
    offsets[1 : 2 * count : 2] = end
    offsets[2 * count] = len(data)
    every = pa.Array.from_buffers(
        pa.binary(), 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(data.data)]
    )
    if null is None and count * _LARGE_BYTES < int((end - start).sum()):
        return _gather_large(every)
    return every.take(pa.array(np.arange(0, 2 * count, 2), mask=null))


def _gather_alike(data: Bytes, start: Ints, end: Ints) -> pa.Array | None:
    """Copy values of equal length, each run of values at equal distances at once.

    Return None if lengths differ, or if the runs are too short.
    """
    count = len(start)
    if count < _ALIKE_MIN:
        return None
    size, distances = int(end[0] - start[0]), np.diff(start)
    distance = sorted(distances[:_ALIKE_MIN].tolist())[_ALIKE_MIN // 2]  # the median
    firsts = np.flatnonzero(distances != distance) + 1
    if not 0 < size <= distance or len(firsts) * _ALIKE_MIN > count or (end - start != size).any():
        return None
    values = pa.allocate_buffer(count * size)
    rows = np.frombuffer(values, np.uint8).reshape(count, size)
    for first, last in pairwise((0, *firsts.tolist(), count)):
        at = int(start[first])
        rows[first:last] = np.ndarray((last - first, size), np.uint8, data.data, at, (distance, 1))
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(size)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), values])


def _gather_large(every: pa.Array) -> pa.Array:
    """Copy the even elements one by one if they are large, because `take` would allocate twice as much memory."""
    some = [every.slice(at, 1) for at in range(0, len(every), 2)]
    return some[0] if len(some) == 1 else pa.concat_arrays(some)


@dataclass(frozen=True)
class Columns:
    """Rows of one run of entries, from which each column is created on demand."""

    origin: Origin
    rows: Rows
    entries: Entries
    metadata: Metadata

    def topic(self) -> pa.Array:
        return self._same(self.origin.topic, pa.string())

    def partition(self) -> pa.Array:
        return self._same(self.origin.partition, pa.int32())

    def ledger(self) -> pa.Array:
        return self._same(self.origin.ledger_id, pa.int64())

    def undecoded(self) -> pa.Array:
        return pa.nulls(len(self.rows.entry), pa.string())

    def schema_version(self) -> pa.Array:
        spans = self.metadata.table.spans(SCHEMA_VERSION)
        versions = gather(self.entries.data, spans.start, spans.end, null=~spans.present)
        return versions.take(pa.array(self.rows.entry))

    def entry(self) -> pa.Array:
        return pa.array(self.entries.id[self.rows.entry])

    def batch_index(self) -> pa.Array:
        return pa.array(self.rows.batch_index.astype(np.int32))

    def message_index(self) -> pa.Array:
        return pa.array(self.entries.first_index[self.rows.entry] + self.rows.number)

    def key(self) -> pa.Array:
        rows = self.rows
        if not rows.key_given.any():
            return pa.nulls(len(rows.entry), pa.binary())
        keys = gather(rows.data, *rows.key, null=~rows.key_given)
        self._text(keys)
        if not rows.key_is_base64.any():
            return keys
        coded = zip(keys.to_pylist(), rows.key_is_base64.tolist(), strict=True)
        return pa.array(
            [plain.key_bytes(None if key is None else key.decode(), b64) for key, b64 in coded], pa.binary()
        )

    def value(self) -> pa.Array:
        null = self.rows.value_null
        return gather(self.rows.data, *self.rows.value, null=null if null.any() else None)

    def removes(self) -> pa.Array:
        start, end = self.rows.value
        return pa.array(self.rows.value_null | (start == end))

    def value_bytes(self) -> pa.Array:
        start, end = self.rows.value
        return pa.array((end - start).astype(np.int32), mask=self.rows.value_null)

    def properties(self) -> pa.Array:
        owner, start, end = self.rows.properties
        count = len(self.rows.entry)
        offsets = np.zeros(count + 1, np.int32)
        np.cumsum(np.bincount(owner, minlength=count), out=offsets[1:])
        pairs = read(self.rows.data, start, end, _KEY_VALUE)
        keys, values = pairs.spans(1), pairs.spans(2)
        if pairs.odd.any() or not (keys.present & values.present).all():
            raise self._all_odd()
        names = self._text(gather(self.rows.data, keys.start, keys.end))
        if len(owner) > 1 and (owner[1:] == owner[:-1]).any():
            self._refuse_duplicates(owner, names)
        texts = self._text(gather(self.rows.data, values.start, values.end))
        return pa.MapArray.from_arrays(pa.array(offsets), names, texts, type=schema.PROPERTIES)

    def publish_time(self) -> pa.Array:
        return _times(self.metadata.publish_time_ms[self.rows.entry], None)

    def event_time(self) -> pa.Array:
        times = self.rows.event_time_ms
        return _times(times, times == 0) if times.any() else pa.nulls(len(times), schema.TIME)

    def producer(self) -> pa.Array:
        spans = self.metadata.table.spans(PRODUCER)
        names = self._text(gather(self.entries.data, spans.start, spans.end))
        one_each = len(names) == len(self.rows.entry) and (self.rows.batch_index < 0).all()
        return names if one_each else names.take(pa.array(self.rows.entry))

    def sequence(self) -> pa.Array:
        return pa.array(self.rows.sequence)

    def _same(self, value: Any, kind: pa.DataType) -> pa.Array:
        return pa.repeat(pa.scalar(value, kind), len(self.rows.entry))

    def _text(self, array: pa.Array) -> pa.Array:
        """Cast bytes to text. Raise `Odd` if some are not UTF-8, so that the plain decoder finds the entry."""
        try:
            return array.cast(pa.string())
        except pa.ArrowInvalid:
            raise self._all_odd() from None

    def _refuse_duplicates(self, owner: Ints, names: pa.Array) -> None:
        """Raise `Odd` if a message repeats a property's name, because the plain decoder then uses the last value."""
        coded = names.dictionary_encode()
        pairs = owner * len(coded.dictionary) + coded.indices.to_numpy()
        if len(np.unique(pairs)) != len(pairs):
            raise self._all_odd()

    def _all_odd(self) -> Odd:
        return Odd(np.ones(len(self.entries.id), np.bool_))


def _times(times_ms: Ints, null: Flags | None) -> pa.Array:
    return pa.array(times_ms * 1000, mask=null).cast(schema.TIME)


COLUMNS: Final[dict[str, Callable[[Columns], pa.Array]]] = {
    name: getattr(Columns, name) for name in schema.FIELDS if name != schema.VALUE_ERROR
}
