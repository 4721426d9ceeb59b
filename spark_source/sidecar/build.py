"""Building of a sidecar from its segment's blocks.

The decoder of queries produces the rows, so that a sidecar has exactly the rows of a query. An undecodable entry
becomes a row without its content. So does a chunk, because only a reader of all chunks knows whether their message is
complete. Values are not copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quire.runtime.limits import OBJECT_PART_BYTES
from quire.spark_source import schema
from quire.spark_source.columns import Origin
from quire.spark_source.decode import Decoder
from quire.spark_source.positions import Window
from quire.spark_source.protobuf import Ints
from quire.spark_source.rows import entries_of
from quire.spark_source.sidecar.layout import (
    GROUP_BYTES,
    GROUP_ROWS,
    KEY_BYTES_MAX,
    SCHEMA,
    Identity,
    Summary,
    Writer,
)
from quire.wire.block import Buffer
from quire.wire.hashing import murmur3_32
from quire.wire.message import Undecodable

_DECODED: Final = (
    *(name for name in schema.COLUMNS if name != "value"),
    schema.VALUE_BYTES,
    schema.UNDECODED,
)
_BATCH_ROWS: Final = 8192


class _ChunksApart:
    """Handler that leaves chunks undecoded instead of joining them."""

    def rows(self, entry: memoryview, entry_id: int) -> NoReturn:
        """Raise `Undecodable`, so that the chunk becomes a row without its content."""
        raise Undecodable("it is a chunk of a larger message")


class Builder:
    """Converter of a segment's blocks, which are added in order, to the bytes of its sidecar."""

    def __init__(self, origin: Origin, end_entry: int, identity: Identity) -> None:
        self._origin = origin
        self._end_entry = end_entry
        self._decoder = Decoder(
            _DECODED,
            origin,
            Window(),
            batch_rows=min(_BATCH_ROWS, GROUP_ROWS),
            keep_raw=True,
            chunks=_ChunksApart(),
        )
        self._writer = Writer(identity)
        self._held: list[pa.RecordBatch] = []
        self._held_rows = 0
        self._held_bytes = 0
        self._group_entry = 0
        self._last_entry = -1
        self.rows = 0

    def add_blocks(self, blocks: Buffer) -> Iterator[bytes]:
        """Add whole, verified blocks, and yield the next bytes of the sidecar.

        Raises `LostEntries`, because a segment with lost entries has no sidecar.
        """
        entries = entries_of(blocks, self._origin.ledger_id)
        sizes, first = entries.end - entries.start, int(entries.id[0])
        for batch in self._decoder.decode(blocks):
            at = batch.column("entry").to_numpy()
            rows = _rows(batch, self._stored(at, sizes, first))
            yield from self._add_rows(rows, at)

    def finish(self) -> Iterator[bytes]:
        yield self._end_group(self._end_entry)
        yield self._writer.finish()

    def _stored(self, entry: Ints, sizes: Ints, first: int) -> Ints:
        """Return the column `stored_bytes`: the entry's size for its first row, 0 for its other rows."""
        before = np.concatenate(([self._last_entry], entry[:-1]))
        return np.where(entry != before, sizes[entry - first], 0)

    def _add_rows(self, rows: pa.RecordBatch, entry: Ints) -> Iterator[bytes]:
        """Hold rows until they fill a group, and yield the bytes of full groups. A group ends between two entries."""
        if self._held_rows >= GROUP_ROWS or self._held_bytes >= GROUP_BYTES:
            cut = int(np.searchsorted(entry, self._last_entry, side="right"))
            if cut < len(entry):
                self._hold(rows.slice(0, cut))
                yield self._end_group(int(entry[cut]))
                rows = rows.slice(cut)
        self._hold(rows)
        self._last_entry = int(entry[-1])

    def _hold(self, rows: pa.RecordBatch) -> None:
        self._held.append(rows)
        self._held_rows += rows.num_rows
        self._held_bytes += rows.nbytes

    def _end_group(self, end_entry: int) -> bytes:
        rows = pa.Table.from_batches(self._held, SCHEMA)
        content = self._writer.add_group(rows, _summary(rows, self._group_entry, end_entry))
        self.rows += rows.num_rows
        self._held, self._held_rows, self._held_bytes = [], 0, 0
        self._group_entry = end_entry
        return content


def build(builder: Builder, blocks: Iterator[Buffer], put: Callable[[Sequence[bytes]], None]) -> int:
    """Build a segment's sidecar: pass its bytes to `put`, in parts for an upload, and return its size in bytes."""
    held: list[bytes] = []
    size = total = 0

    def parts() -> Iterator[bytes]:
        for some in blocks:
            yield from builder.add_blocks(some)
        yield from builder.finish()

    for content in parts():
        held.append(content)
        size, total = size + len(content), total + len(content)
        if size >= OBJECT_PART_BYTES:
            put(held)
            held, size = [], 0
    put(held)
    return total


def _rows(batch: pa.RecordBatch, stored: Ints) -> pa.RecordBatch:
    """Convert the decoder's rows to rows of a sidecar. `stored` is the column `stored_bytes`."""
    key = batch.column("key")
    made = {
        "key": pc.binary_slice(key, 0, KEY_BYTES_MAX),
        "key_bytes": pc.binary_length(key),
        "key_hash": _hashes(key),
        "stored_bytes": pa.array(stored),
    }
    arrays = [(made[f.name] if f.name in made else batch.column(f.name)).cast(f.type) for f in SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _hashes(key: pa.Array) -> pa.Array:
    coded = key.dictionary_encode()
    hashes = [murmur3_32(one) for one in coded.dictionary.to_pylist()]
    return pa.array(hashes, pa.int32()).take(coded.indices)


def _summary(rows: pa.Table, first_entry: int, end_entry: int) -> Summary:
    times = [pc.min_max(rows[name].cast(pa.int64())).as_py() for name in ("publish_time", "event_time")]
    keys = pc.min_max(rows["key"]).as_py()
    return Summary(
        first_entry,
        end_entry,
        apart=rows.num_rows - rows[schema.UNDECODED].null_count,
        publish_ms=(times[0]["min"], times[0]["max"]),
        event_ms=(times[1]["min"], times[1]["max"]),
        keys=(keys["min"], keys["max"]),
        key_bytes_max=pc.max(rows["key_bytes"]).as_py() or 0,
    )
