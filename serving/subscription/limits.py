"""How many subscriptions and consumers one topic takes: its policies, within what the server bears.

Each check is made in the step in which the one more comes, so that many who come at once are not let in together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sized

from quire.runtime.limits import CONSUMERS_PER_SUBSCRIPTION_MAX, SUBSCRIPTIONS_PER_TOPIC_MAX
from quire.serving.model.ports import SubscriptionPort, TooManyConsumers, TooManySubscriptions, TopicPort
from quire.serving.policy.resolved import bounded


def check_subscriptions(topic: TopicPort, subscriptions: Sized) -> None:
    """The topic takes one more. Raises `TooManySubscriptions`."""
    most = bounded(topic.policies.subscriptions_max, SUBSCRIPTIONS_PER_TOPIC_MAX)
    if len(subscriptions) >= most:
        raise TooManySubscriptions(
            "subscriptions_per_topic",
            f"topic {topic.name} has {most} subscriptions, and takes no more: delete those that nobody uses, or have "
            "maxSubscriptionsPerTopic raised",
        )


def check_consumers(topic: TopicPort, subscriptions: Iterable[SubscriptionPort]) -> None:
    """The topic takes one more consumer, of whichever subscription. Raises `TooManyConsumers`."""
    most = topic.policies.consumers_max
    if most and sum(len(one.consumers) for one in subscriptions) >= most:
        raise TooManyConsumers(
            "consumers_per_topic",
            f"topic {topic.name} has {most} consumers, and takes no more: close some, or have maxConsumers raised",
        )


def check_consumers_of(subscription: SubscriptionPort, topic: TopicPort) -> None:
    """The subscription takes one more consumer. Raises `TooManyConsumers`."""
    most = bounded(topic.policies.consumers_per_subscription_max, CONSUMERS_PER_SUBSCRIPTION_MAX)
    if len(subscription.consumers) >= most:
        raise TooManyConsumers(
            "consumers_per_subscription",
            f"subscription {subscription.name} has {most} consumers, and takes no more: close some, or have "
            "maxConsumersPerSubscription raised",
        )
