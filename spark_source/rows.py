"""Blocks to rows: the offsets and the metadata of each message in a run of blocks, as arrays.

1. the blocks' tables give each entry's offset, id and message index (`entries_of`);
2. the entries' metadata is read by columns (`read_metadata`);
3. compressed payloads are decompressed, batches are split, and their messages' headers are read by columns (`rows_of`).

If there are unexpected entries, these steps raise `Odd`, which flags them; the plain decoder decodes them.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from quire.runtime.limits import BATCH_MESSAGES_MAX
from quire.spark_source import batches, plain
from quire.spark_source.batches import Singles
from quire.spark_source.protobuf import Bytes, Flags, Ints, Shape, Table, read
from quire.wire import block, compression
from quire.wire.block import Buffer
from quire.wire.message import MAGIC

_OPENING_BYTES: Final = 10

# MessageMetadata's fields, by their numbers in pulsar.proto.
PRODUCER, _SEQUENCE_ID, _PUBLISH_TIME, _PROPERTIES, _KEY = 1, 2, 3, 4, 6
_COMPRESSION, _UNCOMPRESSED_SIZE, _BATCH_COUNT, _EVENT_TIME = 8, 9, 11, 12
SCHEMA_VERSION, _KEY_IS_BASE64, _NULL_VALUE = 16, 17, 25
_CHUNK_NUMBERS: Final = (27, 28, 29)
_ODD_SPANS: Final = (5, 7, 13, 14, 26)
"""Fields of replication, encryption and chunks: the plain decoder decodes an entry with one of these."""

_METADATA: Final = Shape(
    numbers=frozenset(
        (
            *(_SEQUENCE_ID, _PUBLISH_TIME, _COMPRESSION, _UNCOMPRESSED_SIZE, _BATCH_COUNT, _EVENT_TIME),
            *(_KEY_IS_BASE64, _NULL_VALUE, *_CHUNK_NUMBERS),
        )
    ),
    spans=frozenset((PRODUCER, _KEY, SCHEMA_VERSION, *_ODD_SPANS)),
    repeated=frozenset((_PROPERTIES,)),
)


class Odd(Exception):
    """Signal that entries need the plain decoder; `entries` has a flag for each entry of the run."""

    def __init__(self, entries: Flags) -> None:
        super().__init__()
        self.entries = entries


class Entries(NamedTuple):
    """Entries of one segment in a buffer; arrays of shape (n,), offsets in bytes."""

    data: Bytes
    id: Ints
    start: Ints
    end: Ints
    first_index: Ints
    """Topic-wide index of each entry's first message."""

    def part(self, first: int, last: int) -> Entries:
        return Entries(self.data, *(column[first:last] for column in self[1:]))

    def alone(self) -> Entries:
        """Return the entries in a buffer without the bytes before and after them; nothing is copied."""
        begin, end = int(self.start[0]), int(self.end[-1])
        data = Bytes(memoryview(self.data.data)[begin:end])
        return self._replace(data=data, start=self.start - begin, end=self.end - begin)


class Rows(NamedTuple):
    """Messages as offsets in a buffer, in bytes. Arrays have shape (m,) unless stated otherwise."""

    data: Bytes
    entry: Ints
    """Number of each message's entry in the run of entries."""
    number: Ints
    """Number of each message in its entry."""
    batch_index: Ints
    value: tuple[Ints, Ints]
    value_null: Flags
    key: tuple[Ints, Ints]
    key_given: Flags
    key_is_base64: Flags
    properties: tuple[Ints, Ints, Ints]
    """(row, start, end) of each property, of shape (p,), by row."""
    event_time_ms: Ints
    sequence: Ints
    hidden: Flags
    """True for messages that a producer or the broker marked as compacted out within their batch; they are not rows."""

    def where(self, keep: Flags) -> Rows:
        """Return the rows whose flag in `keep` is true."""
        owner, start, end = self.properties
        of_kept = keep[owner]
        return Rows(
            data=self.data,
            entry=self.entry[keep],
            number=self.number[keep],
            batch_index=self.batch_index[keep],
            value=(self.value[0][keep], self.value[1][keep]),
            value_null=self.value_null[keep],
            key=(self.key[0][keep], self.key[1][keep]),
            key_given=self.key_given[keep],
            key_is_base64=self.key_is_base64[keep],
            properties=((np.cumsum(keep) - 1)[owner[of_kept]], start[of_kept], end[of_kept]),
            event_time_ms=self.event_time_ms[keep],
            sequence=self.sequence[keep],
            hidden=self.hidden[keep],
        )


# -- step 1: entries -------------------------------------------------------------------------------------


