"""The table of `zookeeper_session`, row by row, with a session time-out of 12 s and a clock that the test holds."""

from __future__ import annotations

import pytest

from quire.metadata.store import SessionEvent
from quire.metadata.zookeeper_session import SessionCore, SessionState

TIMEOUT_S = 12.0


def connected(at: float = 100.0, session_id: int = 7) -> SessionCore:
    core = SessionCore(30.0)
    assert core.connected(session_id, TIMEOUT_S, at) is None
    return core


def test_the_first_connection_tells_nothing_and_brings_the_granted_time_out() -> None:
    core = connected()
    assert (core.state, core.session_id, core.timeout_s) == (SessionState.CONNECTED, 7, TIMEOUT_S)


def test_a_drop_is_told_once_and_the_same_session_resumes() -> None:
    core = connected()
    assert core.dropped() is SessionEvent.SUSPENDED
    assert core.dropped() is None
    assert core.connected(7, TIMEOUT_S, 103.0) is SessionEvent.RESUMED
    assert core.tick(110.9) is None
    assert core.tick(111.0) is SessionEvent.SUSPENDED  # two thirds after 103


def test_silence_puts_the_session_in_doubt_and_an_answer_ends_the_doubt() -> None:
    core = connected()
    assert core.tick(107.9) is None
    assert core.tick(108.0) is SessionEvent.SUSPENDED
    assert core.tick(109.0) is None
    assert core.answered(107.0) is SessionEvent.RESUMED
    assert core.answered(107.5) is None


def test_the_session_is_lost_a_time_out_after_the_last_question_that_was_answered() -> None:
    core = connected()
    assert core.answered(105.0) is None
    assert core.dropped() is SessionEvent.SUSPENDED
    assert core.tick(116.9) is None
    assert core.tick(117.0) is SessionEvent.LOST
    assert (core.state, core.gave_up) == (SessionState.CONNECTING, 7)
    assert core.tick(200.0) is None


def test_an_answer_to_an_older_question_does_not_turn_the_clock_back() -> None:
    core = connected()
    core.answered(110.0)
    core.answered(103.0)
    assert core.tick(117.9) is None
    assert core.tick(118.0) is SessionEvent.SUSPENDED


def test_a_session_that_was_given_up_is_not_taken_up_again() -> None:
    core = connected()
    core.tick(112.0)
    with pytest.raises(AssertionError):
        core.connected(7, TIMEOUT_S, 113.0)
    assert core.connected(8, TIMEOUT_S, 113.0) is None
    assert core.gave_up == 0


def test_the_server_says_that_the_session_expired() -> None:
    core = connected()
    core.dropped()
    assert core.expired() is SessionEvent.LOST
    assert core.expired() is None
    assert core.gave_up == 0
    assert core.connected(8, TIMEOUT_S, 105.0) is None


def test_another_session_without_a_word_about_the_old_one_is_a_loss() -> None:
    core = connected()
    core.dropped()
    assert core.connected(8, TIMEOUT_S, 105.0) is SessionEvent.LOST
    assert core.state is SessionState.CONNECTED


def test_answers_mean_nothing_before_the_handshake_and_after_the_loss() -> None:
    core = SessionCore(TIMEOUT_S)
    assert core.answered(1.0) is core.dropped() is core.expired() is core.tick(99.0) is None
    assert core.state is SessionState.CONNECTING


def test_it_asks_once_for_each_silence() -> None:
    core = connected()
    assert not core.should_ask(102.9)
    assert core.should_ask(103.0)
    assert not core.should_ask(104.0)
    core.answered(103.0)
    assert not core.should_ask(105.9)
    assert core.should_ask(106.0)


def test_it_wakes_when_something_is_due_and_not_before() -> None:
    core = connected()
    assert core.wake_in(100.0) == 3.0
    core.should_ask(103.0)
    assert core.wake_in(103.0) == 5.0
    core.tick(108.0)
    assert core.wake_in(108.0) == 4.0
    assert core.wake_in(500.0) == 0.0
