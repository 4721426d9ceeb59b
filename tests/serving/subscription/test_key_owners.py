"""Who owns which slots: shares, stability, ranges."""

from __future__ import annotations

from itertools import pairwise
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.serving.model.request import SubscribeRequest, SubscriptionKind
from quire.serving.subscription.delivery.consumer import Consumer
from quire.serving.subscription.dispatch.key_owners import (
    RANGES_MAX,
    AutoSplit,
    ConsumerAssignError,
    KeyOwners,
    Sticky,
)
from quire.wire.hashing import SLOTS
from tests.serving.subscription.fakes import FakePort


def consumer(name: str, *ranges: tuple[int, int]) -> Consumer:
    request = SubscribeRequest("s", SubscriptionKind.KEY_SHARED, 1, name, key_ranges=ranges)
    return Consumer(FakePort(), request)


def all_owners(owners: KeyOwners) -> list[Consumer | None]:
    return [owners.owner(slot) for slot in range(SLOTS)]


def test_auto_split_gives_equal_names_shares_of_about_equal_size() -> None:
    owners, same = AutoSplit(), [consumer("same") for _ in range(5)]
    for one in same:
        owners.add(one)
    found = all_owners(owners)
    assert all(SLOTS / 5 * 0.6 < found.count(one) < SLOTS / 5 * 1.4 for one in same)


def test_who_joins_takes_and_who_leaves_gives_back_and_nothing_else_moves() -> None:
    owners = AutoSplit()
    first, second, third = map(consumer, "abc")
    assert owners.owner(0) is None
    owners.add(first)
    owners.add(second)
    before = all_owners(owners)
    owners.add(third)
    during = all_owners(owners)
    assert all(b is d or d is third for b, d in zip(before, during, strict=True))
    assert third in during
    owners.remove(third)
    assert all_owners(owners) == before
    owners.remove(first)
    again = consumer("a")
    owners.add(again)
    assert [again if one is first else one for one in before] == all_owners(owners), "a name keeps its slots"


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=6))
def test_ranges_of_auto_split_are_the_slots_owned(names: list[str]) -> None:
    owners, made = AutoSplit(), [consumer(name) for name in names]
    for one in made:
        owners.add(one)
    covered: list[tuple[int, int]] = []
    for one in made:
        ranges = owners.ranges(one)
        assert all(owners.owner(first) is owners.owner(last) is one for first, last in ranges)
        covered += ranges
    covered.sort()
    assert covered[0][0] == 0 and covered[-1][1] == SLOTS - 1
    assert all(a[1] + 1 == b[0] for a, b in pairwise(covered))


def test_sticky_ranges_may_not_meet_and_are_free_again() -> None:
    owners, first = Sticky(), consumer("a", (100, 200), (0, 50))
    owners.add(first)
    for bad in ((50, 60), (0, 0), (150, 150), (90, 300)):
        with pytest.raises(ConsumerAssignError, match="consumer 'a'"):
            owners.add(consumer("b", bad))
    second = consumer("b", (51, 99))
    owners.add(second)
    assert [owners.owner(slot) for slot in (0, 50, 51, 99, 100, 200, 201)] == [
        first, first, second, second, first, first, None,
    ]  # fmt: skip
    assert owners.ranges(first) == [(0, 50), (100, 200)]
    owners.remove(first)
    assert owners.owner(0) is None and owners.owner(60) is second
    owners.add(consumer("c", (0, 50)))


def test_a_consumer_may_not_ask_for_any_number_of_ranges() -> None:
    with pytest.raises(ConsumerAssignError):
        Sticky().add(consumer("a", *((2 * number, 2 * number) for number in range(1_001))))


def test_the_ring_is_built_when_a_slot_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    builds = 0
    build = AutoSplit._build

    def counted(owners: AutoSplit) -> None:
        nonlocal builds
        builds += 1
        build(owners)

    monkeypatch.setattr(AutoSplit, "_build", counted)
    owners, made = AutoSplit(), [consumer(f"c{number}") for number in range(100)]
    for one in made:
        owners.add(one)
    assert owners.owner(7) in made and owners.owner(8) in made and owners.ranges(made[0])
    assert builds == 1
    for one in made[1:]:
        owners.remove(one)
    assert owners.owner(7) is made[0] and builds == 2
    owners.clear()
    assert owners.owner(7) is None and not owners.ranges(made[0])


def test_sticky_ranges_are_compared_with_their_neighbours_alone() -> None:
    owners = Sticky()
    step = SLOTS // RANGES_MAX - 1
    made = [
        consumer(f"c{at}", *((first, first) for first in range(at, at + step * RANGES_MAX, step)))
        for at in range(step - 1)
    ]
    for one in made:
        owners.add(one)
    last = made.pop()
    began = process_time()
    for _ in range(10):
        with pytest.raises(ConsumerAssignError):
            owners.add(last)
    owners.remove(last)
    owners.add(last)
    assert process_time() - began < 1, "each of 1,000 ranges with 62,000 taken ones takes a second by itself"
    assert owners.ranges(last) == sorted(last.request.key_ranges)
    assert owners.ranges(made[0]) == sorted(made[0].request.key_ranges)


@pytest.mark.parametrize("is_sticky", [False, True])
def test_the_slots_of_all_consumers_take_one_look_at_the_ring(is_sticky: bool) -> None:
    """As `stats` asks for: one pass over the ring for each consumer takes seconds."""
    owners: KeyOwners = Sticky() if is_sticky else AutoSplit()
    made = [consumer(f"c{at}", *((slot, slot) for slot in range(at, SLOTS, 500))) for at in range(500)]
    for one in made:
        owners.add(one)
    owners.owner(0)
    began = process_time()
    found = [owners.ranges(one) for one in made]
    assert process_time() - began < 0.5
    assert sum(last - first + 1 for some in found for first, last in some) == SLOTS