def entries_of(blocks: Buffer, ledger_id: int) -> Entries:
    """Return all entries of one or more whole blocks of `ledger_id`. Raises `BlockError` for other bytes."""
    found = [
        (offset, offset + header.entries_offset, header.entry_count, header.first_entry, header.first_index)
        for offset, header in block.scan(blocks)
        if header.ledger_id == ledger_id or _stray(header.ledger_id, ledger_id)
    ]
    offset, body, count, first_entry, first_index = np.array(found, np.int64).T
    data = Bytes(blocks)
    of = np.repeat(np.arange(len(found)), count)
    begin = np.cumsum(count) - count
    number = np.arange(len(of)) - begin[of]
    end_at, messages_at = block.table_places(offset[of], count[of], number)
    end = data.be32[end_at] + body[of]
    start = np.empty_like(end)
    start[1:] = end[:-1]
    start[begin] = body
    messages = data.be32[messages_at].astype(np.int64)
    before = np.cumsum(messages) - messages
    index = before + (first_index - before[begin])[of]
    return Entries(data, first_entry[of] + number, start, end, index)


def _stray(found: int, wanted: int) -> bool:
    raise block.BlockError(f"found a block of ledger {found} among the blocks of ledger {wanted}")


# -- step 2: metadata ------------------------------------------------------------------------------------


class Metadata(NamedTuple):
    table: Table
    payload: Ints
    """Offset of each entry's payload, which ends with the entry."""
    publish_time_ms: Ints
    inflated_bytes: int
    messages: int
    """Number of messages according to the entries' metadata."""


def read_metadata(entries: Entries) -> Metadata:
    """Read the entries' metadata by columns. Raises `Odd`."""
    data = entries.data
    begin = entries.start + _OPENING_BYTES
    odd = begin > entries.end
    last = len(data.be32) - 1  # entries too short to hold a size may end there
    odd |= data.be32[np.minimum(entries.start, last)] >> 16 != MAGIC
    payload = begin + data.be32[np.minimum(entries.start + 6, last)].astype(np.int64)
    odd |= payload > entries.end
    if odd.any():
        raise Odd(odd)
    table = read(data, begin, payload, _METADATA)
    odd |= table.odd
    for number in _ODD_SPANS:
        odd |= table.spans(number).present if table.has(number) else False
    for number in _CHUNK_NUMBERS:
        odd |= table.given(number) if table.has(number) else False
    odd |= ~(table.spans(PRODUCER).present & table.given(_SEQUENCE_ID) & table.given(_PUBLISH_TIME))
    odd |= table.number(_PUBLISH_TIME) > plain.TIME_MS_MAX
    odd |= table.number(_EVENT_TIME) > plain.TIME_MS_MAX
    odd |= table.number(_COMPRESSION) > max(compression.NAMES.values())
    odd |= table.number(_UNCOMPRESSED_SIZE) >= 1 << 31
    odd |= table.number(_BATCH_COUNT) > BATCH_MESSAGES_MAX
    if odd.any():
        raise Odd(odd)
    inflated = table.number(_UNCOMPRESSED_SIZE)[table.number(_COMPRESSION) != 0]
    times = table.number(_PUBLISH_TIME).astype(np.int64)
    messages = int(np.maximum(table.number(_BATCH_COUNT), 1).sum())
    return Metadata(table, payload, times, int(inflated.sum()), messages)


def _inflate(entries: Entries, metadata: Metadata) -> tuple[Bytes, Ints, Ints]:
    """Return (data, start, end) of the payloads. Decompressed payloads are appended to `data`. Raises `Odd`."""
    compressed = np.flatnonzero(metadata.table.number(_COMPRESSION))
    start, end = metadata.payload, entries.end
    if not len(compressed):
        return entries.data, start, end
    source = memoryview(entries.data.data)
    parts: list[Any] = [source]
    codecs = metadata.table.number(_COMPRESSION)[compressed].tolist()
    sizes = metadata.table.number(_UNCOMPRESSED_SIZE)[compressed].tolist()
    failed = np.zeros(len(start), np.bool_)
    for i, codec, size in zip(compressed.tolist(), codecs, sizes, strict=True):
        try:
            parts.append(compression.decompress(codec, source[start[i] : end[i]], size))
        except compression.CompressionError:
            failed[i] = True
            parts.append(b"")
    if failed.any():
        raise Odd(failed)
    begins = np.cumsum([len(part) for part in parts])
    start, end = start.copy(), end.copy()
    start[compressed], end[compressed] = begins[:-1], begins[1:]
    return Bytes(b"".join(parts)), start, end


# -- step 3: rows ----------------------------------------------------------------------------------------


