"""What a cursor is in bytes: the records that a bundle's state log keeps.

    offset size  field
         0    1  tag        0x43 ("C"): a cursor's record, whoever else uses the log
         1    1  version    2
         2    1  kind       1 begin, 2 delta, 3 delete, 4 a piece of a survey (`survey_record`)
         3    8  cursor id  which cursor of the bundle; never used twice
        11       body

    begin (replaces all that was known of the cursor)       delta
         8  generation of the topic                              8  mark-delete ledger, signed
         8  mark-delete ledger, signed                           8  mark-delete entry, signed
         8  mark-delete entry, signed                            4  a, number of bitmaps of acknowledged entries
         T  topic                                                4  p, number of chunks of partly acknowledged entries
         T  subscription                                         4  r, number of bitmaps of redelivered entries
         4  number of properties, each T key, T value            a  times: 8 ledger, 4 length, roaring bitmap
    T is a text: 2 length, UTF-8.                                p  times: 8 ledger, 4 width, 4 length, bitmap, and
    delete has no body.                                             `width` bytes for each entry of it: its bits
                                                                 r  times: 8 ledger, 1 bit, 4 length, bitmap

All integers are big-endian, bits of an entry from the lowest. A roaring bitmap is in its own portable format. The
state log proves the bytes; a record that does not parse to its very end is damage (`CorruptionError`). Version 1, which
is still read, had each partly acknowledged entry by itself: 8 ledger, 8 entry, 2 words, 8 each.

A delta says: redelivered entries' counts grow by 2^bit; partly acknowledged entries have these messages left
(set bits); acknowledged entries are acknowledged; mark-delete is there now. A snapshot of a cursor is a begin
and deltas of at most about 512 KiB, so no record outgrows what a log takes.
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
from quire.serving.subscription.delayed import survey_record
from quire.serving.subscription.delayed.survey import Piece

TAG: Final = b"C"
VERSION: Final = 2
PIECE_BYTES: Final = 512 * 1024
"""A delta is ended when it has reached this many bytes."""

SPAN_ENTRIES: Final = 1 << 20
"""A snapshot's bitmaps cover at most this many entry ids each: 128 KiB at the worst."""

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
    SURVEY = 4


class Record(NamedTuple):
    """A parsed record; `cursor` for BEGIN (empty but for its mark-delete), `delta` for DELTA, `piece` for SURVEY."""

    kind: Kind
    cursor_id: int
    cursor: Cursor | None = None
    delta: Delta | None = None
    piece: Piece | None = None


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
    """`change` as one record, or as several that are small enough for a log."""
    record = delta(cursor_id, change)
    if len(record) <= PIECE_BYTES:
        return [record]
    return [delta(cursor_id, piece) for piece in _pieces(change)]


def delete(cursor_id: int) -> bytes:
    return _HEAD.pack(TAG, VERSION, Kind.DELETE, cursor_id)


def survey(cursor_id: int, piece: Piece) -> bytes:
    return _HEAD.pack(TAG, VERSION, Kind.SURVEY, cursor_id) + survey_record.encode(piece)


def snapshot(cursor_id: int, cursor: Cursor) -> Iterator[bytes]:
    """The whole cursor: a begin, as many deltas as it takes, and its survey."""
    yield begin(cursor_id, cursor)
    for piece in _pieces(cursor.whole()):
        yield delta(cursor_id, piece)
    cursor.survey.prune(cursor.mark_delete, cursor.unacknowledged)
    for found in cursor.survey:
        yield survey(cursor_id, found)


def _pieces(whole: Delta) -> Iterator[Delta]:
    """`whole` as deltas that are small enough for one record each."""
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
    """`entries` in pieces of at most `SPAN_ENTRIES` ids."""
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
    """One record. Raises `CorruptionError`."""
    try:
        tag, version, number, cursor_id = _HEAD.unpack_from(raw)
        if tag != TAG or not 1 <= version <= VERSION:
            raise CorruptionError(
                f"no cursor's record of version {VERSION} or 1 (tag {tag!r}, version {version})"
            )
        kind = Kind(number)
        reader = _Reader(raw, _HEAD.size)
        cursor = _read_begin(reader) if kind is Kind.BEGIN else None
        change = _read_delta(reader, version) if kind is Kind.DELTA else None
        piece = survey_record.read(reader) if kind is Kind.SURVEY else None
    except (StructError, ValueError) as error:
        raise CorruptionError(f"a cursor's record cannot be read: {error}") from None
    if reader.offset != len(raw):
        raise CorruptionError("a cursor's record is longer than what it says")
    return Record(kind, cursor_id, cursor, change, piece)


class _Reader:
    """Takes one thing after another out of a record."""

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
            raise ValueError("it is cut short")
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
        raise ValueError("a chunk of partly acknowledged entries is none")
    return Chunk(ledger_id, width, entries, reader.take(width * len(entries)))


def words_of(bits: int) -> list[int]:
    """Bits as the protocol's `ack_set`: signed 64-bit words, the lowest first."""
    return [word - (1 << 64) if word >> 63 else word for word in _unsigned_words(bits)]


def _unsigned_words(bits: int) -> tuple[int, ...]:
    count = (bits.bit_length() + 63) // 64
    return unpack(f"<{count}Q", bits.to_bytes(8 * count, "little"))


def bits_of(words: Sequence[int]) -> int:
    """The reverse of `words_of`. Linear, for a client may send a hundred thousand."""
    if len(words) == 1:  # of nearly every batch
        return words[0] & _WORD_MASK
    return int.from_bytes(b"".join([(word & _WORD_MASK).to_bytes(8, "little") for word in words]), "little")
