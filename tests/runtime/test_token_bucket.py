"""Token buckets against what they promise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.runtime.token_bucket import TokenBucket


def test_a_bucket_starts_with_a_second_s_worth_and_goes_into_debt() -> None:
    bucket = TokenBucket(100, 0.0)
    assert bucket.wait_s(0.0) == 0
    bucket.take(150)
    assert bucket.wait_s(0.0) == pytest.approx(0.51)
    assert bucket.wait_s(0.5) == pytest.approx(0.01)
    assert bucket.wait_s(0.511) == 0
    bucket.take(1)
    assert bucket.wait_s(1000.0) == 0
    bucket.take(100)
    assert bucket.wait_s(1000.0) > 0, "what was not used is not saved up"


@given(
    st.floats(0.5, 10_000),
    st.lists(st.tuples(st.floats(0, 3), st.integers(1, 5000)), max_size=80),
)
def test_over_any_time_no_more_passes_than_promised(rate: float, arrivals: list[tuple[float, int]]) -> None:
    bucket, now = TokenBucket(rate, 0.0), 0.0
    passed: list[tuple[float, int]] = []
    for pause_s, count in arrivals:
        now += pause_s
        wait_s = bucket.wait_s(now)
        now += wait_s * 1.000001 + 1e-9 if wait_s else 0.0
        assert bucket.wait_s(now) <= 1e-6, "who waited as long as told may pass"
        bucket.take(count)
        passed.append((now, count))
    for first, (since, _) in enumerate(passed):
        for last in range(first, len(passed)):
            until, newest = passed[last]
            total = sum(count for _, count in passed[first : last + 1])
            assert total - newest <= rate * (until - since + 1) * 1.0001 + 1


def test_reservations_keep_the_rate_over_any_time() -> None:
    bucket = TokenBucket(1_000, 100.0, step=0)
    now = 100.0
    waited = 0.0
    for _ in range(50):
        wait_s = bucket.reserve(500, now)
        now += wait_s
        waited += wait_s
    assert waited == pytest.approx(24), "25,000 tokens, a second's worth of which was saved up"


def test_reservations_of_concurrent_tasks_wait_one_after_the_other() -> None:
    bucket = TokenBucket(1_000, 0.0, burst=0, step=0)
    assert [bucket.reserve(500, 0.0) for _ in range(3)] == pytest.approx([0.5, 1.0, 1.5])
    assert bucket.wait_s(1.0) == pytest.approx(0.5)
    assert bucket.reserve(100, 10.0) == pytest.approx(0.1), "nothing is saved up without a burst"


@pytest.mark.parametrize("began", [0.1, 1e6, 1e9])
def test_a_caller_that_waited_as_long_as_told_is_admitted(began: float) -> None:
    """Even if the clock cannot show the end of the wait exactly."""
    for size in range(1, 2_000):
        bucket = TokenBucket(64 << 20, began, burst=0)
        now = began
        now += bucket.reserve(size * 7919, now)
        assert bucket.wait_s(now) == 0
