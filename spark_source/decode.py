"""Blocks to Arrow: whole blocks of one segment in, record batches out, without a Python object per message.

The steps, each over all entries or rows of a chunk of blocks (a few MiB) at once:

1. the blocks' tables give each entry's place, id and message index (`entries_of`);
2. the entries' metadata is read by columns (`protobuf`), compressed payloads are inflated behind the others;
3. batches are split (`batches`), their messages' headers read by columns;
4. the bytes of a column are gathered by Arrow itself: an array whose offsets are (start, end, start, end ...)
   over the chunk has every value at an even place, and `take` of the even places copies just those.

An entry that step 2 or 3 calls odd is cut out and decoded by `plain`, which either makes its rows or names what is
wrong with it; the runs of entries between odd ones are decoded as above. So there is one truth, and the fast way
is taken only where it is provably the same.

Cost per 1 KiB row of unbatched and batched entries is measured by `bench/spark.py`; most of it is copying.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from quire.runtime.limits import BATCH_MESSAGES_MAX, MIB
from quire.spark_source import batches, plain, schema
from quire.spark_source.batches import Singles
from quire.spark_source.positions import Window
from quire.spark_source.protobuf import Bytes, Flags, Ints, Shape, Table, read
from quire.wire import block, compression
from quire.wire.block import Buffer
from quire.wire.message import MAGIC, Undecodable

INFLATED_BYTES_MAX: Final = 64 * MIB
"""Decompressed bytes that are held at once, beyond one entry's."""

BATCH_BYTES: Final = 2 * MIB
"""About what one record batch holds: Spark copies each twice, which is cheapest within a core's cache."""

_OPENING_BYTES: Final = 10

# MessageMetadata's fields, by their numbers in pulsar.proto.
_PRODUCER, _SEQUENCE_ID, _PUBLISH_TIME, _PROPERTIES, _KEY = 1, 2, 3, 4, 6
_COMPRESSION, _UNCOMPRESSED_SIZE, _BATCH_COUNT, _EVENT_TIME = 8, 9, 11, 12
_KEY_IS_BASE64, _NULL_VALUE = 17, 25
_CHUNK_NUMBERS: Final = (27, 28, 29)
_ODD_SPANS: Final = (5, 7, 13, 14, 26)
"""Replication, encryption, a chunk's uuid: an entry with one of these goes to the plain decoder."""

_METADATA: Final = Shape(
    numbers=frozenset(
        (
            *(_SEQUENCE_ID, _PUBLISH_TIME, _COMPRESSION, _UNCOMPRESSED_SIZE, _BATCH_COUNT, _EVENT_TIME),
            *(_KEY_IS_BASE64, _NULL_VALUE, *_CHUNK_NUMBERS),
        )
    ),
    spans=frozenset((_PRODUCER, _KEY, *_ODD_SPANS)),
    repeated=frozenset((_PROPERTIES,)),
)
_KEY_VALUE: Final = Shape(numbers=frozenset(), spans=frozenset((1, 2)))


class Odd(Exception):
    """Some entries need the plain decoder; `entries` has a flag for each entry of the run."""

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


class Rows(NamedTuple):
    """Messages, as places in a buffer; arrays of shape (m,) unless told otherwise, offsets in bytes."""

    data: Bytes
    entry: Ints
    """Which entry of the run."""
    number: Ints
    """Which message of its entry."""
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
    """Compacted away within its batch: no row."""


@dataclass(frozen=True)
class Origin:
    """What all rows of a segment have in common."""

    topic: str
    """Full name without `-partition-N`: the column's value."""
    partition: int
    ledger_id: int
    name: str
    """The name for errors."""


