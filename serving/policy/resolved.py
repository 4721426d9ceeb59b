"""What holds for one topic: its own policies over its namespace's over the broker's defaults. No I/O.

A loaded topic has exactly one `TopicPolicies`, frozen and complete. It is never edited: when something it rests on
changes, another one takes its place as a whole. So what acts by a policy reads one attribute, and what is off is
decided where the object is made, not where messages pass.

A field here has the name of a field of `Policies`; a new policy is one field in either and, where the broker has a
setting for it, one line in `defaults_of`.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import fields

from quire.metadata.records import (
    BacklogQuota,
    DelayedDeliveryPolicy,
    DispatchRate,
    IcebergPolicy,
    InactiveTopicPolicy,
    PersistencePolicy,
    Policies,
    PublishRate,
    Record,
    RetentionPolicy,
)
from quire.runtime.limits import UNACKED_MESSAGES_MAX
from quire.security.configuration import Limits
from quire.serving.policy.strategy import DEFAULT
from quire.serving.settings import BrokerSettings

NO_POLICIES: Final = Policies()


class TopicPolicies(Record, frozen=True):
    """Times in ms; 0 is off unless a field says otherwise."""

    deduplication: bool = False
    persistence: PersistencePolicy = PersistencePolicy()
    retention: RetentionPolicy = RetentionPolicy(retention_ms=-1, retention_bytes=-1)
    message_ttl_ms: int = 0
    backlog_quota: BacklogQuota = BacklogQuota()
    age_quota: BacklogQuota = BacklogQuota()
    inactive_topics: InactiveTopicPolicy = InactiveTopicPolicy()
    delayed_delivery: DelayedDeliveryPolicy = DelayedDeliveryPolicy()
    subscription_expiration_ms: int = 0
    message_bytes_max: int = 0
    publish_rate: PublishRate = PublishRate()
    compaction_threshold_bytes: int = 0
    dispatch_rate: DispatchRate = DispatchRate()
    """Of all subscriptions together."""
    subscription_dispatch_rate: DispatchRate = DispatchRate()
    """Of each subscription."""
    schema_compatibility: str = DEFAULT
    """A `quire.serving.policy.strategy.Strategy`."""
    schema_auto_update: bool = True
    schema_enforced: bool = False
    producers_max: int = 0
    consumers_max: int = 0
    consumers_per_subscription_max: int = 0
    subscriptions_max: int = 0
    unacked_messages_max: int = UNACKED_MESSAGES_MAX
    """That a consumer of a shared subscription may hold."""
    iceberg: IcebergPolicy = IcebergPolicy()
    """Heeded by `quire spark follow-iceberg`, not by brokers."""

    @property
    def quotas(self) -> tuple[BacklogQuota, ...]:
        """Those that limit anything."""
        both = (self.backlog_quota, self.age_quota)
        return tuple(one for one in both if one.limit_bytes >= 0 or one.limit_ms >= 0)


_NAMES: Final = tuple(field.name for field in fields(TopicPolicies))
"""Once: asking costs a third of a millisecond, as much as all else of a load."""


def bounded(limit: int, most: int) -> int:
    """What a limit of a policy, 0 for none, comes to where the server itself takes `most`."""
    return min(limit, most) if limit else most


def defaults_of(settings: BrokerSettings, limits: Limits) -> TopicPolicies:
    """What holds where neither the topic nor its namespace says anything."""
    return TopicPolicies(
        deduplication=settings.deduplication,
        retention=RetentionPolicy(
            retention_ms=settings.retention_ms, retention_bytes=settings.retention_bytes
        ),
        message_ttl_ms=settings.message_ttl_ms,
        publish_rate=PublishRate(
            messages_per_s=settings.publish_messages_per_s, bytes_per_s=settings.publish_bytes_per_s
        ),
        delayed_delivery=DelayedDeliveryPolicy(
            active=settings.delayed_delivery, tick_ms=settings.delayed_delivery_tick_ms
        ),
        producers_max=limits.producers_per_topic,
        consumers_max=limits.consumers_per_topic,
        consumers_per_subscription_max=limits.consumers_per_subscription,
        subscriptions_max=limits.subscriptions_per_topic,
        unacked_messages_max=limits.unacked_messages_per_consumer,
    )


def resolve(
    default: TopicPolicies, namespace: Policies = NO_POLICIES, topic: Policies = NO_POLICIES
) -> TopicPolicies:
    """The first level that says something counts, field by field."""
    levels: tuple[Any, ...] = (topic, namespace, default)
    chosen: dict[str, Any] = {}
    for name in _NAMES:
        said = (getattr(level, name) for level in levels)
        chosen[name] = next(value for value in said if value is not None)
    return TopicPolicies(**chosen)
