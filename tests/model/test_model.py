"""With all rules nothing is wrong within the bounds; without any one of them something is, and the search says how."""

from __future__ import annotations

from functools import cache

import pytest

from quire.ledger.writer_core import WriterCore
from quire.metadata.records import Fragment
from quire.wire.bookie import Status
from tests.model import machines
from tests.model.__main__ import main
from tests.model.invariants import wrong
from tests.model.machines import BOOKIES, Machines, one_entry
from tests.model.omissions import OMISSIONS, Omission
from tests.model.search import Found, TooMany, search, tell
from tests.model.world import Bounds, World

SOUND = (
    Bounds(bookies=3, entries=1, recoveries=1),
    Bounds(bookies=3, entries=1, recoveries=2, prompt=True),
    Bounds(bookies=3, entries=2, recoveries=1, prompt=True),
    Bounds(bookies=4, entries=1, recoveries=1, timeouts=1),
    Bounds(bookies=4, entries=2, recoveries=0, timeouts=1, prompt=True),
    Bounds(bookies=4, entries=1, recoveries=1, wipes=1, prompt=True),
)


@pytest.mark.parametrize("bounds", SOUND, ids=str)
def test_with_all_rules_nothing_goes_wrong(bounds: Bounds) -> None:
    found = search(World(bounds))
    print(found)
    assert not found.wrong, str(found)
    assert found.states > 1000, "the world hardly moves"


HISTORY = [
    "writer: adds entry 0 (LAC -1)",
    "b1: gets entry 0 and says OK",
    "R1: takes over",
    "R1: fences at b1: NO_SUCH_ENTRY, LAC -1",
    "R1: fences at b2: NO_SUCH_ENTRY, LAC -1",
    "R1: reads entry 0 at b2: NO_SUCH_ENTRY, LAC -1",
    "R1: reads entry 0 at b3: NO_SUCH_ENTRY, LAC -1",
    "b3: gets entry 0 and says OK; entry 0 is CONFIRMED",
    "R1: CLOSES the ledger at -1",
]


@cache
def counter_example(omission: Omission) -> Found:
    with omission.applied():
        return search(World(omission.bounds, omission.words))


def named(name: str) -> Omission:
    return next(each for each in OMISSIONS if each.name == name)


@pytest.mark.parametrize("omission", OMISSIONS, ids=lambda omission: omission.name)
def test_without_a_rule_something_goes_wrong(omission: Omission) -> None:
    found = counter_example(omission)
    print(found)
    assert found.wrong, f"nobody misses rule {omission.rule}, {omission.name}"
    assert found.history


@pytest.mark.parametrize(
    "omission", [each for each in OMISSIONS if each.words], ids=lambda omission: omission.name
)
def test_with_the_rule_the_same_moves_do_no_harm(omission: Omission) -> None:
    """Either one of them cannot be made any more, or all is well after each."""
    world = World(omission.bounds)
    state = world.first()
    for line in counter_example(omission).history:
        after = next((after for label, after in world.moves(state) if line.startswith(tell(label))), None)
        if after is None:
            return
        state = after
        assert not wrong(state)


def test_a_counter_example_reads_as_a_history() -> None:
    """The classic one: absent where it was looked for, then confirmed by the one bookie that was never fenced."""
    found = counter_example(named("fencing reads"))
    assert found.wrong == "entry 0 was confirmed and lies beyond the end, -1"
    assert found.history == HISTORY


def test_a_counter_example_is_told_by_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["without=enough negatives"]) == 0
    told = capsys.readouterr().out
    assert "rule 12" in told and "R1: CLOSES the ledger at -1" in told
    assert main(["bookies=3", "recoveries=0"]) == 0
    assert "all rules" in capsys.readouterr().out


def test_too_large_a_search_says_so() -> None:
    with pytest.raises(TooMany, match="more than 100 states"):
        search(World(Bounds()), states_max=100)


FRAGMENTS = (Fragment(first_entry=0, bookies=tuple(map(str, BOOKIES[:3]))),)


def test_a_step_leaves_the_core_that_it_began_with_alone() -> None:
    cores = Machines()
    before = cores.writer(FRAGMENTS, 2)
    after, effects = cores.step(before, machines.add, 0, one_entry(0, -1))
    assert after != before and [type(effect) for effect in effects] == [machines.Send] * 3
    assert cores.specimen(before).last_added == -1 and cores.specimen(after).last_added == 0
    assert cores.step(before, machines.add, 0, one_entry(0, -1)) == (after, effects)


def test_cores_that_came_by_different_ways_to_the_same_are_the_same() -> None:
    cores = Machines()
    number, _ = cores.step(cores.writer(FRAGMENTS, 2), machines.add, 0, one_entry(0, -1))
    ends = set()
    for first, second in ((0, 1), (1, 0)):
        between, _ = cores.step(number, machines.answered, 0, first, 1 << first, Status.OK)
        ends.add(cores.step(between, machines.answered, 0, second, 1 << second, Status.OK)[0])
    assert len(ends) == 1


def test_nothing_that_a_core_holds_is_overlooked() -> None:
    """Two cores that differ in any one attribute are two cores."""
    cores = Machines()
    specimen: WriterCore = cores.specimen(cores.writer(FRAGMENTS, 2))
    before = machines.contents(specimen, {})
    for name in WriterCore.__slots__:
        value = getattr(specimen, name, None)
        if isinstance(value, bool | int):
            setattr(specimen, name, value + 1)
            assert machines.contents(specimen, {}) != before, name
            setattr(specimen, name, value)
