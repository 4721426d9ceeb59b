"""Admission of subscriptions and consumers by the topic's policies: types, creation, and limits of their numbers.

The limits are capped by the server's limits.

The caller adds a consumer immediately after the check, without an `await` in between. It adds a subscription under the
lock that it held during the check. So concurrent requests cannot exceed a limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sized

from quire.runtime.limits import CONSUMERS_PER_SUBSCRIPTION_MAX, SUBSCRIPTIONS_PER_TOPIC_MAX
from quire.serving.model.ports import (
    NotAllowed,
    SubscriptionNotFound,
    SubscriptionPort,
    TooManyConsumers,
    TooManySubscriptions,
    TopicPort,
)
from quire.serving.model.request import SubscriptionKind
from quire.serving.policy.resolved import bounded


def check_type(topic: TopicPort, kind: SubscriptionKind) -> None:
    """Check that the topic's policies allow subscriptions of this type. Raises `NotAllowed`."""
    allowed = topic.policies.subscription_types
    if kind.label not in allowed:
        raise NotAllowed(
            f"topic {topic.name} does not allow a subscription of type {kind.label}: use {' or '.join(allowed)}, or "
            "change subscriptionTypesEnabled"
        )


def check_creation(topic: TopicPort, name: str) -> None:
    """Check that a consumer may create a durable subscription. Raises `SubscriptionNotFound`."""
    if not topic.policies.auto_subscription_creation:
        raise SubscriptionNotFound(
            f"Subscription does not exist: topic {topic.name} has no subscription {name}, and autoSubscriptionCreation "
            "is off: create it first"
        )


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
