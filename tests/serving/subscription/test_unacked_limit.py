"""The limit of unacknowledged messages of a shared subscription: it stops at it, and goes on at half of it."""

from __future__ import annotations

import pytest

from quire.serving.model.request import SubscriptionKind
from quire.serving.model.statistics import SubscriptionStats
from quire.serving.policy.resolved import TopicPolicies
from quire.serving.subscription.dispatch import blocked
from tests.serving.subscription.fakes import ids
from tests.serving.subscription.stand import EXCLUSIVE, SHARED, Stand, settle

KEY_SHARED = SubscriptionKind.KEY_SHARED


def limit(stand: Stand, most: int) -> None:
    stand.topic.policies = TopicPolicies(subscription_unacked_max=most)
    stand.subscriptions.policies_changed()


async def stats(stand: Stand) -> SubscriptionStats:
    found = stand.subscriptions.get("s")
    assert found is not None
    return await found.stats.describe()


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
async def test_it_stops_at_the_limit_and_goes_on_at_half_of_it(stand: Stand, kind: SubscriptionKind) -> None:
    """All consumers together count, also those of one block and of the cache."""
    limit(stand, 10)
    (first, port), (second, other) = [await stand.consumer(kind) for _ in range(2)]
    stand.topic.publish([1] * 25)
    got = port.positions() + other.positions()
    assert len(got) == first.unacked + second.unacked == 10
    found = await stats(stand)
    assert found.blocked_subscription_on_unacked_msgs and found.blocked_reason == blocked.UNACKED
    assert not any(one.blocked_consumer_on_unacked_msgs for one in found.consumers)
    first.ack(ids(*got[:4]))
    stand.topic.publish([1])
    assert port.positions() + other.positions() == [], "six are more than half"
    second.ack(ids(got[4]))
    more = port.positions() + other.positions()
    assert sorted(more) == [(1, entry) for entry in range(10, 15)], "five more, and it is full again"
    first.ack(ids(*got[5:], *more))
    await settle()
    assert len(port.positions() + other.positions()) == 10
    assert (await stats(stand)).blocked_subscription_on_unacked_msgs


async def test_a_limit_of_one_dispatches_one_after_the_other(stand: Stand) -> None:
    limit(stand, 1)
    consumer, port = await stand.consumer(SHARED)
    stand.topic.publish([1, 1, 1])
    for entry in range(3):
        assert port.positions() == [(1, entry)]
        consumer.ack(ids((1, entry)))
    assert not (await stats(stand)).blocked_subscription_on_unacked_msgs


async def test_only_a_batch_exceeds_the_limit(stand: Stand) -> None:
    limit(stand, 4)
    consumer, port = await stand.consumer(SHARED)
    stand.topic.publish([3, 3, 3])
    assert port.positions() == [(1, 0), (1, 1)] and consumer.unacked == 6


async def test_messages_that_are_given_back_or_whose_consumer_leaves_count_no_more(stand: Stand) -> None:
    limit(stand, 4)
    first, port = await stand.consumer(SHARED)
    stand.topic.publish([1] * 6)
    assert len(port.positions()) == 4
    first.redeliver()
    assert len(port.positions()) == 4, "dispatched again"
    second, other = await stand.consumer(SHARED)
    assert other.positions() == []
    first.close()
    await settle()
    assert len(other.positions()) == 4
    second.close()
    _, third = await stand.consumer(SHARED)
    assert len(third.positions()) == 4


async def test_another_limit_holds_at_once(stand: Stand) -> None:
    limit(stand, 2)
    _, port = await stand.consumer(SHARED)
    stand.topic.publish([1] * 10)
    assert len(port.positions()) == 2
    stand.subscriptions.policies_changed()
    assert port.positions() == [], "the same limit"
    limit(stand, 5)
    assert len(port.positions()) == 3
    limit(stand, 3)
    stand.topic.publish([1])
    assert port.positions() == []
    limit(stand, 0)
    assert len(port.positions()) == 6


async def test_a_seek_ends_the_blocking(stand: Stand) -> None:
    limit(stand, 3)
    await stand.consumer(SHARED)
    stand.topic.publish([1] * 6)
    found = stand.subscriptions.get("s")
    assert found is not None
    await found.seek(ids((1, 1))[0])
    _, port = await stand.consumer(SHARED)
    assert port.positions() == [(1, 1), (1, 2), (1, 3)]


async def test_a_subscription_with_one_active_consumer_has_no_such_limit(stand: Stand) -> None:
    limit(stand, 2)
    _, port = await stand.consumer(EXCLUSIVE)
    stand.topic.publish([1] * 10)
    assert len(port.positions()) == 10
    assert not (await stats(stand)).blocked_subscription_on_unacked_msgs
