"""The block: the one format from a broker's socket to the journal, the entry log, the archive and Spark.

A broker gathers the entries that wait for one ledger, cuts a block, and from then on nobody encodes them
again. An entry is, byte for byte, the tail of a client's SEND frame from its magic 0x0e01 on, so one entry
can be read alone and verified by the client's own checksum.

    offset size  field
         0    4  magic            0x51 0x42 0x4c 0x4b ("QBLK")
         4    2  version          1
         6    2  flags            0; another value is refused
         8    4  header crc       CRC32C over bytes 12 .. 64+8n (the rest of the header and the table)
        12    4  entries crc      CRC32C over the entries
        16    4  length           of the whole block in bytes, 64+8n+entries
        20    4  count            n, number of entries, 1 .. 2^20
        24    8  ledger           id of the ledger
        32    8  first entry      id of the first entry; the block holds first .. first+n-1
        40    8  LAC              the writer's last-add-confirmed when it cut the block, signed, -1: none
        48    8  clock            the broker's clock in ms, never backwards within a topic
        56    8  first index      topic-wide index of the first message
        64   4n  ends             for each entry the offset of its end, from the start of the entries
     64+4n   4n  messages         for each entry its number of messages, >= 1
     64+8n       the entries

All integers are big-endian. Valid is a block whose magic, version, flags, length and count agree with the
bytes at hand, whose header crc matches (so the table can be trusted) and whose ends rise to exactly the
end of the block. `read_header` proves that much in a few microseconds; `verify` proves the entries, too.
An invalid block is damage: it raises `BlockError` and is never skipped.

Block (ledger, first entry) has exactly one content: a writer that resends sends the same bytes.

An entry has bytes. A block whose entries have none (length = 64+8n) stands for entries that were lost and given up, so
that what follows a ledger's blocks finds no gap in entries, message indexes or clocks. Readers make it (`ledger.holes`)
and the archive keeps it; no bookie ever has one.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from struct import Struct
from struct import error as StructError
from sys import byteorder
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from quire.runtime.errors import CorruptionError

Buffer = bytes | bytearray | memoryview

MAGIC: Final = 0x51424C4B
_MAGIC_BYTES: Final = MAGIC.to_bytes(4, "big")
VERSION: Final = 1
HEADER_BYTES: Final = 64
TABLE_ROW_BYTES: Final = 8
COUNT_MAX: Final = 1 << 20

# magic, version, flags, header crc
_PREFIX: Final = Struct(">IHHI")
# entries crc, length, count, ledger, first entry, LAC, clock, first index
_CHECKED: Final = Struct(">IIIQQqQQ")
_ONE_ROW: Final = Struct(">IIIQQqQQII")
_U32: Final = Struct(">I")
_CHECKED_OFFSET: Final = 12
_SWAP: Final = byteorder == "little"

_ONES: Final = array("I", [1] * 1024)
if _SWAP:
    _ONES.byteswap()
_ONES_BYTES: Final = _ONES.tobytes()

_BLANK: Final = bytes(HEADER_BYTES)
_ONE_HEADER_BYTES: Final = HEADER_BYTES + TABLE_ROW_BYTES

assert _PREFIX.size == _CHECKED_OFFSET
assert _PREFIX.size + _CHECKED.size == HEADER_BYTES


class BlockError(CorruptionError):
    """Bytes that should be a block are not one."""


class BlockHeader(NamedTuple):
    """What a block says of itself. `length` is the whole block's, in bytes."""

    entries_crc: int
    length: int
    entry_count: int
    ledger_id: int
    first_entry: int
    lac: int
    clock_ms: int
    first_index: int

    @property
    def last_entry(self) -> int:
        return self.first_entry + self.entry_count - 1

    @property
    def entries_offset(self) -> int:
        """Where the first entry begins, from the start of the block."""
        return HEADER_BYTES + TABLE_ROW_BYTES * self.entry_count