def rows_of(entries: Entries, metadata: Metadata) -> Rows:
    """Return the messages of all entries. Raises `Odd`."""
    data, start, end = _inflate(entries, metadata)
    is_batch = metadata.table.given(_BATCH_COUNT) if metadata.table.has(_BATCH_COUNT) else None
    if is_batch is None or not is_batch.any():
        return _single_rows(data, start, end, metadata.table, np.arange(len(start)))
    batch = np.flatnonzero(is_batch)
    counts = metadata.table.number(_BATCH_COUNT)[batch].astype(np.int64)
    singles = batches.split(data, start[batch], end[batch], counts)
    headers = singles.table
    late = headers.number(batches.EVENT_TIME) > plain.TIME_MS_MAX
    singles.odd[singles.batch[late]] = True
    if singles.odd.any():
        odd = np.zeros(len(start), np.bool_)
        odd[batch[singles.odd]] = True
        raise Odd(odd)
    rows = _batch_rows(data, singles, batch, counts, metadata.table)
    alone = np.flatnonzero(~is_batch)
    return _merge(rows, _single_rows(data, start, end, metadata.table, alone)) if len(alone) else rows


def _single_rows(data: Bytes, start: Ints, end: Ints, table: Table, entry: Ints) -> Rows:
    """Return the rows of the unbatched entries `entry`."""
    key = table.spans(_KEY)
    nothing = np.zeros(len(entry), np.int64)
    owner, begin, stop = table.repeated(_PROPERTIES).sorted()
    if len(entry) != len(start):
        row_of = np.full(len(start), -1)
        row_of[entry] = np.arange(len(entry))
        is_single = row_of[owner] >= 0
        owner, begin, stop = row_of[owner[is_single]], begin[is_single], stop[is_single]
    return Rows(
        data=data,
        entry=entry,
        number=nothing,
        batch_index=nothing - 1,
        value=(start[entry], end[entry]),
        value_null=table.flag(_NULL_VALUE)[entry],
        key=(key.start[entry], key.end[entry]),
        key_given=key.present[entry],
        key_is_base64=table.flag(_KEY_IS_BASE64)[entry],
        properties=(owner, begin, stop),
        event_time_ms=table.number(_EVENT_TIME)[entry].astype(np.int64),
        sequence=table.number(_SEQUENCE_ID)[entry].view(np.int64),
        hidden=np.zeros(len(entry), np.bool_),
    )


def _batch_rows(data: Bytes, singles: Singles, batch: Ints, counts: Ints, table: Table) -> Rows:
    """Return the rows of the batched entries `batch`."""
    headers = singles.table
    key = headers.spans(batches.KEY)
    number = np.arange(len(singles.batch)) - (np.cumsum(counts) - counts)[singles.batch]
    entry = batch[singles.batch]
    first = table.number(_SEQUENCE_ID)[entry] + number.astype(np.uint64)
    sequence = np.where(headers.given(batches.SEQUENCE_ID), headers.number(batches.SEQUENCE_ID), first)
    return Rows(
        data=data,
        entry=entry,
        number=number,
        batch_index=number,
        value=(singles.start, singles.end),
        value_null=headers.flag(batches.NULL_VALUE),
        key=(key.start, key.end),
        key_given=key.present,
        key_is_base64=headers.flag(batches.KEY_IS_BASE64),
        properties=headers.repeated(batches.PROPERTIES).sorted(),
        event_time_ms=headers.number(batches.EVENT_TIME).astype(np.int64),
        sequence=sequence.view(np.int64),
        hidden=headers.flag(batches.COMPACTED_OUT),
    )


def _merge(a: Rows, b: Rows) -> Rows:
    """Merge the rows of `a` and `b`, in the order of entries."""
    count = len(a.entry)
    order = np.lexsort((np.concatenate((a.number, b.number)), np.concatenate((a.entry, b.entry))))
    place = np.empty_like(order)
    place[order] = np.arange(len(order))

    def both(x: Any, y: Any) -> Any:
        return np.concatenate((x, y))[order]

    def spans(x: tuple[Ints, Ints], y: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
        return both(x[0], y[0]), both(x[1], y[1])

    owner = place[np.concatenate((a.properties[0], b.properties[0] + count))]
    by_row = np.argsort(owner, kind="stable")
    begin, stop = (np.concatenate((a.properties[i], b.properties[i]))[by_row] for i in (1, 2))
    return Rows(
        data=a.data,
        entry=both(a.entry, b.entry),
        number=both(a.number, b.number),
        batch_index=both(a.batch_index, b.batch_index),
        value=spans(a.value, b.value),
        value_null=both(a.value_null, b.value_null),
        key=spans(a.key, b.key),
        key_given=both(a.key_given, b.key_given),
        key_is_base64=both(a.key_is_base64, b.key_is_base64),
        properties=(owner[by_row], begin, stop),
        event_time_ms=both(a.event_time_ms, b.event_time_ms),
        sequence=both(a.sequence, b.sequence),
        hidden=both(a.hidden, b.hidden),
    )
