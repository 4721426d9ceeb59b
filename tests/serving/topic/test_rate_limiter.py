"""Rate limiters of producers and subscriptions: who waits, in which order, and for how long."""

from __future__ import annotations

import pytest

from quire.metadata.records import DispatchRate, PublishRate, SubscribeRate
from quire.runtime.clock import ManualClock
from quire.serving.policy import subscribe_rate
from quire.serving.policy.rate_limiter import RateLimiter, dispatch_rate_limiter, publish_rate_limiter
from quire.serving.policy.resolved import TopicPolicies
from quire.serving.policy.subscribe_rate import subscribe_rate_limiter


def test_the_slower_of_both_kinds_counts() -> None:
    clock = ManualClock()
    limiter = RateLimiter(10, 1000, clock)
    limiter.passed(1, 3000)
    assert limiter.queue.wait_s() == pytest.approx(2.001)
    limiter.passed(40, 0)
    assert limiter.queue.wait_s() == pytest.approx(3.2)
    assert RateLimiter(1, 0, clock).is_open()


def test_dispatching_waits_until_some_of_the_rate_has_gathered() -> None:
    clock = ManualClock()
    limiter = dispatch_rate_limiter(DispatchRate(messages=1000, bytes=5000, period_s=10), clock)
    assert limiter is not None and limiter.is_open()
    assert limiter.allowance() == (1000, 5000), "a period's worth at once"
    limiter.passed(998, 0)
    assert limiter.queue.wait_s() == pytest.approx(0.03), (
        "5 are a twentieth of a second's worth, and 2 are left"
    )
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
        limiter.queue.release()
        assert "".join(let_in) == expected


async def test_a_newcomer_does_not_overtake_who_waits() -> None:
    clock = ManualClock()
    limiter = limited(10, clock)
    limiter.passed(20, 0)
    told: list[str] = []
    limiter.wait(lambda: told.append("waited"))
    clock.advance_ms(60_000)
    assert not limiter.is_open(), "the timer has not fired yet, and somebody is before it"
    limiter.queue.release()
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
        limiter.queue.release()
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
    shared.queue.release()
    assert told == ["second", "first"]


async def test_one_that_is_opened_lets_everybody_pass() -> None:
    limiter = limited(1, ManualClock())
    limiter.passed(1000, 0)
    told: list[bool] = []
    limiter.wait(lambda: told.append(True))
    limiter.open()
    assert told == [True] and limiter.is_open()


def test_a_consumer_subscribes_so_often_in_a_period_and_others_as_well() -> None:
    clock = ManualClock()
    limiter = subscribe_rate_limiter(SubscribeRate(subscriptions=2, period_s=10), clock)
    assert limiter is not None
    assert [limiter.admits("a"), limiter.admits("a"), limiter.admits("a")] == [True, True, False]
    assert limiter.admits("b")
    clock.advance_ms(9_999)
    assert not limiter.admits("a")
    clock.advance_ms(1)
    assert limiter.admits("a")
    assert subscribe_rate_limiter(SubscribeRate(), clock) is None


def test_names_that_clients_make_up_cost_a_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscribe_rate, "CONSUMERS_MAX", 3)
    limiter = subscribe_rate.SubscribeRateLimiter(SubscribeRate(subscriptions=1), ManualClock())
    assert [limiter.admits(number) for number in range(10)] == 10 * [True]
    assert len(limiter._requests) <= 3
