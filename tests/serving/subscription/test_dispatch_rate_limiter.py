"""Dispatch rates: what is dispatched per period, by whom it is shared, why nothing flows, and how they are changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from quire.metadata.records import DispatchRate
from quire.runtime.clock import ManualClock
from quire.serving.model.positions import preceding
from quire.serving.model.request import SubscribeRequest, SubscriptionKind
from quire.serving.policy.rate_limiter import (
    DispatchLimits,
    RateLimiter,
    SubscriptionLimits,
    dispatch_limits,
    dispatch_rate_limiter,
)
from quire.serving.policy.resolved import TopicPolicies
from quire.serving.subscription.cursor.cursor import Cursor, CursorKey
from quire.serving.subscription.delivery.delivery import BlockView
from quire.serving.subscription.dispatch import blocked
from quire.serving.subscription.dispatch_rate_limiter import DispatchRateLimiter
from quire.serving.subscription.non_persistent import NonPersistentPump
from quire.serving.subscription.subscriptions import CursorStore, Subscription, Subscriptions
from quire.wire import block
from tests.serving.subscription.fakes import FakeLog, FakePort, FakeTopic

SHARED, KEY_SHARED = SubscriptionKind.SHARED, SubscriptionKind.KEY_SHARED
ENTRY_BYTES = 5
"""Of the first ten entries of a `FakeTopic`."""


class Stand:
    """A topic with limited subscriptions, and a clock that stands still."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.topic = FakeTopic()
        store = CursorStore()
        store.attach(FakeLog())
        self.subscriptions = Subscriptions(self.topic, store, 1, self.clock)
        self.topic.listener = self.subscriptions.confirmed

    def limit(self, broker: DispatchRate | None = None, **policies: Any) -> None:
        shared = dispatch_rate_limiter(broker or DispatchRate(), self.clock)
        self.topic.dispatch_limits = dispatch_limits(TopicPolicies(**policies), self.clock, shared)
        self.subscriptions.policies_changed()

    async def consumer(
        self, name: str = "s", kind: SubscriptionKind = SubscriptionKind.EXCLUSIVE, permits: int = 1000
    ) -> FakePort:
        port = FakePort()
        request = SubscribeRequest(name, kind, initial_earliest=True, consumer_id=1)
        subscription, consumer = await self.subscriptions.subscribe(request, port)
        subscription.pump.flow(consumer, permits)
        return port

    def subscription(self, name: str = "s") -> Subscription:
        found = self.subscriptions.get(name)
        assert found is not None
        return found

    def wait(self, ms: int) -> None:
        """So much time passes, and the timers ring."""
        self.clock.advance_ms(ms)
        for limiter in dict.fromkeys(self._limiters()):
            limiter.queue.release()

    def _limiters(self) -> Iterator[RateLimiter]:
        for one in self.subscriptions:
            found = None if one.pump.limiter is None else one.pump.limiter._limiter
            while found is not None:
                yield found
                found = found.wider

    async def reason(self, name: str = "s") -> str:
        return str((await self.subscription(name).stats.describe()).blocked_reason)


@pytest.fixture
def stand() -> Stand:
    return Stand()


def per_s(messages: int = 0, byte_count: int = 0) -> DispatchRate:
    return DispatchRate(messages=messages, bytes=byte_count)


async def test_what_nothing_limits_has_no_limiter(stand: Stand) -> None:
    await stand.consumer()
    assert stand.subscription().pump.limiter is None
    stand.limit()
    assert stand.topic.dispatch_limits is None and stand.subscription().pump.limiter is None


@pytest.mark.parametrize("kind", [*SubscriptionKind])
async def test_a_period_s_worth_is_dispatched_and_then_as_the_rate_allows(
    stand: Stand, kind: SubscriptionKind
) -> None:
    stand.limit(subscription_dispatch_rate=per_s(100))
    port = await stand.consumer(kind=kind)
    stand.topic.publish([1] * 250)
    assert port.positions() == [(1, entry) for entry in range(100)]
    assert await stand.reason() == blocked.RATE_LIMITED
    assert len(stand.topic.reads) == 0
    stand.wait(500)
    assert port.positions() == [(1, entry) for entry in range(100, 150)]
    stand.wait(60_000)
    assert len(port.positions()) == 100, "what was not used is not saved up beyond a period"
    stand.wait(1000)
    assert await stand.reason() == ""