class Decoder:
    """Decodes blocks of one segment to record batches of `columns`, at most `batch_rows` rows and about
    `BATCH_BYTES` each.

    Rows outside `window` are left out. Raises `plain.UndecodableEntry` unless `keep_raw`.
    """

    def __init__(
        self, columns: Sequence[str], origin: Origin, window: Window, *, batch_rows: int, keep_raw: bool
    ) -> None:
        self._columns = tuple(columns)
        self._schema = schema.arrow(columns)
        self._origin = origin
        self._window = window
        self._batch_rows = batch_rows
        self._keep_raw = keep_raw

    def decode(self, blocks: Buffer) -> Iterator[pa.RecordBatch]:
        """Record batches of a run of whole blocks whose checksums are proven. Never an empty batch."""
        if not blocks:
            return
        entries = entries_of(blocks, self._origin.ledger_id)
        first, last = self._window.entries(entries.id)
        if first < last:
            yield from self._decode(entries.part(first, last))

    def _decode(self, entries: Entries) -> Iterator[pa.RecordBatch]:
        try:
            metadata = _read_metadata(entries)
            if len(entries.id) > 1 and metadata.inflated_bytes > INFLATED_BYTES_MAX:
                half = len(entries.id) // 2
                yield from self._decode(entries.part(0, half))
                yield from self._decode(entries.part(half, len(entries.id)))
                return
            batch = self._build(_rows(entries, metadata), entries, metadata)
        except Odd as odd:
            yield from self._decode_around(entries, odd.entries)
            return
        yield from self._slices(batch)

    def _slices(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        fitting = BATCH_BYTES * batch.num_rows // max(batch.nbytes, 1)
        rows = max(1, min(self._batch_rows, fitting))
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)

    # -- the odd ones ----------------------------------------------------------------------------------

    def _decode_around(self, entries: Entries, odd: Flags) -> Iterator[pa.RecordBatch]:
        """Runs of odd entries by the plain decoder, the runs between them by columns."""
        edges = np.flatnonzero(np.diff(odd)) + 1
        for first, last in zip([0, *edges.tolist()], [*edges.tolist(), len(odd)], strict=True):
            run = entries.part(first, last)
            if not odd[first]:
                yield from self._decode(run)
                continue
            yield from self._decode_plain(run)

    def _decode_plain(self, run: Entries) -> Iterator[pa.RecordBatch]:
        kept: list[plain.Row] = []
        for i in range(len(run.id)):
            entry = memoryview(run.data.data)[int(run.start[i]) : int(run.end[i])]
            kept += self._plain_rows(entry, int(run.id[i]), int(run.first_index[i]))
        if kept:
            yield from self._slices(pa.RecordBatch.from_pylist(kept, schema=self._schema))

    def _plain_rows(self, entry: memoryview, entry_id: int, index: int) -> Iterator[plain.Row]:
        place = {
            "topic": self._origin.topic,
            "partition": self._origin.partition,
            "ledger": self._origin.ledger_id,
            "entry": entry_id,
        }
        try:
            rows = list(plain.rows(entry))
        except Undecodable as error:
            if not self._keep_raw:
                raise plain.UndecodableEntry(
                    self._origin.name, self._origin.ledger_id, entry_id, str(error)
                ) from None
            rows = [plain.raw(entry, str(error))]
        for i, row in enumerate(rows):
            inside = self._window.has(entry_id, row["batch_index"], row.get("publish_time"))
            if inside and not row.get("compacted_out"):
                yield row | place | {"message_index": index + i}

    # -- columns ---------------------------------------------------------------------------------------

    def _build(self, rows: Rows, entries: Entries, metadata: _Metadata) -> pa.RecordBatch:
        whole = _Columns(self._origin, rows, entries, metadata)
        arrays = [_COLUMNS[name](whole) for name in self._columns]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        keep = self._window.rows(entries.id, rows.entry, rows.batch_index, metadata.publish_time_ms)
        if rows.hidden.any():
            keep = ~rows.hidden if keep is None else keep & ~rows.hidden
        return batch if keep is None else batch.filter(pa.array(keep))


# -- step 1: entries -------------------------------------------------------------------------------------


def entries_of(blocks: Buffer, ledger_id: int) -> Entries:
    """All entries of a run of at least one whole block of `ledger_id`. Raises `BlockError` for anything else."""
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
    row = (offset + block.HEADER_BYTES)[of] + 4 * number
    end = data.be32[row] + body[of]
    start = np.empty_like(end)
    start[1:] = end[:-1]
    start[begin] = body
    messages = data.be32[row + 4 * count[of]].astype(np.int64)
    before = np.cumsum(messages) - messages
    index = before + (first_index - before[begin])[of]
    return Entries(data, first_entry[of] + number, start, end, index)


def _stray(found: int, wanted: int) -> bool:
    raise block.BlockError(f"a block of ledger {found} lies among those of {wanted}")


# -- step 2: metadata ------------------------------------------------------------------------------------


class _Metadata(NamedTuple):
    table: Table
    payload: Ints
    """Where each entry's payload begins; it goes to the entry's end."""
    publish_time_ms: Ints
    inflated_bytes: int


def _read_metadata(entries: Entries) -> _Metadata:
    """The entries' metadata by columns. Raises `Odd`."""
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
    odd |= ~(table.spans(_PRODUCER).present & table.given(_SEQUENCE_ID) & table.given(_PUBLISH_TIME))
    odd |= table.number(_PUBLISH_TIME) > plain.TIME_MS_MAX
    odd |= table.number(_EVENT_TIME) > plain.TIME_MS_MAX
    odd |= table.number(_COMPRESSION) > max(compression.NAMES.values())
    odd |= table.number(_UNCOMPRESSED_SIZE) >= 1 << 31
    odd |= table.number(_BATCH_COUNT) > BATCH_MESSAGES_MAX
    if odd.any():
        raise Odd(odd)
    inflated = table.number(_UNCOMPRESSED_SIZE)[table.number(_COMPRESSION) != 0]
    times = table.number(_PUBLISH_TIME).astype(np.int64)
    return _Metadata(table, payload, times, int(inflated.sum()))


