"""Token buckets against what they promise, and the gate that producers wait at."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.metadata.records import DispatchRate, PublishRate
from quire.runtime.clock import ManualClock
from quire.serving.policy.rate_limit import RateLimit, TokenBucket, dispatch_limit, publish_limit
from quire.serving.policy.resolved import TopicPolicies
from quire.serving.policy.throttle import Throttle, publish_throttle
from quire.serving.topic.gate import Gate, make_gate, regated


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
    limit = RateLimit(TokenBucket(10, 0.0), TokenBucket(1000, 0.0))
    limit.take(1, 3000)
    assert limit.wait_s(0.0) == pytest.approx(2.001)
    limit.take(40, 0)
    assert limit.wait_s(0.0) == pytest.approx(3.2)
    only = publish_limit(PublishRate(messages_per_s=1), 0.0)
    assert only is not None and only.wait_s(0.0) == 0
    assert publish_limit(PublishRate(), 0.0) is None


def test_dispatching_waits_until_some_of_the_rate_has_gathered() -> None:
    limit = dispatch_limit(DispatchRate(messages=1000, bytes=5000, period_s=10), 0.0)
    assert limit is not None and limit.wait_s(0.0) == 0
    assert limit.allowance() == (1000, 5000), "a period's worth at once"
    limit.take(998, 0)
    assert limit.wait_s(0.0) == pytest.approx(0.03), "5 are a twentieth of a second's worth, and 2 are left"
    assert limit.wait_s(0.03) == 0 and limit.allowance() == (5, 5000)
    assert dispatch_limit(DispatchRate(), 0.0) is None


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


def limited(rate: int, clock: ManualClock) -> Gate:
    gate = make_gate(TopicPolicies(publish_rate=PublishRate(messages_per_s=rate)), clock)
    assert gate is not None
    return gate


def throttle_of(gate: Gate) -> Throttle:
    assert gate._own is not None
    return gate._own


def test_policies_that_limit_nothing_have_no_gate() -> None:
    assert make_gate(TopicPolicies(), ManualClock()) is None


async def test_who_waits_is_let_in_one_by_one_in_order() -> None:
    clock = ManualClock()
    gate = limited(10, clock)
    gate.passed(20, 0)
    let_in: list[str] = []

    def come(name: str) -> None:
        if gate.is_open():
            gate.passed(10, 0)
            let_in.append(name)
        else:
            gate.wait(lambda: come(name))

    for name in "abc":
        come(name)
    assert let_in == []
    for expected in ("a", "ab", "abc"):
        clock.advance_ms(1200)
        throttle_of(gate)._release()
        assert "".join(let_in) == expected


async def test_a_newcomer_does_not_overtake_who_waits() -> None:
    clock = ManualClock()
    gate = limited(10, clock)
    gate.passed(20, 0)
    told: list[str] = []
    gate.wait(lambda: told.append("waited"))
    clock.advance_ms(60_000)
    assert not gate.is_open(), "the timer has not fired yet, and somebody is before it"
    throttle_of(gate)._release()
    assert told == ["waited"] and gate.is_open()


@pytest.mark.parametrize("how", ["released", "opened"])
async def test_one_that_fails_stops_nobody_behind_it(how: str) -> None:
    clock = ManualClock()
    throttle = throttle_of(limited(10, clock))
    throttle.passed(20, 0)
    told: list[str] = []

    def fail() -> None:
        raise ZeroDivisionError("a mistake of whoever waited")

    for resume in (fail, lambda: told.append("a"), lambda: told.append("b")):
        throttle.wait(resume)
    clock.advance_ms(60_000)
    assert not throttle.is_open(), "somebody waits"
    if how == "released":
        throttle._release()
    else:
        throttle.open()
    assert told == ["a", "b"]


async def test_the_broker_s_rate_holds_for_all_topics_together() -> None:
    clock = ManualClock()
    shared = publish_throttle(PublishRate(messages_per_s=10), clock)
    assert shared is not None
    first, second = (make_gate(TopicPolicies(), clock, shared) for _ in range(2))
    assert first is not None and second is not None
    first.passed(20, 0)
    assert not second.is_open()
    told: list[str] = []
    second.wait(lambda: told.append("second"))
    first.wait(lambda: told.append("first"))
    second.open()
    assert not told, "a topic that is closed lets nobody pass whom the broker holds"
    clock.advance_ms(1200)
    shared._release()
    assert told == ["second", "first"]


async def test_other_policies_let_everybody_ask_anew() -> None:
    clock = ManualClock()
    slow = TopicPolicies(publish_rate=PublishRate(messages_per_s=1))
    gate = make_gate(slow, clock)
    assert gate is not None
    gate.passed(1000, 0)
    told: list[bool] = []
    gate.wait(lambda: told.append(True))
    assert regated(gate, slow, TopicPolicies(publish_rate=slow.publish_rate, message_ttl_ms=5), clock) is gate
    assert regated(gate, slow, TopicPolicies(), clock) is None
    gate.open()
    assert told == [True] and gate.is_open()