async def test_one_timer_and_a_step_of_the_rate_at_a_time(stand: Stand) -> None:
    stand.limit(subscription_dispatch_rate=per_s(1000))
    port = await stand.consumer(permits=10_000)
    for _ in range(11):
        stand.topic.publish([1] * 100)
    assert len(port.positions()) == 1000
    (limiter,) = stand._limiters()
    assert len(limiter.queue._waiting) == 1, "however often it is told of new blocks"
    stand.wait(20)
    assert port.positions() == [], "20 of the 50 that are worth a timer"
    stand.wait(40)
    assert len(port.positions()) == 60


async def test_bytes_are_counted_as_they_leave(stand: Stand) -> None:
    stand.limit(subscription_dispatch_rate=per_s(byte_count=3 * ENTRY_BYTES))
    port = await stand.consumer()
    stand.topic.publish([1] * 9)
    assert port.positions() == [(1, 0), (1, 1), (1, 2)]
    stand.wait(1000)
    assert port.positions() == [], "their frames left a debt"


async def test_a_batch_is_not_torn_and_is_waited_for_afterwards(stand: Stand) -> None:
    stand.limit(subscription_dispatch_rate=per_s(10))
    port = await stand.consumer()
    stand.topic.publish([35, 1, 1])
    assert port.positions() == [(1, 0)]
    stand.wait(2400)
    assert port.positions() == []
    stand.wait(200)
    assert port.positions() == [(1, 1)]


async def test_a_topic_s_rate_is_shared_evenly_and_each_subscription_s_is_its_own(stand: Stand) -> None:
    stand.limit(dispatch_rate=per_s(100))
    ports = {name: await stand.consumer(name) for name in "abc"}
    stand.topic.publish([1] * 1000)
    got = {name: len(port.positions()) for name, port in ports.items()}
    assert sum(got.values()) == 100
    for _ in range(60):
        stand.wait(50)
        for name, port in ports.items():
            got[name] += len(port.positions())
    assert sum(got.values()) == 400
    assert min(got.values()) >= 75, got
    stand.limit(subscription_dispatch_rate=per_s(50))
    assert all(len(port.positions()) == 50 for port in ports.values())


async def test_the_broker_s_rate_holds_for_all_its_topics(stand: Stand) -> None:
    other = Stand()
    stand.limit(broker=per_s(10))
    limits = stand.topic.dispatch_limits
    assert limits is not None
    other.topic.dispatch_limits = DispatchLimits(DispatchRate(), limits.shared)
    first, second = await stand.consumer(), await other.consumer()
    stand.topic.publish([1] * 20)
    other.topic.publish([1] * 20)
    assert (len(first.positions()), len(second.positions())) == (10, 0)
    assert await other.reason() == blocked.RATE_LIMITED


async def test_a_policy_that_goes_lets_everything_out(stand: Stand) -> None:
    stand.limit(subscription_dispatch_rate=per_s(1), dispatch_rate=per_s(2))
    port = await stand.consumer()
    stand.topic.publish([1] * 20)
    assert len(port.positions()) == 1
    stand.limit()
    assert len(port.positions()) == 19
    stand.topic.publish([1] * 20)
    assert len(port.positions()) == 20


async def test_policies_that_say_the_same_keep_the_debt(stand: Stand) -> None:
    stand.limit(subscription_dispatch_rate=per_s(1))
    port = await stand.consumer()
    limiter = stand.subscription().pump.limiter
    stand.subscriptions.policies_changed()
    assert stand.subscription().pump.limiter is limiter
    stand.topic.publish([1] * 5)
    assert len(port.positions()) == 1


