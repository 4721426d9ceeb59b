"""Token buckets against what they promise, and the limiters that producers and subscriptions wait at."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.metadata.records import DispatchRate, PublishRate
from quire.runtime.clock import ManualClock
from quire.runtime.token_bucket import TokenBucket
from quire.serving.policy.rate_limiter import RateLimiter, dispatch_rate_limiter, publish_rate_limiter
from quire.serving.policy.resolved import TopicPolicies


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


def test_the_slower_of_both_kinds_counts() -> None:
    clock = ManualClock()
    limiter = RateLimiter(10, 1000, clock)
    limiter.passed(1, 3000)
    assert limiter._wait_s() == pytest.approx(2.001)
    limiter.passed(40, 0)
    assert limiter._wait_s() == pytest.approx(3.2)
    assert RateLimiter(1, 0, clock).is_open()


def test_dispatching_waits_until_some_of_the_rate_has_gathered() -> None:
    clock = ManualClock()
    limiter = dispatch_rate_limiter(DispatchRate(messages=1000, bytes=5000, period_s=10), clock)
    assert limiter is not None and limiter.is_open()
    assert limiter.allowance() == (1000, 5000), "a period's worth at once"
    limiter.passed(998, 0)
    assert limiter._wait_s() == pytest.approx(0.03), "5 are a twentieth of a second's worth, and 2 are left"
    clock.advance_ms(30)
    assert limiter.is_open() and limiter.allowance() == (5, 5000)
    assert dispatch_rate_limiter(DispatchRate(), clock) is None


def test_what_a_part_is_allowed_is_what_all_wider_ones_allow() -> None:
    clock = ManualClock()
    wider = RateLimiter(0, 50, clock)
    limiter = RateLimiter(10, 100, clock, wider)
    assert limiter.is_open() and limiter.allowance() == (10, 50)
    limiter.passed(1, 60)
    assert not limiter.is_open() and not wider.is_open()
    assert limiter.allowance() == (9, 1)


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


def limited(rate: int, clock: ManualClock) -> RateLimiter:
    limiter = publish_rate_limiter(TopicPolicies(publish_rate=PublishRate(messages_per_s=rate)), clock)
    assert limiter is not None
    return limiter


def test_policies_that_limit_nothing_have_no_limiter() -> None:
    assert publish_rate_limiter(TopicPolicies(), ManualClock()) is None


def test_a_limit_on_the_size_of_messages_has_one_that_is_always_open() -> None:
    limiter = publish_rate_limiter(TopicPolicies(message_bytes_max=5), ManualClock())
    assert limiter is not None
    limiter.passed(1 << 40, 1 << 60)
    assert limiter.is_open()


async def test_who_waits_is_let_in_one_by_one_in_order() -> None:
    clock = ManualClock()
    limiter = limited(10, clock)
    limiter.passed(20, 0)
    let_in: list[str] = []

    def come(name: str) -> None:
        if limiter.is_open():
            limiter.passed(10, 0)
            let_in.append(name)
        else:
            limiter.wait(lambda: come(name))

    for name in "abc":
        come(name)
    assert let_in == []
    for expected in ("a", "ab", "abc"):
        clock.advance_ms(1200)
        limiter._release()
        assert "".join(let_in) == expected


async def test_a_newcomer_does_not_overtake_who_waits() -> None:
    clock = ManualClock()
    limiter = limited(10, clock)
    limiter.passed(20, 0)
    told: list[str] = []
    limiter.wait(lambda: told.append("waited"))
    clock.advance_ms(60_000)
    assert not limiter.is_open(), "the timer has not fired yet, and somebody is before it"
    limiter._release()
    assert told == ["waited"] and limiter.is_open()


@pytest.mark.parametrize("how", ["released", "opened"])
async def test_one_that_fails_stops_nobody_after_it(how: str) -> None:
    clock = ManualClock()
    limiter = limited(10, clock)
    limiter.passed(20, 0)
    told: list[str] = []

    def fail() -> None:
        raise ZeroDivisionError("a mistake of whoever waited")

    for resume in (fail, lambda: told.append("a"), lambda: told.append("b")):
        limiter.wait(resume)
    clock.advance_ms(60_000)
    assert not limiter.is_open(), "somebody waits"
    if how == "released":
        limiter._release()
    else:
        limiter.open()
    assert told == ["a", "b"]


async def test_the_broker_s_rate_holds_for_all_topics_together() -> None:
    clock = ManualClock()
    shared = RateLimiter(10, 0, clock)
    first, second = (publish_rate_limiter(TopicPolicies(), clock, shared) for _ in range(2))
    assert first is not None and second is not None
    first.passed(20, 0)
    assert not second.is_open()
    told: list[str] = []
    second.wait(lambda: told.append("second"))
    first.wait(lambda: told.append("first"))
    assert first.waits == second.waits == 1
    second.open()
    assert not told, "a topic that is closed lets nobody pass whom the broker holds"
    clock.advance_ms(1200)
    shared._release()
    assert told == ["second", "first"]


async def test_one_that_is_opened_lets_everybody_pass() -> None:
    limiter = limited(1, ManualClock())
    limiter.passed(1000, 0)
    told: list[bool] = []
    limiter.wait(lambda: told.append(True))
    limiter.open()
    assert told == [True] and limiter.is_open()
