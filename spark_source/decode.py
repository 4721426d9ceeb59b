"""Blocks to Arrow: whole blocks of one segment in, record batches out, without a Python object per message.

The steps, each over all entries or rows of a chunk of blocks (a few MiB) at once:

1. `rows.entries_of`: the blocks' tables contain each entry's offset, id and message index;
2. `rows.read_metadata`: the entries' metadata is read by columns (`protobuf`);
3. `rows.rows_of`: payloads are inflated, batches split (`batches`), their messages' headers read by columns;
4. `columns`: Arrow gathers the bytes of each requested column.

Rows outside the range or the filter are dropped between steps 3 and 4, so their bytes are not copied.

`plain` decodes each entry that step 2 or 3 marks as odd: it returns the rows, or an error with the reason. An encrypted
entry that one of the user's keys decrypts is decoded again as plain text (`decrypting`). The runs of entries between
odd ones are decoded as above. So `plain` defines the result, and the columnar decoder is used only where its result is
the same.

Memory is bounded for any chunk of blocks. A chunk that inflates to many bytes, or has many messages, is decoded in
parts. The smallest part is one entry, which `UNCOMPRESSED_BYTES_MAX` and `BATCH_MESSAGES_MAX` limit. Record batches are
cut by bytes.

`bench/spark.py` measures the cost per 1 KiB row of unbatched and batched entries; most of it is copying.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import pyarrow as pa

from quire.runtime.limits import MIB
from quire.spark_source import plain, schema
from quire.spark_source.columns import COLUMNS, Columns, Origin
from quire.spark_source.decrypting import opened, why_closed
from quire.spark_source.filters import EVERYTHING, Filter
from quire.spark_source.positions import Window
from quire.spark_source.protobuf import Flags
from quire.spark_source.rows import Entries, Metadata, Odd, Rows, entries_of, read_metadata, rows_of
from quire.wire.block import Buffer
from quire.wire.message import Encrypted, Undecodable
from quire.wire.publish_time import ANY_TIME_MS, publish_time

if TYPE_CHECKING:
    from quire.client.crypto import Decryptor

INFLATED_BYTES_MAX: Final = 16 * MIB
"""Maximum number of decompressed bytes in memory, unless one entry has more.

The allocator would return a larger buffer to the operating system after each use. The page faults of the next use cost
more than decompression.
"""

MESSAGES_MAX: Final = 250_000
"""Maximum number of messages that are decoded at once, unless one entry has more: each takes some 200 bytes of memory.
"""

_log = logging.getLogger(__name__)

BATCH_BYTES: Final = 2 * MIB
"""Approximate size of a record batch in bytes. Spark copies each twice, which is cheapest within a core's cache."""


class ChunkRows(Protocol):
    """Handler of chunked messages: `chunks.Chunks` joins the chunks, the builder of sidecars leaves them undecoded."""

    def rows(self, entry: memoryview, entry_id: int) -> Iterator[plain.Row]:
        """Yield the rows of the message that the chunk `entry` completes, if any. Raises `Undecodable`."""
        ...