async def test_a_subscription_may_have_a_rate_of_its_own(stand: Stand) -> None:
    """Instead of the one of all subscriptions, lower or higher; 0 is no limit. The topic's rate holds as well."""
    own = {"slow": per_s(1), "fast": per_s(0)}
    stand.limit(subscription_dispatch_rate=per_s(5), subscription_rates=own)
    ports = {name: await stand.consumer(name) for name in ("slow", "fast", "other")}
    stand.topic.publish([1] * 20)
    assert {name: len(port.positions()) for name, port in ports.items()} == {
        "slow": 1,
        "fast": 20,
        "other": 5,
    }
    limiter = stand.subscription("slow").pump.limiter
    assert stand.topic.dispatch_limits is not None
    stand.topic.dispatch_limits = replace(stand.topic.dispatch_limits, own={"slow": per_s(1)})
    stand.subscriptions.policies_changed()
    assert stand.subscription("slow").pump.limiter is limiter, "another subscription's rate forgives no debt"
    assert stand.subscription("fast").pump.limiter is not None
    stand.limit(dispatch_rate=per_s(2), subscription_rates={"fast": per_s(100)})
    stand.topic.publish([1] * 20)
    assert sum(len(port.positions()) for port in ports.values()) == 2


async def test_only_one_subscription_is_limited(stand: Stand) -> None:
    stand.limit(subscription_rates={"slow": per_s(1)})
    slow, other = await stand.consumer("slow"), await stand.consumer("other")
    stand.topic.publish([1] * 20)
    assert (len(slow.positions()), len(other.positions())) == (1, 20)
    assert stand.subscription("other").pump.limiter is None
    stand.limit()
    assert len(slow.positions()) == 19


async def test_a_subscription_that_ended_is_woken_no_more(stand: Stand) -> None:
    stand.limit(dispatch_rate=per_s(1))
    port, other = await stand.consumer("a"), await stand.consumer("b")
    stand.topic.publish([1] * 5)
    await stand.subscription("a").delete()
    port.raw.clear()
    stand.wait(1100)
    assert port.positions() == [] and other.positions() == [(1, 0)]


async def test_redelivery_counts_too(stand: Stand) -> None:
    stand.limit(subscription_dispatch_rate=per_s(10))
    port = await stand.consumer(kind=SHARED)
    stand.topic.publish([1] * 8)
    assert len(port.positions()) == 8
    (consumer,) = stand.subscription().consumers
    stand.subscription().pump.redeliver(consumer)
    assert port.positions() == [(1, 0), (1, 1)]
    stand.wait(1000)
    assert port.positions() == [(1, entry) for entry in range(2, 8)]


async def test_what_keeps_nothing_drops_what_its_rate_does_not_allow(stand: Stand) -> None:
    stand.limit(subscription_dispatch_rate=per_s(3))
    cursor = Cursor(CursorKey(stand.topic.name, 1, "n"), preceding(stand.topic.first_position()))
    stand.subscriptions.PUMP = NonPersistentPump  # type: ignore[misc]
    made = stand.subscriptions._add(cursor)
    port = FakePort()
    consumer = await made.attach(SubscribeRequest("n", SHARED, consumer_id=1), port)
    made.pump.flow(consumer, 100)
    stand.topic.publish([1] * 5)
    stand.topic.publish([1] * 5)
    assert len(port.positions()) == 3 and made.pump.drops.messages_out == 7
    stand.wait(1000)
    stand.topic.publish([1] * 5)
    assert port.positions()[0] == (1, 10)


async def test_what_waits_for_its_time_is_why_nothing_flows(stand: Stand) -> None:
    await stand.consumer(kind=SHARED)
    subscription = stand.subscription()
    stand.topic.publish([1])
    assert await stand.reason() == ""
    assert subscription.pump.delayed.delays is not None
    subscription.pump.delayed.delays.add(1, [0], [stand.clock.now_ms() + 60_000])
    assert await stand.reason() == blocked.DELAYED


def test_a_cut_ends_with_the_allowance_and_has_one_entry_at_least(stand: Stand) -> None:
    limits = SubscriptionLimits(DispatchRate(messages=4, bytes=12), None)
    limiter = DispatchRateLimiter(limits, stand.clock, lambda: None)
    stand.topic.publish([1] * 8)
    (buffer,) = stand.topic.blocks
    view = BlockView(buffer, block.peek(buffer))
    wanted = stand.topic.first_position()
    assert limiter.may_dispatch()
    assert limiter.cut(view, wanted).stop_entry == 3, "three entries hold twelve bytes"
    assert limiter.cut(view, wanted._replace(entry_id=7)) is view
    part = view.head(3)
    assert part.all_entries() is view.all_entries(), "what was found out is kept with the block"
    assert part.messages(0, part.count) == 3 and part.counts is None
