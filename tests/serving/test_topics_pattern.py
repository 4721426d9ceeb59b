"""Patterns for topics' names: what matches, what is refused, and that none of them takes the broker's time."""

from __future__ import annotations

import pytest

from quire.runtime.clock import ManualClock
from quire.runtime.errors import ConfigurationError, LimitExceeded
from quire.runtime.limits import TOPICS_MATCH_S_MAX, TOPICS_PATTERN_CHARS_MAX
from quire.serving.model.topics_pattern import TopicsPattern, topics_hash
from quire.serving.session.topic_watch import NAMES_A_TURN, matching

pytest.importorskip("re2", reason="RE2 cannot be installed on this machine")
TOPIC = "persistent://public/default/orders-eu"


@pytest.mark.parametrize(
    "pattern",
    [
        "persistent://public/default/orders-.*",
        "non-persistent://public/default/orders-.*",
        "public/default/orders-.*",
        "^persistent://public/default/orders-eu$",
        r"\Qpersistent://public/default/orders-\E(eu|us)",
        ".*",
    ],
)
def test_a_pattern_is_about_the_whole_name_without_its_domain(pattern: str) -> None:
    assert TopicsPattern(pattern).matches(TOPIC)
    assert TopicsPattern(pattern).matches(TOPIC + "-partition-12"), "a partition is matched as its topic"


@pytest.mark.parametrize("pattern", ["public/default/orders", "orders-eu", "", "persistent://a/default/.*"])
def test_and_about_nothing_less(pattern: str) -> None:
    assert not TopicsPattern(pattern).matches(TOPIC)


@pytest.mark.parametrize(
    "pattern", ["(", "a(?=b)", r"(a)\1", "x" * (TOPICS_PATTERN_CHARS_MAX + 1), "((a{100}){100}){100}", "*"]
)
def test_a_pattern_that_cannot_be_taken_is_refused_in_words(pattern: str) -> None:
    with pytest.raises(ConfigurationError, match="pattern"):
        TopicsPattern(pattern)


def test_what_makes_other_engines_hang_takes_no_time_to_speak_of() -> None:
    """Backtracking would take longer than the universe has."""
    pattern = TopicsPattern(r"public/default/((x+)+)+y")
    assert not pattern.matches("persistent://public/default/" + "x" * 400)


class SlowPattern(TopicsPattern):
    """Each name takes a hundredth of a second of the clock."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(".*")
        self._clock = clock
        self.names = 0

    def matches(self, topic: str) -> bool:
        self._clock.advance_ms(10)
        self.names += 1
        return True


async def test_matching_that_takes_too_long_ends() -> None:
    clock = ManualClock()
    pattern = SlowPattern(clock)
    with pytest.raises(LimitExceeded, match="simpler"):
        await matching(pattern, [TOPIC] * 10_000, clock)
    assert pattern.names <= 100 * TOPICS_MATCH_S_MAX + NAMES_A_TURN


def test_the_hash_is_that_of_the_java_client() -> None:
    """Guava's CRC-32C over the sorted names, joined by commas."""
    assert topics_hash([]) == "00000000"
    assert topics_hash(["123456789"]) == "839206e3", "the check value 0xe3069283, lowest byte first"
    assert topics_hash(["b", "a"]) == topics_hash(["a", "b"]) == topics_hash(["a,b"])
