"""Byte formats of a WAL's objects: data objects and fences, sets, and the catalogue.

    wal/WAL/SEQ                   data object or fence; SEQ in 16 hex digits, dense from 0
    wal/WAL/set-N-UNIQUE          set; N counts the WAL's sets and catalogues, UNIQUE ensures that no name is used twice
    wal/WAL/sets-N-UNIQUE         catalogue

All integers are big-endian. Data objects, fences and sets begin with a header:

    offset size  header, 96 bytes
         0    8  magic            "QUIREWAL", of a set "QUIRESET"
         8    2  version          1
        10    2  kind             1 data, 2 fence, 3 set
        12    4  header crc       CRC32C over bytes 0 .. 12 and 16 .. 96
        16   16  WAL              UUID
        32    8  seq              number of the object; in a set: first data object that it covers
        40    8  trim seq         trim point when the object was created; in a set: last data object that it covers
        48    8  confirmed seq    all objects up to this number were durable when the object was created; signed, or -1
        56    8  clock            ms
        64    4  blocks
        68    4  rows
        72    8  rows offset      where the rows begin
        80    8  object bytes     of the whole object
        88    4  rows crc         CRC32C over tombstones and rows
        92    4  tombstones

    then the blocks (`wire/block`), unchanged: in a data object in the order of their adds, in a set by ledger and entry
    then tombstones, 24 bytes each:  kind 4 (1), ledger 8, version 8 signed, zero 4
    then rows, sorted by ledger and first entry. Each describes one run: consecutive blocks of one ledger, contiguous in
         the object:  ledger 8, first entry 8, last entry 8, offset 8, length 4, crc 4 (CRC32C over the run)
         and in sets: clock 8 (of the last block)
    then, only in a set, a footer of 32 bytes for readers that know its name and length:
         magic 8, rows offset 8, rows 4, rows crc 4, zero 4, footer crc 4 (CRC32C over the 28 bytes before)

A fence has no blocks. Its header is followed by 64 bytes: the name of the process that closed the WAL, padded with
zeros. A run has at most 1 MiB, or consists of one larger block. The header and the footer of a set contain the same
rows crc; a set has no tombstones.

A catalogue is JSON after 16 bytes: magic "QUIRECAT", version 2, zero 2, crc 4 (CRC32C over the JSON).

A data object is verified in three steps: header, rows, runs. Its WAL and seq must match its name. A failed check is
damage, never the end of the WAL. The header's checksum covers the rows' checksum, and the rows contain the runs'
checksums, so two objects with equal headers have the same bytes. This module performs no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from quire.runtime.errors import ConfigurationError, CorruptionError
from quire.runtime.limits import MIB
from quire.wire.block import Buffer, brief, peek
from quire.wire.checksum import crc32c

FOLDER: Final = "wal/"
"""Folder of all WALs."""

MAGIC: Final = b"QUIREWAL"
SET_MAGIC: Final = b"QUIRESET"
CATALOGUE_MAGIC: Final = b"QUIRECAT"
VERSION: Final = 1

_OPENING: Final = Struct(">8sHH")
_CHECKED: Final = Struct(">16sQQqQIIQQII")
_TOMBSTONE: Final = Struct(">IQqI")
ROW: Final = Struct(">QQQQII")
SET_ROW: Final = Struct(">QQQQIIQ")
_FOOTER: Final = Struct(">8sQIII")
_CRC: Final = Struct(">I")
_CATALOGUE: Final = Struct(">8sHHI")
_SEQ: Final = re.compile(r"[0-9a-f]{16}")

_CHECKED_OFFSET: Final = _OPENING.size + _CRC.size
HEADER_BYTES: Final = _CHECKED_OFFSET + _CHECKED.size
TOMBSTONE_BYTES: Final = _TOMBSTONE.size
FOOTER_BYTES: Final = _FOOTER.size + _CRC.size
FENCE_BYTES: Final = HEADER_BYTES + 64
RUN_BYTES_MAX: Final = MIB
TAIL_GUESS_BYTES: Final = 64 * 1024
"""Bytes of the first read from the end of a set; large enough for the rows of a thousand runs."""

assert (HEADER_BYTES, TOMBSTONE_BYTES, ROW.size, SET_ROW.size, FOOTER_BYTES) == (96, 24, 40, 48, 32)


class Kind(IntEnum):
    DATA = 1
    FENCE = 2
    SET = 3


_OPENINGS: Final = {(MAGIC, VERSION, Kind.DATA), (MAGIC, VERSION, Kind.FENCE), (SET_MAGIC, VERSION, Kind.SET)}


class Header(NamedTuple):
    """Decoded header of an object. In a set, `trim_seq` is the last sequence number that the set covers."""

    kind: Kind
    wal: str
    seq: int
    trim_seq: int
    confirmed_seq: int
    clock_ms: int
    block_count: int
    row_count: int
    rows_offset: int
    object_bytes: int
    rows_crc: int
    tombstone_count: int
    header_crc: int
    """Checksum; data objects with equal `header_crc`, WAL and seq have the same bytes."""

    @property
    def tail_offset(self) -> int:
        """Offset of the tombstones, which are followed by the rows."""
        return self.rows_offset - TOMBSTONE_BYTES * self.tombstone_count


class Tombstone(NamedTuple):
    ledger_id: int
    version: int


# -- names -----------------------------------------------------------------------------------------------
def folder(wal: str) -> str:
    """Return the prefix of the names of a WAL's objects."""
    return f"{FOLDER}{wal}/"


