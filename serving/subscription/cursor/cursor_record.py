"""Byte format of a cursor: its records in a bundle's state log.

    offset size  field
         0    1  tag        0x43 ("C"): a cursor's record, among others in the log
         1    1  version    2
         2    1  kind       1 begin, 2 delta, 3 delete, 4 a segment of a delayed snapshot
         3    8  cursor id  unique within the bundle, never reused
        11       body

    begin (replaces all former state of the cursor)         delta
         8  generation of the topic                              8  mark-delete ledger, signed
         8  mark-delete ledger, signed                           8  mark-delete entry, signed
         8  mark-delete entry, signed                            4  a, number of bitmaps of acknowledged entries
         T  topic                                                4  p, number of chunks of partly acknowledged entries
         T  subscription                                         4  r, number of bitmaps of redelivered entries
         4  number of properties, each T key, T value            a  times: 8 ledger, 4 length, roaring bitmap
    T is a text: 2 length, UTF-8.                                p  times: 8 ledger, 4 width, 4 length, bitmap, and
    delete has no body.                                             `width` bytes of bits for each entry
                                                                 r  times: 8 ledger, 1 bit, 4 length, bitmap

All integers are big-endian; the bits of an entry are little-endian. A roaring bitmap is in its
[portable format](https://github.com/RoaringBitmap/RoaringFormatSpec). Checksums are in the state log; a record with
missing or extra bytes is damaged (`CorruptionError`). Version 1, which is still read, stored each partly acknowledged
entry separately: 8 ledger, 8 entry, 2 number of words, 8 each word.

A delta is applied in this order: add 2^bit to the counts of redelivered entries; keep only the given messages (set
bits) of partly acknowledged entries; acknowledge the acknowledged entries; advance mark-delete. A snapshot of a cursor
is a begin followed by deltas of at most about 512 KiB, so each record fits into the state log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from struct import Struct, unpack
from struct import error as StructError
from typing import Final, NamedTuple

from pyroaring import BitMap

from quire.runtime.errors import CorruptionError
from quire.serving.model.ports import Position
from quire.serving.subscription.cursor.cursor import Cursor, CursorKey, Delta
from quire.serving.subscription.cursor.entry_set import EntrySet
from quire.serving.subscription.cursor.partial_acks import Chunk, chunks_of
from quire.serving.subscription.delayed import delayed_snapshot_record
from quire.serving.subscription.delayed.delayed_snapshot import SnapshotSegment

TAG: Final = b"C"
VERSION: Final = 2
PIECE_BYTES: Final = 512 * 1024
"""Size in bytes above which a change is split into several deltas."""

SPAN_ENTRIES: Final = 1 << 20
"""Maximum range of entry ids in a snapshot's bitmap, so that a bitmap has at most 128 KiB."""

_HEAD: Final = Struct(">cBBQ")
_BEGIN: Final = Struct(">Qqq")
_DELTA: Final = Struct(">qqIII")
_BITMAP: Final = Struct(">QI")
_CHUNK: Final = Struct(">QII")
_PARTIAL_V1: Final = Struct(">QQH")
_SLICE: Final = Struct(">QBI")
_U16: Final = Struct(">H")
_U32: Final = Struct(">I")
_WORD_MASK: Final = (1 << 64) - 1


class Kind(IntEnum):
    BEGIN = 1
    DELTA = 2
    DELETE = 3
    DELAYED_SNAPSHOT = 4


class Record(NamedTuple):
    """Parsed record: BEGIN has `cursor`, DELTA has `delta`, DELAYED_SNAPSHOT has `segment`.

    `cursor` has a mark-delete position and properties, but no other acknowledgements.
    """

    kind: Kind
    cursor_id: int
    cursor: Cursor | None = None
    delta: Delta | None = None
    segment: SnapshotSegment | None = None


# -- encoding ------------------------------------------------------------------------------------------


def begin(cursor_id: int, cursor: Cursor) -> bytes:
    key = cursor.key
    parts = [
        _HEAD.pack(TAG, VERSION, Kind.BEGIN, cursor_id),
        _BEGIN.pack(key.generation, *cursor.mark_delete),
        _text(key.topic),
        _text(key.subscription),
        _U32.pack(len(cursor.properties)),
    ]
    parts += [_text(name) + _text(value) for name, value in cursor.properties.items()]
    return b"".join(parts)