def _inflate(entries: Entries, metadata: _Metadata) -> tuple[Bytes, Ints, Ints]:
    """(data, start, end) of the payloads, compressed ones inflated behind the rest of the data. Raises `Odd`."""
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


def _rows(entries: Entries, metadata: _Metadata) -> Rows:
    """The messages of all entries. Raises `Odd`."""
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
    """The rows of the unbatched entries `entry`."""
    key = table.spans(_KEY)
    nothing = np.zeros(len(entry), np.int64)
    owner, begin, behind = table.repeated(_PROPERTIES).sorted()
    if len(entry) != len(start):
        row_of = np.full(len(start), -1)
        row_of[entry] = np.arange(len(entry))
        ours = row_of[owner] >= 0
        owner, begin, behind = row_of[owner[ours]], begin[ours], behind[ours]
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
        properties=(owner, begin, behind),
        event_time_ms=table.number(_EVENT_TIME)[entry].astype(np.int64),
        sequence=table.number(_SEQUENCE_ID)[entry].view(np.int64),
        hidden=np.zeros(len(entry), np.bool_),
    )


def _batch_rows(data: Bytes, singles: Singles, batch: Ints, counts: Ints, table: Table) -> Rows:
    """The rows of the entries `batch`."""
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
    """The rows of both, in the order of entries."""
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
    begin, behind = (np.concatenate((a.properties[i], b.properties[i]))[by_row] for i in (1, 2))
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
        properties=(owner[by_row], begin, behind),
        event_time_ms=both(a.event_time_ms, b.event_time_ms),
        sequence=both(a.sequence, b.sequence),
        hidden=both(a.hidden, b.hidden),
    )


# -- step 4: columns -------------------------------------------------------------------------------------


def gather(data: Bytes, start: Ints, end: Ints, null: Flags | None = None) -> pa.Array:
    """The bytes `[start, end)` of each row as one binary array, copied by Arrow."""
    count = len(start)
    offsets = np.empty(2 * count + 1, np.int32)
    offsets[0 : 2 * count : 2] = start
    offsets[1 : 2 * count : 2] = end
    offsets[2 * count] = len(data)
    every = pa.Array.from_buffers(
        pa.binary(), 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(data.data)]
    )
    return every.take(pa.array(np.arange(0, 2 * count, 2), mask=null))


@dataclass(frozen=True)
class _Columns:
    """One run's rows, from which each column is made on demand."""

    origin: Origin
    rows: Rows
    entries: Entries
    metadata: _Metadata

    def topic(self) -> pa.Array:
        return self._same(self.origin.topic, pa.string())

    def partition(self) -> pa.Array:
        return self._same(self.origin.partition, pa.int32())

    def ledger(self) -> pa.Array:
        return self._same(self.origin.ledger_id, pa.int64())

    def undecoded(self) -> pa.Array:
        return pa.nulls(len(self.rows.entry), pa.string())

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
        spans = self.metadata.table.spans(_PRODUCER)
        names = self._text(gather(self.entries.data, spans.start, spans.end))
        one_each = len(names) == len(self.rows.entry) and (self.rows.batch_index < 0).all()
        return names if one_each else names.take(pa.array(self.rows.entry))

    def sequence(self) -> pa.Array:
        return pa.array(self.rows.sequence)

    def _same(self, value: Any, kind: pa.DataType) -> pa.Array:
        return pa.repeat(pa.scalar(value, kind), len(self.rows.entry))

    def _text(self, array: pa.Array) -> pa.Array:
        """Bytes as text; the plain decoder finds the entry with bytes that are none."""
        try:
            return array.cast(pa.string())
        except pa.ArrowInvalid:
            raise self._all_odd() from None

    def _refuse_duplicates(self, owner: Ints, names: pa.Array) -> None:
        """A name twice in one message: the last counts, which the plain decoder knows."""
        coded = names.dictionary_encode()
        pairs = owner * len(coded.dictionary) + coded.indices.to_numpy()
        if len(np.unique(pairs)) != len(pairs):
            raise self._all_odd()

    def _all_odd(self) -> Odd:
        return Odd(np.ones(len(self.entries.id), np.bool_))


def _times(times_ms: Ints, null: Flags | None) -> pa.Array:
    return pa.array(times_ms * 1000, mask=null).cast(schema.TIME)


_COLUMNS: Final[dict[str, Callable[[_Columns], pa.Array]]] = {
    name: getattr(_Columns, name) for name in schema.FIELDS
}