def cut(
    ledger_id: int,
    first_entry: int,
    lac: int,
    clock_ms: int,
    first_index: int,
    entries: Sequence[Buffer],
    message_counts: Sequence[int] | None = None,
) -> Buffer:
    """Make a block of `entries`; `message_counts` is None when every entry holds one message.

    The entries are copied once. The block is not to be changed afterwards, whatever its type allows.
    """
    count = len(entries)
    if count == 1:  # the cheap path that many quiet topics take: no arrays, one pack
        entry = entries[0]
        size = len(entry)
        messages = 1 if message_counts is None else message_counts[0]
        length = _ONE_HEADER_BYTES + size
        row = _ONE_ROW.pack(
            crc32c(entry), length, 1, ledger_id, first_entry, lac, clock_ms, first_index, size, messages
        )
        return b"".join((_PREFIX.pack(MAGIC, VERSION, 0, crc32c(row)), row, entry))
    assert 0 < count <= COUNT_MAX
    ends = array("I", accumulate(map(len, entries)))
    if _SWAP:
        ends.byteswap()
    parts: list[Buffer] = [_BLANK, ends.tobytes(), _message_column(count, message_counts)]
    parts += entries
    block = bytearray().join(parts)
    view = memoryview(block)
    table_end = HEADER_BYTES + TABLE_ROW_BYTES * count
    entries_crc = crc32c(view[table_end:])
    _CHECKED.pack_into(
        block,
        _CHECKED_OFFSET,
        entries_crc,
        len(block),
        count,
        ledger_id,
        first_entry,
        lac,
        clock_ms,
        first_index,
    )
    _PREFIX.pack_into(block, 0, MAGIC, VERSION, 0, crc32c(view[_CHECKED_OFFSET:table_end]))
    return block


def blank(
    ledger_id: int, first_entry: int, clock_ms: int, first_index: int, messages: Sequence[int]
) -> bytes:
    """A block that stands for lost entries, one for each number of `messages`."""
    nothing = [b""] * len(messages)
    return bytes(cut(ledger_id, first_entry, first_entry - 1, clock_ms, first_index, nothing, messages))


def is_blank(header: BlockHeader) -> bool:
    """Whether the block stands for lost entries: there is nothing in it to read."""
    return header.length == header.entries_offset


def _message_column(count: int, message_counts: Sequence[int] | None) -> bytes:
    if message_counts is None:
        if count <= 1024:
            return _ONES_BYTES[: 4 * count]
        message_counts = [1] * count
    assert len(message_counts) == count
    column = array("I", message_counts)
    if _SWAP:
        column.byteswap()
    return column.tobytes()


def read_header(buffer: Buffer, offset: int = 0) -> BlockHeader:
    """The header of the block that begins at `offset`, its table proven.

    Raises `BlockError` when the bytes there are not a whole block with a right header checksum.
    """
    try:
        magic, version, flags, header_crc = _PREFIX.unpack_from(buffer, offset)
        header = BlockHeader._make(_CHECKED.unpack_from(buffer, offset + _CHECKED_OFFSET))
    except StructError:
        raise BlockError("a block's header is cut short") from None
    if magic != MAGIC or version != VERSION or flags:
        raise BlockError(f"no block of version {VERSION} begins here (magic {magic:#x}, version {version})")
    table_end = HEADER_BYTES + TABLE_ROW_BYTES * header.entry_count
    if not 0 < header.entry_count <= COUNT_MAX or header.length < table_end:
        raise BlockError(f"a block claims {header.entry_count} entries in {header.length} bytes")
    if len(buffer) - offset < header.length:
        raise BlockError(f"a block of {header.length} bytes is cut short")
    view = memoryview(buffer)
    if crc32c(view[offset + _CHECKED_OFFSET : offset + table_end]) != header_crc:
        raise BlockError("a block's header does not match its checksum")
    if (
        header.length - table_end
        != _U32.unpack_from(buffer, offset + HEADER_BYTES + 4 * header.entry_count - 4)[0]
    ):
        raise BlockError("a block's table does not end where the block ends")
    return header


def find_headers(buffer: Buffer, offset: int = 0) -> Iterator[tuple[int, BlockHeader]]:
    """(offset, header) wherever, at `offset` or behind it, a whole header begins.

    Only for bytes of which nobody knows where their blocks begin: an entry may hold what looks like a block.
    """
    whole = bytes(buffer)
    while (offset := whole.find(_MAGIC_BYTES, offset)) >= 0:
        try:
            yield offset, read_header(whole, offset)
        except BlockError:
            pass
        offset += 1


def peek(block: Buffer) -> BlockHeader:
    """The header of a block that this process has cut or verified before; nothing is proven again."""
    return BlockHeader._make(_CHECKED.unpack_from(block, _CHECKED_OFFSET))


Brief = tuple[int, int, int, int, int]
"""A block's count, ledger, first entry, LAC and clock."""