def delta(cursor_id: int, change: Delta) -> bytes:
    parts = [
        _HEAD.pack(TAG, VERSION, Kind.DELTA, cursor_id),
        _DELTA.pack(
            *change.mark_delete, len(change.acked.by_ledger), len(change.partial), len(change.redelivered)
        ),
    ]
    for ledger_id, entries in change.acked.items():
        raw = entries.serialize()
        parts += (_BITMAP.pack(ledger_id, len(raw)), raw)
    for chunk in change.partial:
        raw = chunk.entries.serialize()
        parts += (_CHUNK.pack(chunk.ledger_id, chunk.width, len(raw)), raw, chunk.bits)
    for ledger_id, bit, entries in change.redelivered:
        raw = entries.serialize()
        parts += (_SLICE.pack(ledger_id, bit, len(raw)), raw)
    return b"".join(parts)


def deltas(cursor_id: int, change: Delta) -> list[bytes]:
    """Encode `change` as one record, or as several of at most about `PIECE_BYTES`."""
    record = delta(cursor_id, change)
    if len(record) <= PIECE_BYTES:
        return [record]
    return [delta(cursor_id, piece) for piece in _pieces(change)]


def delete(cursor_id: int) -> bytes:
    return _HEAD.pack(TAG, VERSION, Kind.DELETE, cursor_id)


def delayed_snapshot(cursor_id: int, segment: SnapshotSegment) -> bytes:
    return _HEAD.pack(TAG, VERSION, Kind.DELAYED_SNAPSHOT, cursor_id) + delayed_snapshot_record.encode(
        segment
    )


def snapshot(cursor_id: int, cursor: Cursor) -> Iterator[bytes]:
    """Encode the whole cursor: a begin, as many deltas as needed, and its delayed snapshot."""
    yield begin(cursor_id, cursor)
    for piece in _pieces(cursor.whole()):
        yield delta(cursor_id, piece)
    cursor.delayed_snapshot.prune(cursor.mark_delete, cursor.unacknowledged)
    for found in cursor.delayed_snapshot:
        yield delayed_snapshot(cursor_id, found)


def _pieces(whole: Delta) -> Iterator[Delta]:
    """Split `whole` into deltas of at most about `PIECE_BYTES`."""
    for ledger_id, bit, entries in whole.redelivered:
        for part in _cut(entries):
            yield Delta(whole.mark_delete, EntrySet(), [], [(ledger_id, bit, part)])
    halves: list[Chunk] = []
    halves_bytes = 0
    for chunk in whole.partial:
        halves.append(chunk)
        halves_bytes += len(chunk.bits) + len(chunk.entries.serialize())
        if halves_bytes >= PIECE_BYTES:
            yield Delta(whole.mark_delete, EntrySet(), halves, [])
            halves, halves_bytes = [], 0
    if halves:
        yield Delta(whole.mark_delete, EntrySet(), halves, [])
    gathered, gathered_bytes = EntrySet(), 0
    for ledger_id, entries in whole.acked.items():
        for part in _cut(entries):
            gathered.add(ledger_id, part)
            gathered_bytes += len(part.serialize())
            if gathered_bytes >= PIECE_BYTES:
                yield Delta(whole.mark_delete, gathered, [], [])
                gathered, gathered_bytes = EntrySet(), 0
    if gathered:
        yield Delta(whole.mark_delete, gathered, [], [])


def _cut(entries: BitMap) -> Iterator[BitMap]:
    """Split `entries` into bitmaps that each span at most `SPAN_ENTRIES` ids."""
    if entries.max() - entries.min() < SPAN_ENTRIES:
        yield entries
        return
    first = entries.min() // SPAN_ENTRIES * SPAN_ENTRIES
    for start in range(first, entries.max() + 1, SPAN_ENTRIES):
        part = entries & BitMap(range(start, start + SPAN_ENTRIES))
        if part:
            yield part


def _text(text: str) -> bytes:
    raw = text.encode()
    return _U16.pack(len(raw)) + raw


# -- parsing -------------------------------------------------------------------------------------------


