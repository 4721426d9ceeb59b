"""The block, and what is made of blocks: journal segments, entry logs, archive objects."""

from __future__ import annotations

from mmap import mmap
from struct import Struct
from typing import Any

from quire.bookie import entry_record, journal_core
from quire.bookie.entry_log import EntryLogs
from quire.bookie.entry_log_scanner import EntryLogScanner
from quire.bookie.journal_core import BadSegment, Chain, Control, SegmentHeader
from quire.runtime.disk import PAGE_BYTES, pages_up
from quire.runtime.errors import CorruptionError
from quire.tiering import segment_object
from quire.tiering.segment_object import FOOTER_BYTES, ROW_BYTES, Index, SegmentBuilder, SegmentError
from quire.wire import block
from quire.wire.block import HEADER_BYTES, TABLE_ROW_BYTES, BlockError
from quire.wire.checksum import crc32c

_U32 = Struct(">I")


# -- the block -----------------------------------------------------------------------------------------
def blocks(data: bytes) -> None:
    """A run of blocks."""
    raw = sealed_blocks(data[1:]) if data[:1] and data[0] & 1 else data[1:]
    at = 0
    try:
        for offset, header in block.scan(raw):
            assert offset == at and header.length >= HEADER_BYTES + TABLE_ROW_BYTES
            at += header.length
            assert at <= len(raw)
            _one_block(raw, offset, header)
    except BlockError:
        assert at < len(raw)
    else:
        assert at == len(raw)


def _one_block(raw: bytes, offset: int, header: block.BlockHeader) -> None:
    try:
        assert block.verify(raw, offset) == header
    except BlockError:
        return
    whole = raw[offset : offset + header.length]
    assert block.peek(whole) == header
    ends, counts = block.ends(raw, header, offset), block.message_counts(raw, header, offset)
    entries = block.entries(raw, header, offset)
    assert len(ends) == len(counts) == len(entries) == header.entry_count
    if list(ends) != sorted(
        ends
    ):  # a table that only a broken writer makes: its entries are some bytes of the block
        return
    assert b"".join(entries) == whole[header.entries_offset :]
    again = block.cut(
        header.ledger_id,
        header.first_entry,
        header.lac,
        header.clock_ms,
        header.first_index,
        entries,
        counts,
    )
    assert bytes(again) == whole


def sealed_blocks(raw: bytes, start: int = 0) -> bytes:
    """The blocks with right checksums, as far as their lengths make sense."""
    made = bytearray(raw)
    at = start
    while at + HEADER_BYTES <= len(made):
        header = block.peek(made[at:])
        table_end = at + header.entries_offset
        end = at + header.length
        if not table_end <= end <= len(made):
            break
        block._CHECKED.pack_into(
            made, at + block._CHECKED_OFFSET, crc32c(bytes(made[table_end:end])), *header[1:]
        )
        crc = crc32c(bytes(made[at + block._CHECKED_OFFSET : table_end]))
        block._PREFIX.pack_into(made, at, block.MAGIC, block.VERSION, 0, crc)
        at = end
    return bytes(made)


# -- the journal ---------------------------------------------------------------------------------------
HEADER = SegmentHeader(epoch=3, first_number=7, salt=11, bookie=bytes(16), incarnation=1, mark=4)


def journal(data: bytes) -> None:
    """A segment of the journal, as a replay reads it: two header pages that may be anything, then groups."""
    raw = data[1:]
    found = journal_core.decode_segment_header(raw[:PAGE_BYTES])
    if isinstance(found, SegmentHeader):
        page = journal_core.encode_segment_header(found)
        assert journal_core.decode_segment_header(page) == found
    else:
        assert isinstance(found, BadSegment) or not any(raw[:PAGE_BYTES])
    image = journal_core.encode_segment_header(HEADER) + raw
    image += bytes(pages_up(len(image)) - len(image))
    if data[:1] and data[0] & 1:
        image = _sealed_groups(image)
    _replay(image)


def _replay(image: bytes) -> None:
    chain = Chain(HEADER.mark)
    chain.segment("a", HEADER.first_number)
    end, number = PAGE_BYTES, HEADER.first_number - 1
    for found in journal_core.scan_segment(memoryview(image), HEADER):
        assert found.offset >= end and found.number > number, "groups come in order"
        end, number = found.offset + found.length, found.number
        assert end <= len(image)
        before = chain.last_number
        if chain.group("a", found, None):
            assert chain.last_number == found.number > before
            _read_records(image[found.offset : end])
    assert chain.last_number >= HEADER.mark


def _read_records(group: bytes) -> None:
    length = journal_core.GROUP_HEADER_BYTES
    try:
        for record in journal_core.records(group):
            if isinstance(record, Control):
                again = list(journal_core.records(bytes(length) + journal_core.encode_control(record)))
                assert again == [record]
            else:
                header, view = record
                assert len(view) == header.length
    except BlockError:
        pass


def _sealed_groups(image: bytes) -> bytes:
    made = bytearray(image)
    layout, checked = journal_core._GROUP, journal_core._GROUP_CHECKED
    for at in range(PAGE_BYTES, len(made) - journal_core.GROUP_HEADER_BYTES, PAGE_BYTES):
        magic, _, length, zero, _, number = layout.unpack_from(made, at)
        if magic == journal_core.GROUP_MAGIC and at + length <= len(made):
            layout.pack_into(made, at, magic, 0, length, zero, HEADER.epoch, number)
            crc = crc32c(bytes(made[at + checked : at + length]), HEADER.salt)
            layout.pack_into(made, at, magic, crc, length, zero, HEADER.epoch, number)
    return bytes(made)