brief: Final[Callable[..., Brief]] = Struct(">20xIQQqQ").unpack_from
"""(block, offset 0) -> `Brief`, of what was cut or verified before, at a quarter of what `peek` costs."""


def verify(buffer: Buffer, offset: int = 0) -> BlockHeader:
    """The header of the block at `offset`, after proving header, table and entries. Raises `BlockError`."""
    header = read_header(buffer, offset)
    view = memoryview(buffer)
    body = view[offset + header.entries_offset : offset + header.length]
    if crc32c(body) != header.entries_crc:
        raise BlockError(
            f"the entries of block (ledger {header.ledger_id}, entry {header.first_entry}) "
            "do not match their checksum"
        )
    return header


def same_bytes(one: Buffer, other: Buffer) -> bool:
    """Whether both hold the same. Comparing views themselves goes item by item: 1 ms for a full block, not 0.2."""
    return len(one) == len(other) and bytes(one) == bytes(other)


def scan(buffer: Buffer, offset: int = 0) -> Iterator[tuple[int, BlockHeader]]:
    """(offset, header) of each block of a run of whole blocks; headers and tables are proven.

    Raises `BlockError` at the first byte that is not the start of a whole block.
    """
    end = len(buffer)
    while offset < end:
        header = read_header(buffer, offset)
        yield offset, header
        offset += header.length


def ends(buffer: Buffer, header: BlockHeader, offset: int = 0) -> array[int]:
    """For each entry the offset of its end, from the start of the entries. Shape (count,)."""
    return _column(buffer, offset + HEADER_BYTES, header.entry_count)


def message_counts(buffer: Buffer, header: BlockHeader, offset: int = 0) -> array[int]:
    """For each entry its number of messages. Shape (count,)."""
    return _column(buffer, offset + HEADER_BYTES + 4 * header.entry_count, header.entry_count)


def equal_counts(buffer: Buffer, header: BlockHeader) -> tuple[int, array[int] | None]:
    """(messages of every entry, None) when all have as many, else (0, `message_counts`). Once per block."""
    count = header.entry_count
    start = HEADER_BYTES + 4 * count
    column = bytes(memoryview(buffer)[start : start + 4 * count])
    if column == column[:4] * count:
        return _U32.unpack_from(column)[0], None
    return 0, message_counts(buffer, header)


def table_places(offset: Any, count: Any, number: Any) -> tuple[Any, Any]:
    """Where the table of the block of `count` entries at `offset` says the end of entry `number`, and its messages.

    Each is an unsigned integer of 32 bits, big-endian. The arguments are integers, or arrays of them of one shape.
    """
    end = offset + HEADER_BYTES + 4 * number
    return end, end + 4 * count


def _column(buffer: Buffer, start: int, count: int) -> array[int]:
    column = array("I", bytes(memoryview(buffer)[start : start + 4 * count]))
    if _SWAP:
        column.byteswap()
    return column


def join(run: Sequence[tuple[Buffer, BlockHeader]]) -> tuple[Buffer, BlockHeader]:
    """Consecutive blocks of one ledger laid out as one, for readers in this process alone.

    It never leaves the process and never reaches a disk: nothing but its table and entries is filled in, and it would
    be refused as damaged. Its header is the answer's second half; the clock is the first block's.
    """
    joined_ends: array[int] = array("I")
    columns: list[Buffer] = []
    bodies: list[Buffer] = []
    begin = 0
    for buffer, header in run:
        view = memoryview(buffer)
        table_end = header.entries_offset
        if header.entry_count == 1:
            joined_ends.append(begin + header.length - table_end)
        else:
            joined_ends.extend([begin + end for end in ends(buffer, header)])
        columns.append(view[table_end - 4 * header.entry_count : table_end])
        bodies.append(view[table_end : header.length])
        begin += header.length - table_end
    count = len(joined_ends)
    if _SWAP:
        joined_ends.byteswap()
    made = b"".join((_BLANK, joined_ends.tobytes(), *columns, *bodies))
    return made, run[0][1]._replace(entries_crc=0, length=len(made), entry_count=count, lac=run[-1][1].lac)


def entries(buffer: Buffer, header: BlockHeader, offset: int = 0) -> list[memoryview]:
    """The entries as views into `buffer`, in order."""
    body = memoryview(buffer)[offset + header.entries_offset : offset + header.length]
    start = 0
    views = []
    for end in ends(buffer, header, offset):
        views.append(body[start:end])
        start = end
    return views
