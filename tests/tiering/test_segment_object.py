"""The object's bytes: golden, provable by range, and refused as soon as one bit is wrong."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from quire.runtime.limits import ARCHIVE_INDEX_RUN_BYTES
from quire.tiering.segment_object import (
    FOOTER_BYTES,
    ROW_BYTES,
    Footer,
    Index,
    Row,
    SegmentBuilder,
    SegmentError,
    footer_crc,
    read_footer,
    verify_run,
)
from quire.wire import block
from quire.wire.block import BlockError, Buffer
from quire.wire.block_runs import split

GOLDEN = Path(__file__).parent.parent / "data" / "segment_object_v1.bin"


def make_blocks(
    sizes: list[list[int]], ledger_id: int = 7, first_index: int = 1000, clock_ms: int = 1_700_000_000_000
) -> list[Buffer]:
    """One block per list of entry sizes; every entry holds two messages; the clock goes on 10 ms per block."""
    blocks: list[Buffer] = []
    entry = 0
    for number, entry_sizes in enumerate(sizes):
        entries = [bytes([number % 251]) * size for size in entry_sizes]
        blocks.append(
            block.cut(
                ledger_id,
                entry,
                entry - 1,
                clock_ms + 10 * number,
                first_index + 2 * entry,
                entries,
                [2] * len(entries),
            )
        )
        entry += len(entries)
    return blocks


def build(blocks: list[Buffer], ledger_id: int = 7) -> bytes:
    builder = SegmentBuilder(ledger_id)
    for one in blocks:
        builder.add(one)
    return b"".join([*blocks, builder.finish()[1]])


def open_index(content: bytes) -> Index:
    return Index(read_footer(content, len(content), "obj"), content, "obj")


SMALL = [[10], [20, 30], [5] * 40]
MANY = [[1000] * (1 + number % 7) for number in range(400)]


def test_golden_bytes() -> None:
    content = build(make_blocks(SMALL))
    assert content == GOLDEN.read_bytes(), (
        "the format changed: that needs a new version, not a new golden file"
    )
    index = open_index(content)
    assert index.footer == Footer(
        blocks_bytes=len(content) - FOOTER_BYTES - ROW_BYTES,
        row_count=1,
        index_crc=index.footer.index_crc,
        ledger_id=7,
        first_entry=0,
        last_entry=42,
        block_count=3,
        message_count=86,
        first_index=1000,
        first_clock_ms=1_700_000_000_000,
        last_clock_ms=1_700_000_000_020,
        object_bytes=len(content),
    )
    assert content[-FOOTER_BYTES : -FOOTER_BYTES + 8] == b"QUIRESEG"
    assert footer_crc(content) == int.from_bytes(content[-FOOTER_BYTES + 12 : -FOOTER_BYTES + 16], "big")


def test_runs_cover_the_blocks_and_each_can_be_proven_alone() -> None:
    blocks = make_blocks([*MANY, [200_000], [1], [2]])
    content = build(blocks)
    index = open_index(content)
    rows = list(index.rows())
    assert len(rows) == len(index) > 10
    found: list[bytes] = []
    at = 0
    for number, row in enumerate(rows):
        assert row == index.row(number)
        assert row.offset == at
        at = row.end
        run = memoryview(content)[row.offset : row.end]
        verify_run(run, row, "obj")
        parts = split(run)
        assert row.length <= ARCHIVE_INDEX_RUN_BYTES or len(parts) == 1
        first, last = block.read_header(parts[0]), block.read_header(parts[-1])
        assert (row.first_entry, row.first_index, row.clock_ms) == (
            first.first_entry,
            first.first_index,
            first.clock_ms,
        )
        assert index.last_entry(number) == last.last_entry
        found += [bytes(part) for part in parts]
    assert at == index.footer.blocks_bytes
    assert found == [bytes(one) for one in blocks]


def test_finding_by_entry_time_and_offset() -> None:
    content = build(make_blocks(MANY))
    index = open_index(content)
    rows = list(index.rows())
    for number, row in enumerate(rows):
        last = index.last_entry(number)
        assert index.find_entry(row.first_entry) == index.find_entry(last) == number
        assert index.find_offset(row.offset) == number
        assert index.find_offset(row.offset + 1) == number + 1
        assert index.find_time(row.clock_ms) == max(0, number - 1), "blocks before may have the same clock"
        assert index.find_time(row.clock_ms + 1) == number
    assert index.find_time(0) == 0
    assert index.find_time(1 << 60) == len(rows) - 1


@pytest.mark.parametrize("target", [1, 100_000, 1 << 30])
def test_slices_are_whole_rows_and_leave_nothing_out(target: int) -> None:
    index = open_index(build(make_blocks(MANY)))
    slices = index.slices(target)
    assert [number for rows in slices for number in rows] == list(range(len(index)))
    sizes = [index.row(rows[-1]).end - index.row(rows[0]).offset for rows in slices]
    assert all(target <= size < target + 2 * ARCHIVE_INDEX_RUN_BYTES for size in sizes[:-1])


def prove(content: bytes) -> None:
    """What a reader proves before it believes anything."""
    index = open_index(content)
    for row in index.rows():
        verify_run(content[row.offset : row.end], row, "obj")


def test_any_flipped_bit_is_found_and_placed() -> None:
    content = build(make_blocks(SMALL))
    prove(content)
    footer = len(content) - FOOTER_BYTES
    for at in range(len(content)):
        rotten = bytearray(content)
        rotten[at] ^= 1 << (at % 8)
        with pytest.raises(SegmentError) as caught:
            prove(bytes(rotten))
        assert caught.value.file == "obj"
        assert caught.value.offset == (
            0 if at < footer - ROW_BYTES else footer - ROW_BYTES if at < footer else footer
        )


@pytest.mark.parametrize("cut", [0, 1, 50, FOOTER_BYTES - 1, FOOTER_BYTES, FOOTER_BYTES + 1, 500])
def test_a_cut_object_is_refused(cut: int) -> None:
    content = build(make_blocks(SMALL))
    for shorter in (content[:cut], content[: -cut or -1], content[cut or 1 :]):
        with pytest.raises(SegmentError):
            prove(shorter)


def test_random_bytes_are_refused() -> None:
    rng = random.Random(1)
    for _ in range(200):
        with pytest.raises(SegmentError):
            prove(rng.randbytes(rng.randrange(300)))


def test_blocks_out_of_order_are_refused() -> None:
    blocks = make_blocks(SMALL)
    wrong = [
        [blocks[1]],
        [blocks[0], blocks[0]],
        [blocks[0], blocks[2]],
        [blocks[0], make_blocks(SMALL, ledger_id=8)[1]],
        [blocks[0], make_blocks(SMALL, first_index=1001)[1]],
        [blocks[0], make_blocks(SMALL, clock_ms=5)[1]],
    ]
    for sequence in wrong:
        with pytest.raises(SegmentError):
            build(sequence)


def test_a_damaged_block_is_never_taken_in() -> None:
    rotten = bytearray(make_blocks(SMALL)[0])
    rotten[-1] ^= 1
    with pytest.raises(BlockError):
        build([rotten])


def test_an_empty_segment_has_no_object() -> None:
    with pytest.raises(AssertionError):
        SegmentBuilder(1).finish()


def test_a_row_is_what_the_table_says() -> None:
    content = build(make_blocks(SMALL))
    row = open_index(content).row(0)
    raw = content[-FOOTER_BYTES - ROW_BYTES : -FOOTER_BYTES]
    fields = [
        int.from_bytes(raw[at : at + size], "big")
        for at, size in [(0, 8), (8, 8), (16, 8), (24, 8), (32, 4), (36, 4)]
    ]
    assert Row._make(fields) == row