def data_name(wal: str, seq: int) -> str:
    return f"wal/{wal}/{seq:016x}"


def set_name(wal: str, number: int, unique: str) -> str:
    return f"wal/{wal}/set-{number:08x}-{unique}"


def catalogue_name(wal: str, number: int, unique: str) -> str:
    return f"wal/{wal}/sets-{number:08x}-{unique}"


def seq_of(name: str) -> int | None:
    """Return the sequence number in the name of a data object or fence; None for other names."""
    last = name.rpartition("/")[2]
    return int(last, 16) if _SEQ.fullmatch(last) else None


def is_set(name: str) -> bool:
    return name.rpartition("/")[2].startswith("set-")


def is_catalogue(name: str) -> bool:
    return name.rpartition("/")[2].startswith("sets-")


def number_of(name: str) -> int:
    """Return the number in the name of a set or catalogue; a WAL's sets and catalogues share one sequence."""
    return int(name.rpartition("/")[2].split("-")[1], 16)


# -- data objects and fences -----------------------------------------------------------------------------
def encode_data(
    wal: str,
    seq: int,
    trim_seq: int,
    confirmed_seq: int,
    clock_ms: int,
    blocks: Sequence[Buffer],
    tombstones: Sequence[Tombstone] = (),
) -> list[Buffer]:
    """Return the bytes of a data object in parts; the blocks are not copied."""
    rows = sorted(_data_rows(blocks))
    tail = b"".join([*(_TOMBSTONE.pack(1, *each, 0) for each in tombstones), *rows])
    tail_offset = HEADER_BYTES + sum(map(len, blocks))
    header = Header(
        Kind.DATA,
        wal,
        seq,
        trim_seq,
        confirmed_seq,
        clock_ms,
        len(blocks),
        len(rows),
        tail_offset + TOMBSTONE_BYTES * len(tombstones),
        tail_offset + len(tail),
        crc32c(tail),
        len(tombstones),
        0,
    )
    return [_encode_header(header, MAGIC), *blocks, tail]


def _data_rows(blocks: Sequence[Buffer]) -> Iterable[bytes]:
    """Yield the rows of blocks in the given order: adjacent, consecutive blocks of one ledger form one run.

    This is one loop, for speed, because it runs for every block.
    """
    ledger_id = next_entry = -1
    first_entry = start = length = crc = 0
    offset = HEADER_BYTES
    for block in blocks:
        count, of_ledger, entry, _, _ = brief(block)
        if of_ledger != ledger_id or entry != next_entry or length + len(block) > RUN_BYTES_MAX:
            if length:
                yield ROW.pack(ledger_id, first_entry, next_entry - 1, start, length, crc)
            ledger_id, first_entry, start, length, crc = of_ledger, entry, offset, 0, 0
        next_entry = entry + count
        length += len(block)
        crc = crc32c(block, crc)
        offset += len(block)
    if length:
        yield ROW.pack(ledger_id, first_entry, next_entry - 1, start, length, crc)


def encode_fence(wal: str, seq: int, clock_ms: int, closer: str) -> bytes:
    """Return the bytes of a fence. `closer` is informational."""
    header = Header(Kind.FENCE, wal, seq, 0, -1, clock_ms, 0, 0, HEADER_BYTES, FENCE_BYTES, crc32c(b""), 0, 0)
    name = closer.encode()[: FENCE_BYTES - HEADER_BYTES]
    return _encode_header(header, MAGIC) + name.ljust(FENCE_BYTES - HEADER_BYTES, b"\0")


def closer_of(fence: Buffer) -> str:
    """Return the name of the process that closed the WAL, from its fence."""
    return bytes(fence[HEADER_BYTES:FENCE_BYTES]).rstrip(b"\0").decode(errors="replace")


