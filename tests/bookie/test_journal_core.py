"""The journal's bytes and rules, without a disk."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.bookie.journal_core import (
    CONTROL_BYTES,
    GROUP_HEADER_BYTES,
    BadSegment,
    Chain,
    Control,
    ControlKind,
    FoundGroup,
    Group,
    GroupQueue,
    SegmentHeader,
    decode_segment_header,
    encode_control,
    encode_group,
    encode_segment_header,
    records,
    scan_segment,
    segments_needed,
)
from quire.runtime.disk import PAGE_BYTES, aligned_buffer
from quire.wire.block import BlockError
from quire.wire.bookie import Status

from .node import one

HEADER = SegmentHeader(epoch=3, first_number=10, salt=0x01020304, bookie=bytes(range(16)), incarnation=2)


def ignore(statuses: Sequence[Status]) -> None:
    """A waiter that does not care."""


def written(header: SegmentHeader, *groups: tuple[int, list[bytes]], pages: int = 16) -> bytearray:
    """A segment's bytes with these groups, (number, records), one after the other."""
    image = bytearray(encode_segment_header(header)) + bytearray((pages - 1) * PAGE_BYTES)
    position = PAGE_BYTES
    for number, parts in groups:
        memory = aligned_buffer(4 * PAGE_BYTES)
        group = Group(number, GROUP_HEADER_BYTES + sum(map(len, parts)), list(parts))
        size = encode_group(group, header, memory.write, memoryview(memory))
        image[position : position + size] = memory[:size]
        position += size
    return image


def numbers(image: bytearray, header: SegmentHeader = HEADER) -> list[int]:
    return [found.number for found in scan_segment(memoryview(image), header)]


# -- bytes -------------------------------------------------------------------------------------------------
def test_the_bytes_of_a_segment_header_do_not_change() -> None:
    page = encode_segment_header(HEADER)
    assert len(page) == PAGE_BYTES
    assert page[:64].hex() == (
        "514a5347" + page[4:8].hex() + "0001" + "0000" + "01020304" + "0000000000000003" + "000000000000000a"
        "000102030405060708090a0b0c0d0e0f" + "0000000000000002" + "0000000000000000"
    )
    assert page[2048:2112] == page[:64]
    assert decode_segment_header(page) == HEADER


def test_the_bytes_of_a_group_do_not_change() -> None:
    control = encode_control(Control(ControlKind.LAC, 5, -1))
    assert control.hex() == "5143544c" + "0002" + "0000" + "0000000000000005" + "ffffffffffffffff"
    image = written(HEADER, (10, [control]))
    group = image[PAGE_BYTES : PAGE_BYTES + 56]
    assert group[:4].hex() == "514a4752"
    assert (
        group[8:].hex() == "00000038" + "00000000" + "0000000000000003" + "000000000000000a" + control.hex()
    )


def test_records_come_back_in_order() -> None:
    block = one(1, 0, 300, count=3)
    controls = [
        Control(ControlKind.FENCE, 1),
        Control(ControlKind.TOMBSTONE, 2, 7),
        Control(ControlKind.LAC, 3, -1),
    ]
    image = written(HEADER, (10, [encode_control(controls[0]), block, *map(encode_control, controls[1:])]))
    (found,) = scan_segment(memoryview(image), HEADER)
    first, (header, view), *rest = records(bytes(image[found.offset : found.offset + found.length]))
    assert [first, *rest] == controls
    assert bytes(view) == block and (header.ledger_id, header.entry_count) == (1, 3)


def test_one_rotten_copy_of_a_header_does_no_harm_and_two_are_told() -> None:
    page = bytearray(encode_segment_header(HEADER))
    page[20] ^= 1
    assert decode_segment_header(page) == HEADER
    page[2048 + 20] ^= 1
    assert decode_segment_header(page) == BadSegment()
    assert decode_segment_header(bytes(PAGE_BYTES)) is None
    assert decode_segment_header(b"") is None


def test_of_a_torn_header_the_newer_epoch_holds() -> None:
    newer = encode_segment_header(HEADER._replace(epoch=4, first_number=99))
    for cut in (512, 2048):
        torn = newer[:cut] + encode_segment_header(HEADER)[cut:]
        header = decode_segment_header(torn)
        assert isinstance(header, SegmentHeader) and header.epoch == 4


# -- replay --------------------------------------------------------------------------------------------------
def test_groups_are_found_in_order_and_stale_ones_are_not() -> None:
    older = HEADER._replace(epoch=2, first_number=1, salt=99)
    image = written(older, *[(n, [one(1, n, 5000)]) for n in range(1, 5)])
    fresh = written(HEADER, (10, [one(1, 0)]), (11, [one(1, 1)]))
    image[: 3 * PAGE_BYTES] = fresh[: 3 * PAGE_BYTES]
    assert numbers(image) == [10, 11]


def test_a_clients_bytes_never_pass_for_a_group() -> None:
    """A message that holds a whole journal page of this very epoch, but not its salt."""
    forged = bytes(written(HEADER._replace(salt=0), (11, [one(9, 9)]))[PAGE_BYTES : 2 * PAGE_BYTES])
    # Aligned so that the forged page begins on a page of the segment, in a group that is torn.
    image = written(HEADER, (10, [one(1, 0)]))
    image[3 * PAGE_BYTES : 4 * PAGE_BYTES] = forged
    assert numbers(image) == [10]


