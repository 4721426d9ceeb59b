"""The block: what is cut reads back, and a flipped bit anywhere, or a missing end, is found."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.wire import block

u64 = st.integers(0, (1 << 64) - 1)
entry_lists = st.lists(st.binary(max_size=100), min_size=1, max_size=20)


@st.composite
def blocks(draw: st.DrawFn) -> tuple[bytes, list[bytes], list[int] | None]:
    entries = draw(entry_lists)
    counts = draw(st.none() | st.lists(st.integers(1, 1000), min_size=len(entries), max_size=len(entries)))
    raw = block.cut(draw(u64), draw(u64), draw(st.integers(-1, 9)), draw(u64), draw(u64), entries, counts)
    return bytes(raw), entries, counts


@given(blocks(), st.binary(max_size=20))
def test_a_block_reads_back(made: tuple[bytes, list[bytes], list[int] | None], before: bytes) -> None:
    raw, entries, counts = made
    buffer, offset = before + raw + b"what follows", len(before)
    header = block.verify(buffer, offset)
    assert header.length == len(raw) and header.entry_count == len(entries)
    assert list(map(bytes, block.entries(buffer, header, offset))) == entries
    assert list(block.message_counts(buffer, header, offset)) == (counts or [1] * len(entries))
    assert block.ends(buffer, header, offset)[-1] == sum(map(len, entries))


@settings(max_examples=300)
@given(blocks(), st.data())
def test_a_flipped_bit_anywhere_is_found(
    made: tuple[bytes, list[bytes], list[int] | None], data: st.DataObject
) -> None:
    damaged = bytearray(made[0])
    position = data.draw(st.integers(0, 8 * len(damaged) - 1))
    damaged[position // 8] ^= 1 << position % 8
    with pytest.raises(block.BlockError):
        block.verify(damaged)


@given(blocks(), st.data())
def test_a_block_cut_short_is_found(
    made: tuple[bytes, list[bytes], list[int] | None], data: st.DataObject
) -> None:
    with pytest.raises(block.BlockError):
        block.verify(made[0][: data.draw(st.integers(0, len(made[0]) - 1))])


@given(st.binary(max_size=300))
def test_garbage_is_no_block(garbage: bytes) -> None:
    with pytest.raises(block.BlockError):
        block.verify(garbage)


@given(st.lists(blocks(), max_size=4), st.booleans())
def test_a_run_of_blocks_is_scanned_to_its_end(
    made: list[tuple[bytes, list[bytes], list[int] | None]], torn: bool
) -> None:
    run = b"".join(raw for raw, _, _ in made)
    assert [header.length for _, header in block.scan(run)] == [len(raw) for raw, _, _ in made]
    if torn and made:
        with pytest.raises(block.BlockError):
            list(block.scan(run[:-1]))


@given(st.lists(st.tuples(entry_lists, st.booleans()), min_size=1, max_size=6))
def test_joined_blocks_have_the_entries_of_all(made: list[tuple[list[bytes], bool]]) -> None:
    run, entries, counts = [], [], []
    for some, batched in made:
        some_counts = [7 + at for at in range(len(some))] if batched else None
        raw = block.cut(5, 100 + len(entries), 99, 1, 3 + sum(counts), some, some_counts)
        run.append((raw, block.peek(raw)))
        entries += some
        counts += some_counts or [1] * len(some)
    buffer, header = block.join(run)
    assert (header.ledger_id, header.first_entry, header.entry_count) == (5, 100, len(entries))
    assert (header.first_index, header.length) == (3, len(buffer))
    assert list(map(bytes, block.entries(buffer, header))) == entries
    assert list(block.message_counts(buffer, header)) == counts
    with pytest.raises(block.BlockError):
        block.read_header(buffer)


def test_the_same_bytes_in_buffers_of_any_kind_are_the_same() -> None:
    made = bytes(range(256))
    for one in (made, bytearray(made), memoryview(bytes(1) + made)[1:]):
        assert block.same_bytes(one, made)
        assert not block.same_bytes(one, made[:-1]) and not block.same_bytes(one, made[:-1] + b"x")


@pytest.mark.parametrize("counts", [[3] * 40, [1, 2, 3, 1], [7]])
def test_the_table_by_places_and_by_columns(counts: list[int]) -> None:
    made = bytes(block.cut(9, 128, 127, 5, 4_000, [bytes(size + 1) for size in range(len(counts))], counts))
    buffer, offset = b"before" + made, 6
    header = block.read_header(buffer, offset)
    places = [block.table_places(offset, header.entry_count, number) for number in range(len(counts))]
    assert [int.from_bytes(buffer[at : at + 4], "big") for at, _ in places] == list(block.ends(made, header))
    assert [int.from_bytes(buffer[at : at + 4], "big") for _, at in places] == counts
    each, apart = block.equal_counts(made, header)
    assert [each] * len(counts) == counts if apart is None else (each, list(apart)) == (0, counts)


def test_in_brief() -> None:
    made = block.cut(9, 128, 127, 5, 4_000, [b"one", b"two"])
    assert block.brief(made) == (2, 9, 128, 127, 5)
