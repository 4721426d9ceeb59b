"""The checks of the kill test notice what they are for."""

from __future__ import annotations

import re
from random import Random

import pytest

from .load import Follower, Log, Published, number_of, payload_of
from .raw import Delivered


def stream_in_doubt(*numbers: int, numbered: bool = False) -> Published:
    made = Published("topic", numbered=numbered)
    made.in_doubt.update(numbers)
    return made


def test_what_is_allowed_passes() -> None:
    stream_in_doubt(3, 4).check({0, 1, 2}, [[0, 1, 2, 3, 4, 3, 4, 5]])
    stream_in_doubt().check({0, 1}, [[0, 2], [1, 3]])
    stream_in_doubt(0, 1, numbered=True).check({0, 1}, [[0, 1]])


@pytest.mark.parametrize(
    ("acknowledged", "logs", "complaint"),
    [
        ({0, 1, 2}, [[0, 1]], "lost"),
        ({0}, [[0, 1, 1]], "doubled"),
        ({0}, [[0, 2]], "gap"),
        ({0}, [[0, 2, 1]], "out of order"),
        ({0}, [[0, 3, 2], [1]], "out of order"),
    ],
)
def test_what_is_wrong_is_noticed(acknowledged: set[int], logs: list[list[int]], complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        stream_in_doubt().check(acknowledged, logs)


def test_a_duplicate_is_never_allowed_where_they_are_dropped() -> None:
    with pytest.raises(AssertionError, match=re.escape("1 is there 2 times")):
        stream_in_doubt(1, numbered=True).check({0, 1}, [[0, 1, 1]])


def test_a_message_with_other_bytes_is_noticed() -> None:
    assert number_of(payload_of(12)) == 12
    with pytest.raises(AssertionError):
        number_of(payload_of(12)[:-1] + b"?")


def delivered(entry: int) -> Delivered:
    return Delivered(1, (1, entry), [payload_of(entry)], [0], 0)


def test_an_acknowledged_message_that_comes_back_is_noticed() -> None:
    follower = Follower("topic", "name", Random(0))
    follower.answered.add(((1, 5), 0))
    follower._take(delivered(4))
    assert not follower.problems
    follower._take(delivered(5))
    assert follower.problems


def test_a_cumulative_acknowledgement_covers_what_lies_before() -> None:
    follower = Follower("topic", "name", Random(0), cumulative=True)
    follower.answered_up_to = (1, 5)
    follower._take(delivered(6))
    assert not follower.problems
    follower._take(delivered(4))
    assert follower.problems


def test_a_backlog_must_fit_the_acknowledgements() -> None:
    log = Log("topic")
    log.positions, log.entries = [(1, 0), (1, 1), (1, 2)], [[0], [1], [2]]
    follower = Follower("topic", "name", Random(0))
    follower.asked = {((1, 0), 0), ((1, 1), 0)}
    follower.answered = {((1, 0), 0)}
    for backlog in (1, 2):
        follower.check_backlog(log, backlog, 3, 3)
    for backlog in (0, 3):
        with pytest.raises(AssertionError):
            follower.check_backlog(log, backlog, 3, 3)