@given(place=st.integers(0, 8 * 5 * PAGE_BYTES - 1))
def test_any_flipped_bit_loses_at_most_its_own_group(place: int) -> None:
    image = written(HEADER, *[(n, [one(1, n, 900)]) for n in range(10, 14)])
    image[place // 8] ^= 1 << place % 8
    touched = 10 + (place // 8 - PAGE_BYTES) // PAGE_BYTES if place // 8 >= PAGE_BYTES else None
    found = numbers(image)
    assert set(range(10, 14)) - set(found) <= {touched}
    assert found == sorted(found)


@pytest.mark.parametrize(
    ("groups", "replayed", "damage"),
    [
        ([10, 11, 12], [10, 11, 12], 0),
        ([10, 12], [10, 12], 1),  # one in the middle is missing: damage
        ([11, 12], [11, 12], 1),  # the first one is
        ([], [], 0),  # torn tail, or nothing at all
    ],
)
def test_a_missing_group_is_damage_only_with_a_later_one(
    groups: list[int], replayed: list[int], damage: int
) -> None:
    chain = Chain(mark=9)
    chain.segment("a", 10)
    assert [n for n in groups if chain.group("a", FoundGroup(n, 0, 0), None)] == replayed
    assert len(chain.damage) == damage


def test_a_later_epoch_says_where_the_one_before_it_ended() -> None:
    chain = Chain(mark=9)
    chain.segment("a", 10)
    assert chain.group("a", FoundGroup(10, 0, 0), 11)
    assert not chain.group("a", FoundGroup(11, 0, 0), 11)  # was judged torn once: its number was given away
    chain.segment("b", 11)
    assert chain.group("b", FoundGroup(11, 0, 0), None)
    assert not chain.damage

    chain = Chain(mark=9)
    chain.segment("a", 10)
    chain.segment("b", 11)
    assert "groups 10 to 10" in chain.damage[0] and "before b" in chain.damage[0]


def test_groups_before_the_mark_are_not_replayed() -> None:
    chain = Chain(mark=11)
    chain.segment("a", 10)
    assert [n for n in (10, 11, 12) if chain.group("a", FoundGroup(n, 0, 0), None)] == [12]
    assert not chain.damage


def test_only_segments_behind_the_mark_are_needed() -> None:
    headers = [(str(n), HEADER._replace(epoch=n, first_number=n * 10)) for n in (3, 1, 2)]
    needed = {mark: [name for name, _ in segments_needed(headers, mark)] for mark in (10, 18, 19, 29, 99)}
    assert needed == {10: ["1", "2", "3"], 18: ["1", "2", "3"], 19: ["2", "3"], 29: ["3"], 99: ["3"]}


# -- the queue -----------------------------------------------------------------------------------------------
def test_a_group_takes_all_that_waits_and_one_is_in_flight() -> None:
    queue = GroupQueue(1)
    queue.append([b"a"], 1, ignore, ())
    first = queue.begin()
    assert first is not None and first.number == 1
    for _ in range(3):
        queue.append([b"b"], 1, ignore, ())
    assert queue.begin() is None
    assert queue.written() is first and queue.durable_number == 1
    second = queue.begin()
    assert second is not None and (second.number, second.parts) == (2, [b"b"] * 3)


def test_a_group_is_bounded_and_never_spans_a_seal() -> None:
    queue = GroupQueue(1, bytes_max=GROUP_HEADER_BYTES + 2 * CONTROL_BYTES)
    for _ in range(3):
        queue.append([b"x" * CONTROL_BYTES], CONTROL_BYTES, ignore, ())
    assert queue.seal() == 2
    queue.append([b"y" * CONTROL_BYTES], CONTROL_BYTES, ignore, ())
    sizes = []
    while (group := queue.begin()) is not None:
        sizes.append((group.number, len(group.parts)))
        queue.written()
    assert sizes == [(1, 2), (2, 1), (3, 1)]
    assert queue.seal() == 3


def test_a_barrier_waits_for_the_newest_group() -> None:
    queue = GroupQueue(1)
    assert not queue.barrier(ignore, ())
    queue.append([b"a"], 1, ignore, ())
    queue.begin()
    assert queue.barrier(ignore, ())
    assert queue.in_flight is not None and len(queue.in_flight.waiters) == 2
    queue.append([b"b"], 1, ignore, ())
    assert queue.barrier(ignore, ())
    queue.written()
    second = queue.begin()
    assert second is not None and len(second.waiters) == 2


def test_a_dead_journal_gives_back_everything_that_waits() -> None:
    queue = GroupQueue(1, bytes_max=GROUP_HEADER_BYTES + 1)
    for _ in range(3):
        queue.append([b"a"], 1, ignore, ())
    queue.begin()
    assert [group.number for group in queue.fail()] == [1, 2, 3]
    assert queue.begin() is None


@pytest.mark.parametrize(
    "record",
    [
        b"abc",
        encode_control(Control(ControlKind.FENCE, 5))[:-1],
        encode_control(Control(ControlKind.FENCE, 5)).replace(b"QCTL\0\1", b"QCTL\0\7"),
    ],
    ids=["too short", "cut short", "of no kind"],
)
def test_a_group_with_what_is_no_record_says_so(record: bytes) -> None:
    whole = encode_control(Control(ControlKind.LAC, 5, 3))
    found = records(bytes(GROUP_HEADER_BYTES) + whole + record)
    assert next(found) == Control(ControlKind.LAC, 5, 3)
    with pytest.raises(BlockError):
        next(found)