class Decoder:
    """Decoder of one segment's blocks into record batches of `columns`.

    A batch has at most `batch_rows` rows and about `BATCH_BYTES`. Rows outside `window` and `filter_` are dropped;
    `columns` must include the columns that the filter tests. Raises `plain.UndecodableEntry` unless `keep_raw`, and
    `plain.LostEntries` unless `skip_lost`. `chunks` joins chunked messages; if it is None, each chunk is a row.
    `decryptor` decrypts encrypted entries.
    """

    def __init__(
        self,
        columns: Sequence[str],
        origin: Origin,
        window: Window,
        *,
        batch_rows: int,
        keep_raw: bool,
        skip_lost: bool = False,
        chunks: ChunkRows | None = None,
        decryptor: Decryptor | None = None,
        filter_: Filter = EVERYTHING,
    ) -> None:
        self._filter = filter_
        self._columns = tuple(columns)
        self._schema = schema.arrow(columns)
        self._origin = origin
        self._window = window
        self._batch_rows = batch_rows
        self._keep_raw = keep_raw
        self._skip_lost = skip_lost
        self._chunks = chunks
        self._decryptor = decryptor

    def decode(self, blocks: Buffer) -> Iterator[pa.RecordBatch]:
        """Yield the non-empty record batches of contiguous blocks, whose checksums the caller has verified."""
        if not blocks:
            return
        entries = entries_of(blocks, self._origin.ledger_id)
        first, last = self._window.entries(entries.id)
        if first < last:
            for part in self._without_lost(entries.part(first, last)):
                yield from self._decode(part)

    def _without_lost(self, entries: Entries) -> Iterator[Entries]:
        """Yield the runs of entries between lost entries. Raises `LostEntries` unless `skip_lost`.

        A lost entry has a length of zero bytes.
        """
        is_lost = entries.start == entries.end
        if not is_lost.any():
            yield entries
            return
        for first, last, lost in runs_of(is_lost):
            part = entries.part(first, last)
            if not lost:
                yield part
                continue
            error = plain.LostEntries(
                self._origin.name, self._origin.ledger_id, int(part.id[0]), int(part.id[-1])
            )
            if not self._skip_lost:
                raise error
            _log.warning("%s", error)

    def _decode(self, entries: Entries) -> Iterator[pa.RecordBatch]:
        try:
            metadata = read_metadata(entries)
            is_much = metadata.inflated_bytes > INFLATED_BYTES_MAX or metadata.messages > MESSAGES_MAX
            if len(entries.id) > 1 and is_much:
                half = len(entries.id) // 2
                yield from self._decode(entries.part(0, half).alone())
                yield from self._decode(entries.part(half, len(entries.id)).alone())
                return
            batch = self._build(rows_of(entries, metadata), entries, metadata)
        except Odd as odd:
            yield from self._decode_around(entries, odd.entries)
            return
        yield from self._slices(batch)

    def _slices(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        fitting = BATCH_BYTES * batch.num_rows // max(batch.nbytes, 1)
        rows = max(1, min(self._batch_rows, fitting))
        for start in range(0, batch.num_rows, rows):
            yield from _halved(batch.slice(start, rows))

    # -- odd entries -----------------------------------------------------------------------------------

    def _decode_around(self, entries: Entries, odd: Flags) -> Iterator[pa.RecordBatch]:
        """Decode runs of odd entries with the plain decoder, and the runs between them by columns."""
        for first, last, is_odd in runs_of(odd):
            run = entries.part(first, last)
            plain_run = opened(run, self._decryptor) if is_odd and self._decryptor is not None else None
            if plain_run is not None:
                yield from self._decode(plain_run)
            else:
                yield from self._decode_plain(run) if is_odd else self._decode(run)

    def _decode_plain(self, run: Entries) -> Iterator[pa.RecordBatch]:
        kept: list[plain.Row] = []
        size = 0
        for i in range(len(run.id)):
            entry = memoryview(run.data.data)[int(run.start[i]) : int(run.end[i])]
            for row in self._plain_rows(entry, int(run.id[i]), int(run.first_index[i])):
                kept.append(row)
                size += len(row["value"] or b"")
                if len(kept) >= self._batch_rows or size > BATCH_BYTES:
                    yield from self._slices(self._filtered(kept))
                    kept, size = [], 0
        if kept:
            yield from self._slices(self._filtered(kept))

    def _filtered(self, rows: Sequence[plain.Row]) -> pa.RecordBatch:
        return self._filter.wanted(pa.RecordBatch.from_pylist(rows, schema=self._schema))

    def _plain_rows(self, entry: memoryview, entry_id: int, index: int) -> Iterator[plain.Row]:
        place: plain.Row = {
            "topic": self._origin.topic,
            "partition": self._origin.partition,
            "ledger": self._origin.ledger_id,
            "entry": entry_id,
        }
        rows = plain.rows(entry, self._of_chunk(entry_id))
        try:
            first = [row for row in (next(rows, None),) if row is not None]
        except Undecodable as error:
            if not self._window.has(entry_id, 0, _publish_time_us(entry)):
                return
            reason = self._reason(error, entry)
            if not self._keep_raw:
                raise plain.UndecodableEntry(
                    self._origin.name, self._origin.ledger_id, entry_id, reason
                ) from None
            first = [plain.raw(entry, reason)]
        if schema.SCHEMA_VERSION in self._columns:
            place[schema.SCHEMA_VERSION] = plain.schema_version(entry)
        for i, row in enumerate(chain(first, rows)):
            inside = "undecoded" in row or self._window.has(entry_id, row["batch_index"], row["publish_time"])
            if schema.VALUE_BYTES in self._columns and "undecoded" not in row and row["value"] is not None:
                row[schema.VALUE_BYTES] = len(row["value"])
            if inside and not row.get("compacted_out"):
                yield row | place | {"message_index": index + i}

    def _reason(self, error: Undecodable, entry: memoryview) -> str:
        if not isinstance(error, Encrypted):
            return str(error)
        if self._decryptor is None:
            return f"{error}; set option crypto_key_dir to the directory of private keys"
        return why_closed(entry, self._decryptor)

    def _of_chunk(self, entry_id: int) -> Callable[[memoryview], Iterator[plain.Row]] | None:
        chunks = self._chunks
        return None if chunks is None else lambda entry: chunks.rows(entry, entry_id)

    # -- columns ---------------------------------------------------------------------------------------

    def _build(self, rows: Rows, entries: Entries, metadata: Metadata) -> pa.RecordBatch:
        keep = self._window.rows(entries.id, rows.entry, rows.batch_index, metadata.publish_time_ms)
        if rows.hidden.any():
            keep = ~rows.hidden if keep is None else keep & ~rows.hidden
        if keep is not None:
            rows = rows.where(keep)
        if self._filter.columns and len(rows.entry):
            tested = self._gathered(self._filter.columns, rows, entries, metadata)
            rows = rows.where(np.asarray(self._filter.mask(tested)))
        if not len(rows.entry):
            return pa.RecordBatch.from_pylist([], schema=self._schema)
        return self._gathered(self._columns, rows, entries, metadata)

    def _gathered(
        self, columns: Sequence[str], rows: Rows, entries: Entries, metadata: Metadata
    ) -> pa.RecordBatch:
        """Return the given columns of the rows."""
        places = Columns(self._origin, rows, entries, metadata)
        arrays = [COLUMNS[name](places) for name in columns]
        return pa.RecordBatch.from_arrays(arrays, schema=schema.arrow(columns))


def _publish_time_us(entry: memoryview) -> int | None:
    """Return an undecodable entry's publish time (µs), as it counts for its segment's range; None means any time."""
    time_ms = publish_time(entry, 0, len(entry))
    return None if time_ms == ANY_TIME_MS else time_ms * 1000


def _halved(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split a record batch with rows of different sizes into parts of at most about twice `BATCH_BYTES`."""
    if batch.num_rows == 1 or batch.nbytes <= 2 * BATCH_BYTES:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _halved(batch.slice(0, half))
    yield from _halved(batch.slice(half))


def runs_of(flags: Flags) -> Iterator[tuple[int, int, bool]]:
    """Yield (first, one after the last, flag) of each run of equal flags."""
    edges = np.flatnonzero(np.diff(flags)) + 1
    for first, last in zip([0, *edges.tolist()], [*edges.tolist(), len(flags)], strict=True):
        yield first, last, bool(flags[first])