# -- the entry log -------------------------------------------------------------------------------------
class MemoryFile:
    """A file that can only be read. See `quire.runtime.disk.File`."""

    name = "00000001.log"

    def __init__(self, content: bytes) -> None:
        self.content = content

    def read_into(self, buffer: mmap | memoryview, offset: int) -> int:
        found = self.content[offset : offset + len(buffer)]
        buffer[: len(found)] = found
        return len(found)

    def size_bytes(self) -> int:
        return len(self.content)


class _Logs(EntryLogs):
    """One log, in memory."""

    def __init__(self, content: bytes) -> None:
        super().__init__(None, record_bytes=PAGE_BYTES)  # type: ignore[arg-type]
        file: Any = MemoryFile(content)
        self._logs = {1: file}


def entry_log(data: bytes) -> None:
    """A log whose index is lost."""
    content = data[1:] + bytes(pages_up(len(data) - 1) - (len(data) - 1)) if data else b""
    if data[:1] and data[0] & 1:
        content = _sealed_records(content)
    damage: list[CorruptionError] = []
    end = 0
    for row in EntryLogScanner(_Logs(content), damage.append).scan(1):
        assert row.log_id == 1 and row.offset >= end, "runs come in order of offsets"
        end = row.offset + row.length
        assert end <= len(content) and row.last_entry >= row.first_entry
        first = block.read_header(content, row.offset)
        assert (first.ledger_id, first.first_entry) == (row.ledger_id, row.first_entry)
    assert all(isinstance(each, CorruptionError) for each in damage)


def _sealed_records(content: bytes) -> bytes:
    made = bytearray(content)
    prefix, checked = entry_record._PREFIX, entry_record._CHECKED
    for at in range(0, len(made) - entry_record.HEADER_BYTES, PAGE_BYTES):
        if prefix.unpack_from(made, at)[0] != entry_record.MAGIC:
            continue
        _, number, durable_log, durable, length, _ = checked.unpack_from(made, at + prefix.size)
        payload_end = at + entry_record.HEADER_BYTES + length
        payload = bytes(made[at + entry_record.HEADER_BYTES : payload_end])
        checked.pack_into(made, at + prefix.size, 1, number, durable_log, durable, length, crc32c(payload))
        crc = crc32c(bytes(made[at + prefix.size : at + entry_record.HEADER_BYTES]))
        prefix.pack_into(made, at, entry_record.MAGIC, crc)
    return bytes(made)


# -- the archive ---------------------------------------------------------------------------------------
def archive(data: bytes) -> None:
    """A whole object of the archive."""
    raw = _sealed_object(data[1:]) if data[:1] and data[0] & 1 else data[1:]
    try:
        footer = segment_object.read_footer(raw, len(raw), "object")
        assert footer.index_bytes <= len(raw)
        index = Index(footer, raw, "object")
    except SegmentError:
        return
    assert len(index) == footer.row_count and len(list(index.rows())) == footer.row_count
    _find(index)
    found: list[Any] = []
    at = 0
    for row in index.rows():
        run = memoryview(raw)[row.offset : row.end]
        try:
            segment_object.verify_run(run, row, "object")
            found += [bytes(run[offset : offset + h.length]) for offset, h in block.scan(run)]
        except (SegmentError, BlockError):
            return
        if row.offset != at:
            return
        at = row.end
    if found and at == footer.blocks_bytes:
        _build_again(footer, found, raw)


def _find(index: Index) -> None:
    """Whatever the rows say, looking something up in them ends, in one of them."""
    for target in (0, index.footer.first_entry, index.footer.last_entry, 1 << 63):
        assert 0 <= index.find_entry(target) < len(index)
        assert 0 <= index.find_time(target) < len(index)
        assert 0 <= index.find_offset(target) <= len(index)
    slices = index.slices(64 << 10)
    assert [number for each in slices for number in each] == list(range(len(index)))


def _build_again(footer: segment_object.Footer, found: list[bytes], raw: bytes) -> None:
    """Blocks in order make the same object, but for where the runs are cut."""
    builder = SegmentBuilder(footer.ledger_id)
    builder.next_entry = footer.first_entry
    try:
        for each in found:
            builder.add(each)
    except CorruptionError:
        return
    again, tail = builder.finish()
    made = b"".join(found) + tail
    assert segment_object.read_footer(made, len(made), "again") == again


def _sealed_object(raw: bytes) -> bytes:
    if len(raw) < FOOTER_BYTES:
        return raw
    made = bytearray(raw)
    at = len(made) - FOOTER_BYTES
    prefix, checked = segment_object._PREFIX, segment_object._CHECKED
    fields = list(checked.unpack_from(made, at + prefix.size))
    rows = min(fields[1], at // ROW_BYTES)
    index_at = at - rows * ROW_BYTES
    for row_at in range(index_at, at, ROW_BYTES):
        first, number, clock, offset, length, _ = segment_object._ROW.unpack_from(made, row_at)
        run = bytes(made[offset : offset + length]) if offset + length <= index_at else b""
        segment_object._ROW.pack_into(made, row_at, first, number, clock, offset, length, crc32c(run))
    fields[0], fields[1], fields[2], fields[-1] = index_at, rows, crc32c(bytes(made[index_at:at])), len(made)
    body = checked.pack(*fields)
    made[at:] = prefix.pack(segment_object.MAGIC, segment_object.VERSION, 0, crc32c(body)) + body
    return bytes(made)