def parse(raw: bytes) -> Record:
    """Parse one record. Raises `CorruptionError`."""
    try:
        tag, version, number, cursor_id = _HEAD.unpack_from(raw)
        if tag != TAG or not 1 <= version <= VERSION:
            raise CorruptionError(
                f"not a cursor record of version 1 or {VERSION} (tag {tag!r}, version {version})"
            )
        kind = Kind(number)
        reader = _Reader(raw, _HEAD.size)
        cursor = _read_begin(reader) if kind is Kind.BEGIN else None
        change = _read_delta(reader, version) if kind is Kind.DELTA else None
        segment = delayed_snapshot_record.read(reader) if kind is Kind.DELAYED_SNAPSHOT else None
    except (StructError, ValueError) as error:
        raise CorruptionError(f"cannot parse a cursor record: {error}") from None
    if reader.offset != len(raw):
        raise CorruptionError(f"a cursor record has {len(raw) - reader.offset} extra bytes after its end")
    return Record(kind, cursor_id, cursor, change, segment)


class _Reader:
    """Sequential reader of a record."""

    def __init__(self, raw: bytes, offset: int) -> None:
        self.raw = raw
        self.offset = offset

    def unpack(self, layout: Struct) -> tuple[int, ...]:
        values = layout.unpack_from(self.raw, self.offset)
        self.offset += layout.size
        return values

    def take(self, count: int) -> bytes:
        piece = self.raw[self.offset : self.offset + count]
        if len(piece) != count:
            raise ValueError("the record is truncated")
        self.offset += count
        return piece

    def text(self) -> str:
        return self.take(self.unpack(_U16)[0]).decode()

    def bitmap(self, count: int) -> BitMap:
        return BitMap.deserialize(self.take(count))


def _read_begin(reader: _Reader) -> Cursor:
    generation, ledger_id, entry_id = reader.unpack(_BEGIN)
    topic, subscription = reader.text(), reader.text()
    (count,) = reader.unpack(_U32)
    properties = {}
    for _ in range(count):
        name = reader.text()
        properties[name] = reader.text()
    key = CursorKey(topic, generation, subscription)
    cursor = Cursor(key, Position(ledger_id, entry_id), properties)
    cursor.is_reset = False
    return cursor


def _read_delta(reader: _Reader, version: int) -> Delta:
    marked_ledger, marked_entry, acked_count, partial_count, redelivered_count = reader.unpack(_DELTA)
    acked = EntrySet()
    for _ in range(acked_count):
        ledger_id, length = reader.unpack(_BITMAP)
        acked.add(ledger_id, reader.bitmap(length))
    partial: list[Chunk] = []
    for _ in range(partial_count):
        if version == 1:
            ledger_id, entry_id, count = reader.unpack(_PARTIAL_V1)
            bits = bits_of(unpack(f">{count}Q", reader.take(8 * count)))
            partial += chunks_of(ledger_id, {entry_id: bits})
        else:
            partial.append(_read_chunk(reader))
    redelivered = []
    for _ in range(redelivered_count):
        ledger_id, bit, length = reader.unpack(_SLICE)
        redelivered.append((ledger_id, bit, reader.bitmap(length)))
    return Delta(Position(marked_ledger, marked_entry), acked, partial, redelivered)


def _read_chunk(reader: _Reader) -> Chunk:
    ledger_id, width, length = reader.unpack(_CHUNK)
    entries = reader.bitmap(length)
    if not entries or width.bit_count() != 1:
        raise ValueError(
            f"invalid chunk of partly acknowledged entries (width {width} bytes, {len(entries)} entries)"
        )
    return Chunk(ledger_id, width, entries, reader.take(width * len(entries)))


def words_of(bits: int) -> list[int]:
    """Return bits as the protocol's `ack_set`: signed 64-bit words, lowest first."""
    return [word - (1 << 64) if word >> 63 else word for word in _unsigned_words(bits)]


def _unsigned_words(bits: int) -> tuple[int, ...]:
    count = (bits.bit_length() + 63) // 64
    return unpack(f"<{count}Q", bits.to_bytes(8 * count, "little"))


def bits_of(words: Sequence[int]) -> int:
    """Return the bits of an `ack_set`. Takes linear time, because a client may send a hundred thousand words."""
    if len(words) == 1:  # the case for nearly every batch
        return words[0] & _WORD_MASK
    return int.from_bytes(b"".join([(word & _WORD_MASK).to_bytes(8, "little") for word in words]), "little")
