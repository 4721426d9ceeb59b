"""Admission of subscriptions and consumers: the limits in the topic's policies, capped by the server's limits.

The caller adds a consumer immediately after the check, without an `await` in between. It adds a subscription under the
lock that it held during the check. So concurrent requests cannot exceed a limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sized

from quire.runtime.limits import CONSUMERS_PER_SUBSCRIPTION_MAX, SUBSCRIPTIONS_PER_TOPIC_MAX
from quire.serving.model.ports import SubscriptionPort, TooManyConsumers, TooManySubscriptions, TopicPort
from quire.serving.policy.resolved import bounded


def check_subscriptions(topic: TopicPort, subscriptions: Sized) -> None:
    """Check that the topic may have another subscription. Raises `TooManySubscriptions`."""
    most = bounded(topic.policies.subscriptions_max, SUBSCRIPTIONS_PER_TOPIC_MAX)
    if len(subscriptions) >= most:
        raise TooManySubscriptions(
            "subscriptions_per_topic",
            f"topic {topic.name} has {most} subscriptions, which is the limit: delete unused ones, or ask for a higher "
            "maxSubscriptionsPerTopic",
        )


def check_consumers(topic: TopicPort, subscriptions: Iterable[SubscriptionPort]) -> None:
    """Check that the topic, over all its subscriptions, may have another consumer. Raises `TooManyConsumers`."""
    most = topic.policies.consumers_max
    if most and sum(len(one.consumers) for one in subscriptions) >= most:
        raise TooManyConsumers(
            "consumers_per_topic",
            f"topic {topic.name} has {most} consumers, which is the limit: close some, or raise maxConsumers",
        )


def check_consumers_of(subscription: SubscriptionPort, topic: TopicPort) -> None:
    """Check that the subscription may have another consumer. Raises `TooManyConsumers`."""
    most = bounded(topic.policies.consumers_per_subscription_max, CONSUMERS_PER_SUBSCRIPTION_MAX)
    if len(subscription.consumers) >= most:
        raise TooManyConsumers(
            "consumers_per_subscription",
            f"subscription {subscription.name} has {most} consumers, which is the limit: close some, or raise "
            "maxConsumersPerSubscription",
        )