def _encode_header(header: Header, magic: bytes) -> bytes:
    kind, wal, *fields, _ = header
    opening = _OPENING.pack(magic, VERSION, kind)
    checked = _CHECKED.pack(UUID(wal).bytes, *fields)
    return opening + _CRC.pack(crc32c(checked, crc32c(opening))) + checked


def read_header(content: Buffer, name: str) -> Header:
    """Return the header of a data object, fence or set, from its first bytes.

    Raises `CorruptionError`, and `ConfigurationError` for a newer format; both contain the object's name.
    """
    if len(content) < HEADER_BYTES:
        raise CorruptionError("an object is too short for a WAL's header", name, 0)
    magic, version, kind = _OPENING.unpack_from(content)
    if magic not in (MAGIC, SET_MAGIC):
        raise CorruptionError("an object has no valid WAL header", name, 0)
    (crc,) = _CRC.unpack_from(content, _OPENING.size)
    view = memoryview(content)
    if crc32c(view[_CHECKED_OFFSET:HEADER_BYTES], crc32c(view[: _OPENING.size])) != crc:
        raise CorruptionError("a header does not match its checksum", name, 0)
    if (magic, version, kind) not in _OPENINGS:
        raise _newer(name, version)
    wal, *fields = _CHECKED.unpack_from(content, _CHECKED_OFFSET)
    return Header._make((Kind(kind), str(UUID(bytes=wal)), *fields, crc))


def _newer(name: str, version: int) -> ConfigurationError:
    """Return the error for an undamaged object of a newer format. All formats share magic, version and checksum."""
    return ConfigurationError(
        f"{name} was written by a newer version of Quire (format {version}, this version reads {VERSION}): "
        "upgrade this process"
    )


def check(header: Header, wal: str, seq: int, name: str) -> None:
    """Check that the header matches the object's name. Raises `CorruptionError`."""
    if (header.wal, header.seq) != (wal, seq) or header.kind is Kind.SET:
        raise CorruptionError(f"the header belongs to object {header.seq} of WAL {header.wal}", name, 0)


def header_of(content: Buffer, wal: str, seq: int) -> Header:
    """Return the header of the data object or fence `seq`, from its first bytes. Raises `CorruptionError`."""
    name = data_name(wal, seq)
    header = read_header(content, name)
    check(header, wal, seq, name)
    return header


def read_data_tail(header: Header, tail: Buffer, name: str) -> tuple[bytes, dict[int, int]]:
    """Return encoded rows, and tombstone versions by ledger; `tail` follows the blocks. Raises `CorruptionError`."""
    content = bytes(tail)
    expected = TOMBSTONE_BYTES * header.tombstone_count + ROW.size * header.row_count
    if len(content) != expected or crc32c(content) != header.rows_crc:
        raise CorruptionError(
            "the rows of a data object do not match their checksum", name, header.tail_offset
        )
    end = TOMBSTONE_BYTES * header.tombstone_count
    deleted = {ledger_id: version for _, ledger_id, version, _ in _TOMBSTONE.iter_unpack(content[:end])}
    return content[end:], deleted


# -- sets ------------------------------------------------------------------------------------------------
def encode_set(
    wal: str, first_seq: int, last_seq: int, clock_ms: int, ledgers: Sequence[tuple[int, Sequence[Buffer]]]
) -> list[Buffer]:
    """Return a set's bytes in parts. `ledgers` are sorted, each with its blocks in order. Blocks are not copied."""
    blocks: list[Buffer] = []
    rows: list[bytes] = []
    offset = HEADER_BYTES
    for ledger_id, of_ledger in ledgers:
        for run in _runs(of_ledger):
            first, last = peek(run[0]), peek(run[-1])
            assert first.ledger_id == ledger_id
            crc = length = 0
            for block in run:
                crc = crc32c(block, crc)
                length += len(block)
            span = (ledger_id, first.first_entry, last.last_entry, offset, length, crc)
            rows.append(SET_ROW.pack(*span, last.clock_ms))
            offset += length
        blocks += of_ledger
    assert rows == sorted(rows), "ledgers in order, and blocks within"
    tail = b"".join(rows)
    tail_crc = crc32c(tail)
    footer = _FOOTER.pack(SET_MAGIC, offset, len(rows), tail_crc, 0)
    footer += _CRC.pack(crc32c(footer))
    header = Header(
        Kind.SET,
        wal,
        first_seq,
        last_seq,
        last_seq,
        clock_ms,
        len(blocks),
        len(rows),
        offset,
        offset + len(tail) + FOOTER_BYTES,
        tail_crc,
        0,
        0,
    )
    return [_encode_header(header, SET_MAGIC), *blocks, tail + footer]


