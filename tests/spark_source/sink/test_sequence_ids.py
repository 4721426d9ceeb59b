"""What numbers entries get, and what a broker's record of them tells."""

from __future__ import annotations

import pytest

from quire.spark_source.sink.sequence_ids import (
    DIGEST_BITS,
    ENTRIES_MAX,
    EPOCHS,
    EpochOver,
    ReplayDiffers,
    SequenceIds,
    routing_of,
)
from quire.wire.message import OutgoingMessage

ENTRIES = [[OutgoingMessage(b"%d-%d" % (i, j)) for j in range(3)] for i in range(5)]


def lasts(entries: list[list[OutgoingMessage]], epoch: int = 0) -> list[int]:
    ids = SequenceIds(epoch)
    return [ids.next(one).last for one in entries]


def test_numbers_grow_over_entries_and_epochs_and_are_the_same_again() -> None:
    seen = -1
    for epoch in (0, 1, 2, EPOCHS - 1):
        ids = SequenceIds(epoch)
        for one in ENTRIES:
            first, last = ids.next(one)
            assert seen < first <= last < 1 << 63
            seen = last
    assert lasts(ENTRIES, 7) == lasts(ENTRIES, 7) == lasts(ENTRIES, 7 + EPOCHS)


def test_an_entry_of_one_row_has_one_number() -> None:
    ids = SequenceIds(3)
    first, last = ids.next([OutgoingMessage(b"x")])
    assert first == last


@pytest.mark.parametrize("stored", range(1, 6))
def test_the_same_rows_go_on_wherever_they_broke_off(stored: int) -> None:
    ids = SequenceIds(2)
    ids.recorded(lasts(ENTRIES, 2)[stored - 1])
    for one in ENTRIES:
        ids.next(one)
    ids.end()


def test_what_earlier_epochs_wrote_says_nothing() -> None:
    ids = SequenceIds(2)
    ids.recorded(lasts(ENTRIES, 1)[-1])
    ids.recorded(-1)
    ids.end()


OTHER = {
    "a row less": [ENTRIES[0][:2], *ENTRIES[1:]],
    "a row more": [[*ENTRIES[0], OutgoingMessage(b"x")], *ENTRIES[1:]],
    "another order": [ENTRIES[0][::-1], *ENTRIES[1:]],
    "another value": [[*ENTRIES[0][:2], OutgoingMessage(b"x")], *ENTRIES[1:]],
    "another key": [[*ENTRIES[0][:2], OutgoingMessage(b"0-2", key="k")], *ENTRIES[1:]],
    "another property": [[*ENTRIES[0][:2], OutgoingMessage(b"0-2", properties={"a": "b"})], *ENTRIES[1:]],
    "a null value": [[*ENTRIES[0][:2], OutgoingMessage(None)], *ENTRIES[1:]],
    "rows cut otherwise": [[OutgoingMessage(b"0-00-"), OutgoingMessage(b"10-2")], *ENTRIES[1:]],
}


@pytest.mark.parametrize("other", OTHER.values(), ids=OTHER)
def test_other_rows_are_refused_before_anything_new_is_numbered(other: list[list[OutgoingMessage]]) -> None:
    ids = SequenceIds(0)
    ids.recorded(lasts(ENTRIES)[2])
    ids.next(other[0])
    ids.next(other[1])
    with pytest.raises(ReplayDiffers, match="row_order=content"):
        ids.next(other[2])


def test_fewer_rows_are_refused_in_the_end() -> None:
    ids = SequenceIds(0)
    ids.recorded(lasts(ENTRIES)[-1])
    for one in ENTRIES[:3]:
        ids.next(one)
    with pytest.raises(ReplayDiffers, match="fewer rows"):
        ids.end()


def test_a_record_that_comes_after_the_rows_is_compared_too() -> None:
    ids = SequenceIds(0)
    for one in OTHER["another order"]:
        ids.next(one)
    with pytest.raises(ReplayDiffers):
        ids.recorded(lasts(ENTRIES)[1])


def test_some_chunks_of_a_message_are_a_beginning() -> None:
    large = [[OutgoingMessage(b"%d" % i)] for i in range(3)]
    ids = SequenceIds(0)
    ids.recorded(lasts(large)[1] - 1)
    for one in large:
        ids.next(one)
    ids.end()


def test_an_epoch_that_is_over() -> None:
    ids = SequenceIds(4)
    with pytest.raises(EpochOver, match="checkpoint"):
        ids.recorded(lasts(ENTRIES, 5)[0])


def test_an_epoch_has_so_many_entries() -> None:
    assert lasts(ENTRIES[:1], 1)[0] >> DIGEST_BITS == 2 * ENTRIES_MAX


# -- topics that have grown ------------------------------------------------------------------------------


@pytest.mark.parametrize("routes", [1, 2, 16, 250, 251, 252, 9999])
def test_numbers_of_a_grown_topic_contain_its_routes(routes: int) -> None:
    ids = SequenceIds(3, routes)
    seen = lasts(ENTRIES, 3)[-1]
    for one in ENTRIES:
        first, last = ids.next(one)
        assert seen < first < last < lasts(ENTRIES[:1], 4)[0]
        seen = last
        for stored in (last, last - 1):  # less one: the first chunks of a message
            assert routing_of({0: stored, 1: -1}, 3, routes + 5, routes) == (routes, True)
    again = SequenceIds(3, routes)
    again.recorded(seen)
    for one in ENTRIES:
        again.next(one)
    again.end()


def test_an_epoch_of_which_nothing_is_stored_goes_to_all_partitions() -> None:
    before = SequenceIds(2, 4).next(ENTRIES[0]).last
    assert routing_of({0: before, 1: -1}, 3, 8, 4) == (8, True)


def test_rows_from_before_the_growth_keep_their_numbers() -> None:
    assert routing_of({0: lasts(ENTRIES, 3)[1], 1: -1}, 3, 8, 2) == (2, False)


@pytest.mark.parametrize(
    "recorded",
    [
        {3: lasts(ENTRIES, 3)[0]},  # beyond the partitions that there were
        {0: lasts(ENTRIES, 3)[0], 1: SequenceIds(3, 4).next(ENTRIES[0]).last},
        {0: SequenceIds(3, 9).next(ENTRIES[0]).last},  # more than there are
    ],
)
def test_a_routing_that_cannot_be_known_is_refused(recorded: dict[int, int]) -> None:
    with pytest.raises(ReplayDiffers, match="another, unknown number of partitions"):
        routing_of(recorded, 3, 8, 2)


def test_rows_of_two_routings_are_never_taken_for_each_other() -> None:
    ids = SequenceIds(3, 4)
    with pytest.raises(ReplayDiffers, match="another number of partitions"):
        ids.recorded(lasts(ENTRIES, 3)[0])
    older = SequenceIds(3)
    older.recorded(SequenceIds(3, 4).next(ENTRIES[0]).last)
    older.next(ENTRIES[0])
    with pytest.raises(ReplayDiffers, match="fewer rows"):
        older.end()
