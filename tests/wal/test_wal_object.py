"""The bytes of a WAL's objects: whole blocks come back by their rows, and one wrong bit anywhere is damage."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

import pytest

from quire.runtime.errors import ConfigurationError, CorruptionError
from quire.wal import wal_object
from quire.wal.wal_object import (
    FENCE_BYTES,
    FOOTER_BYTES,
    HEADER_BYTES,
    RUN_BYTES_MAX,
    SET_ROW,
    Catalogue,
    Kind,
    SetEntry,
    Tombstone,
)
from quire.wire import block
from quire.wire.block import Buffer
from quire.wire.block_runs import split
from quire.wire.checksum import crc32c

WAL = "0a0b0c0d-0000-4000-8000-000000000007"


def made(ledger_id: int, first_entry: int, *sizes: int) -> Buffer:
    entries = [bytes([size % 251]) * size for size in sizes]
    return block.cut(ledger_id, first_entry, first_entry - 1, 1_000 + first_entry, 10 * first_entry, entries)


def data(blocks: Sequence[Buffer], tombstones: Sequence[Tombstone] = ()) -> bytes:
    return b"".join(wal_object.encode_data(WAL, 5, 2, 4, 99, blocks, tombstones))


def runs_of(content: bytes) -> list[tuple[int, int, int, list[bytes]]]:
    """Ledger, first and last entry and the blocks of each run of a data object, each proven by its checksum."""
    header = wal_object.read_header(content, "x")
    rows, _ = wal_object.read_data_tail(header, content[header.tail_offset :], "x")
    found = []
    for ledger_id, first, last, offset, length, crc in struct.iter_unpack(">QQQQII", rows):
        run = content[offset : offset + length]
        assert crc32c(run) == crc
        found.append((ledger_id, first, last, list(map(bytes, split(memoryview(run))))))
    return found


def test_blocks_of_many_ledgers_come_back_by_their_rows() -> None:
    one, two, three = made(9, 0, 10, 20), made(9, 2, 30), made(9, 4, 5)
    other, after = made(3, 7, 8), made(9, 3, 9)
    content = data([one, two, other, three, after])
    assert runs_of(content) == [
        (3, 7, 7, [other]),
        (9, 0, 2, [one, two]),
        (9, 3, 3, [after]),
        (9, 4, 4, [three]),
    ]


def test_a_run_is_not_longer_than_a_reader_wants_at_once() -> None:
    blocks = [made(9, number, RUN_BYTES_MAX // 3) for number in range(5)]
    assert [(first, last) for _, first, last, _ in runs_of(data(blocks))] == [(0, 1), (2, 3), (4, 4)]
    large = made(9, 5, RUN_BYTES_MAX + 1)
    assert [run[1:3] for run in runs_of(data([*blocks[:1], large]))] == [(0, 0), (5, 5)]


def test_an_object_that_has_only_tombstones() -> None:
    content = data([], [Tombstone(4, 7), Tombstone(9, 0)])
    header = wal_object.read_header(content, "x")
    assert wal_object.read_data_tail(header, content[header.tail_offset :], "x") == (b"", {4: 7, 9: 0})


def test_one_wrong_bit_in_header_or_rows_is_damage() -> None:
    content = data([made(9, 0, 10), made(3, 7, 8)], [Tombstone(4, 7)])
    fence = wal_object.encode_fence(WAL, 5, 99, "who")
    tail = wal_object.read_header(content, "x").tail_offset
    for whole, places in (
        (content, [*range(HEADER_BYTES), *range(tail, len(content))]),
        (fence, range(HEADER_BYTES)),
    ):
        for place in places:
            for bit in range(8):
                rotten = bytearray(whole)
                rotten[place] ^= 1 << bit
                with pytest.raises(CorruptionError, match=r"in wal/x at offset"):
                    header = wal_object.read_header(rotten, "wal/x")
                    wal_object.read_data_tail(header, rotten[header.tail_offset :], "wal/x")


def test_what_is_cut_off_is_damage() -> None:
    content = data([made(9, 0, 10)])
    with pytest.raises(CorruptionError, match="too short"):
        wal_object.read_header(content[: HEADER_BYTES - 1], "x")
    header = wal_object.read_header(content, "x")
    with pytest.raises(CorruptionError, match="rows of a data object"):
        wal_object.read_data_tail(header, content[header.tail_offset : -1], "x")


def test_an_object_under_another_name_is_damage() -> None:
    header = wal_object.read_header(data([made(9, 0, 10)]), "x")
    wal_object.check(header, WAL, 5, "x")
    with pytest.raises(CorruptionError, match=f"belongs to object 5 of WAL {WAL}"):
        wal_object.check(header, WAL, 6, "x")
    with pytest.raises(CorruptionError):
        wal_object.check(header, WAL.replace("7", "8"), 5, "x")
    of_set = wal_object.read_header(b"".join(wal_object.encode_set(WAL, 5, 5, 1, [])), "x")
    with pytest.raises(CorruptionError):
        wal_object.check(of_set, WAL, 5, "x")


def test_objects_with_other_bytes_have_other_header_checksums() -> None:
    """So a writer that is told that its name is taken knows from 96 bytes whether it was itself."""
    contents = [
        data([made(9, 0, 10)]),
        data([made(9, 0, 11)]),
        data([made(9, 1, 10)]),
        data([], [Tombstone(9, 0)]),
        b"".join(wal_object.encode_data(WAL, 5, 3, 4, 99, [made(9, 0, 10)])),
        wal_object.encode_fence(WAL, 5, 99, "who"),
    ]
    assert len({wal_object.read_header(content, "x").header_crc for content in contents}) == len(contents)


def test_a_fence_says_whose_it_is_whatever_its_length() -> None:
    for closer in ("b", "x" * 200, "ü" * 40):
        fence = wal_object.encode_fence(WAL, 5, 99, closer)
        assert len(fence) == FENCE_BYTES
        assert closer.startswith(wal_object.closer_of(fence).rstrip("\ufffd"))
        assert wal_object.read_header(fence, "x").kind is Kind.FENCE


def test_names_tell_data_objects_from_the_rest() -> None:
    assert wal_object.seq_of(wal_object.data_name(WAL, 0xFEED)) == 0xFEED
    for other in (
        wal_object.set_name(WAL, 3, "abc"),
        wal_object.catalogue_name(WAL, 3, "abc"),
        "wal/x/probe",
    ):
        assert wal_object.seq_of(other) is None
    assert wal_object.data_name(WAL, 1).startswith(wal_object.folder(WAL))


# -- sets --------------------------------------------------------------------------------------------------
def rows_of_set(content: bytes) -> list[tuple[int, ...]]:
    tail = content[-wal_object.set_tail_bytes(content[-FOOTER_BYTES:], "x") :]
    rows = wal_object.read_set_tail(tail, len(content), wal_object.footer_crc(content), "x")
    return list(struct.iter_unpack(">QQQQIIQ", rows))


def test_a_set_comes_back_by_its_rows() -> None:
    first, gap = [made(3, 0, 5), made(3, 1, 6)], made(3, 9, 7)
    other = [made(8, number, RUN_BYTES_MAX // 2 - 200) for number in range(3)]
    content = b"".join(wal_object.encode_set(WAL, 4, 9, 77, [(3, [*first, gap]), (8, other)]))
    rows = rows_of_set(content)
    assert [(row[0], row[1], row[2], row[6]) for row in rows] == [
        (3, 0, 1, 1_001),
        (3, 9, 9, 1_009),
        (8, 0, 1, 1_001),
        (8, 2, 2, 1_002),
    ]
    blocks = [each for row in rows for each in split(memoryview(content[row[3] : row[3] + row[4]]))]
    assert blocks == [*first, gap, *other]
    assert all(crc32c(content[row[3] : row[3] + row[4]]) == row[5] for row in rows)
    header = wal_object.read_header(content, "x")
    assert (header.kind, header.seq, header.trim_seq, header.object_bytes) == (Kind.SET, 4, 9, len(content))


def test_a_set_that_is_not_the_one_of_the_catalogue_is_damage() -> None:
    content = b"".join(wal_object.encode_set(WAL, 4, 9, 77, [(3, [made(3, 0, 5)])]))
    crc = wal_object.footer_crc(content)
    with pytest.raises(CorruptionError, match="differs from its entry in the catalogue"):
        wal_object.read_set_tail(content, len(content), crc + 1, "x")
    with pytest.raises(CorruptionError, match="differs from its entry in the catalogue"):
        wal_object.read_set_tail(content, len(content) + 1, crc, "x")
    with pytest.raises(CorruptionError):
        wal_object.read_set_tail(content[-FOOTER_BYTES - 3 :], len(content), crc, "x")
    for place in range(len(content) - FOOTER_BYTES - SET_ROW.size, len(content)):
        rotten = bytearray(content)
        rotten[place] ^= 1 << random.Random(place).randrange(8)
        with pytest.raises(CorruptionError):
            wal_object.read_set_tail(rotten, len(rotten), crc, "x")


# -- the catalogue -----------------------------------------------------------------------------------------
def test_a_catalogue_comes_back_and_any_wrong_bit_is_damage() -> None:
    catalogue = Catalogue((SetEntry("wal/a/set-1-x", 10, 11, 0, 4),), {7: 3, 2**63: 0})
    content = wal_object.encode_catalogue(catalogue)
    crc = wal_object.catalogue_crc(content)
    assert wal_object.decode_catalogue(content, crc, "x") == catalogue
    with pytest.raises(CorruptionError, match="does not match its checksum in the record"):
        wal_object.decode_catalogue(content, crc + 1, "x")
    for place in range(len(content)):
        rotten = bytearray(content)
        rotten[place] ^= 0x10
        with pytest.raises((CorruptionError, ConfigurationError)):
            wal_object.decode_catalogue(rotten, crc, "x")


def test_a_sound_object_of_a_newer_version_is_not_damage() -> None:
    name = wal_object.data_name(WAL, 0)
    for content in (
        wal_object.encode_fence(WAL, 0, 1, "b"),
        b"".join(wal_object.encode_data(WAL, 0, 0, -1, 1, [made(1, 0, 10)])),
    ):
        newer = bytearray(content)
        newer[8:10] = (wal_object.VERSION + 1).to_bytes(2, "big")
        with pytest.raises(CorruptionError, match="checksum"):
            wal_object.header_of(newer, WAL, 0)
        newer[12:16] = crc32c(memoryview(newer)[16:HEADER_BYTES], crc32c(memoryview(newer)[:12])).to_bytes(
            4, "big"
        )
        with pytest.raises(ConfigurationError, match=f"{name} was written by a newer version"):
            wal_object.header_of(newer, WAL, 0)
    catalogue = bytearray(wal_object.encode_catalogue(Catalogue((SetEntry("wal/a/set-1-x", 10, 11, 0, 4),))))
    catalogue[8:10] = (wal_object.VERSION + 1).to_bytes(2, "big")
    with pytest.raises(ConfigurationError, match="newer version"):
        wal_object.decode_catalogue(catalogue, wal_object.catalogue_crc(catalogue), "x")