def _runs(blocks: Sequence[Buffer]) -> Iterable[list[Buffer]]:
    """Divide the blocks of a ledger into runs without gaps, each of limited size."""
    run: list[Buffer] = []
    size, next_entry = 0, -1
    for block in blocks:
        count, _, first_entry, _, _ = brief(block)
        if run and (first_entry != next_entry or size + len(block) > RUN_BYTES_MAX):
            yield run
            run, size = [], 0
        run.append(block)
        size += len(block)
        next_entry = first_entry + count
    if run:
        yield run


def footer_crc(tail: Buffer) -> int:
    """Return the checksum that a catalogue stores for a set, from the set's last bytes."""
    return int.from_bytes(bytes(tail[-_CRC.size :]), "big")


def set_tail_bytes(tail: Buffer, name: str) -> int:
    """Return the size of a set's rows and footer, from at least its last `FOOTER_BYTES`. Raises `CorruptionError`."""
    return _read_footer(tail, name)[1] * SET_ROW.size + FOOTER_BYTES


def read_set_tail(tail: Buffer, object_bytes: int, crc: int, name: str) -> bytes:
    """Return a set's encoded rows. `crc` is the footer's checksum in the catalogue. Raises `CorruptionError`."""
    rows_offset, row_count, rows_crc = _read_footer(tail, name)
    end = len(tail) - FOOTER_BYTES
    rows = bytes(tail[end - row_count * SET_ROW.size : end])
    if footer_crc(tail) != crc or rows_offset + len(rows) + FOOTER_BYTES != object_bytes:
        raise CorruptionError(
            "a set of blocks differs from its entry in the catalogue", name, object_bytes - FOOTER_BYTES
        )
    if crc32c(rows) != rows_crc:
        raise CorruptionError("the rows of a set do not match their checksum", name, rows_offset)
    return rows


def _read_footer(tail: Buffer, name: str) -> tuple[int, int, int]:
    """Return the offset, number and checksum of a set's rows, from its footer."""
    footer = bytes(tail[-FOOTER_BYTES:])
    if len(footer) < FOOTER_BYTES or footer_crc(footer) != crc32c(footer[: _FOOTER.size]):
        raise CorruptionError("a set's footer does not match its checksum", name)
    magic, rows_offset, row_count, rows_crc, _ = _FOOTER.unpack(footer[: _FOOTER.size])
    if magic != SET_MAGIC:
        raise CorruptionError("a set has no valid footer", name)
    return rows_offset, row_count, rows_crc


# -- the catalogue ---------------------------------------------------------------------------------------
class SetEntry(msgspec.Struct, frozen=True):
    """Set in the catalogue; it covers the data objects from `first_seq` to `last_seq`."""

    name: str
    bytes: int
    footer_crc: int
    first_seq: int
    last_seq: int


class Catalogue(msgspec.Struct, frozen=True):
    """Sets of a WAL, and tombstone versions by ledger, for deleted ledgers with blocks in an object."""

    sets: tuple[SetEntry, ...] = ()
    tombstones: dict[int, int] = {}


def encode_catalogue(catalogue: Catalogue) -> bytes:
    content = msgspec.json.encode(catalogue)
    return _CATALOGUE.pack(CATALOGUE_MAGIC, VERSION, 0, crc32c(content)) + content


def catalogue_crc(content: Buffer) -> int:
    """Return the checksum of a catalogue, which the WAL's record contains."""
    return _CATALOGUE.unpack_from(content)[3]  # type: ignore[no-any-return]


def decode_catalogue(content: Buffer, crc: int, name: str) -> Catalogue:
    """Decode a catalogue. `crc` is its checksum in the record. Raises `CorruptionError`."""
    if len(content) < _CATALOGUE.size:
        raise CorruptionError("an object is too short for a catalogue", name, 0)
    magic, version, zero, told = _CATALOGUE.unpack_from(content)
    body = bytes(content[_CATALOGUE.size :])
    if magic != CATALOGUE_MAGIC or told != crc or crc32c(body) != crc:
        raise CorruptionError("a catalogue does not match its checksum in the record", name, 0)
    if (version, zero) != (VERSION, 0):
        raise _newer(name, version)
    try:
        return msgspec.json.decode(body, type=Catalogue)
    except ValueError as error:
        raise CorruptionError(f"a catalogue cannot be decoded ({error})", name, _CATALOGUE.size) from error
