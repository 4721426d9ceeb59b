"""Effective policies of one topic: its own, then its namespace's, then the broker's defaults. Performs no I/O.

A loaded topic has exactly one `TopicPolicies`, immutable and complete. When one of its sources
changes, another object replaces it. So code that applies a policy reads one attribute. The level that determines a
policy is chosen when the object is created, not for each message.

A field has the same name as in `Policies`; a new policy needs a field in both and, if the broker has a
setting for it, one line in `defaults_of`.
"""

from __future__ import annotations

from typing import Any, Final, Literal, get_args

from msgspec import field
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
    SubscribeRate,
)
from quire.runtime.limits import SUBSCRIPTION_UNACKED_MESSAGES_MAX, UNACKED_MESSAGES_MAX
from quire.security.configuration import Limits
from quire.serving.policy.strategy import DEFAULT
from quire.serving.settings import BrokerSettings

NO_POLICIES: Final = Policies()
LIMITS: Final = (
    "topics_max",
    "producers_max",
    "consumers_max",
    "consumers_per_subscription_max",
    "subscriptions_max",
)
"""Policies that isolate tenants: only a superuser may change them, not a tenant's administrator.

The limits of unacknowledged messages are not among them: they only delay the tenant's own consumers.
"""

SubscriptionType = Literal["Exclusive", "Shared", "Failover", "Key_Shared"]
"""Pulsar's names of the subscription types, in the order of their numbers in CommandSubscribe.SubType."""

SUBSCRIPTION_TYPES: Final[tuple[str, ...]] = get_args(SubscriptionType)


def limits_of(prescribed: Policies) -> dict[str, int]:
    """Return the limits that are set, by field."""
    found = {field: getattr(prescribed, field) for field in LIMITS}
    return {field: value for field, value in found.items() if value is not None}


class TopicPolicies(Record, frozen=True):
    """Effective policies of a topic. Times are in ms; 0 disables a policy unless a field says otherwise."""

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
    """Dispatch rate of all subscriptions together."""
    subscription_dispatch_rate: DispatchRate = DispatchRate()
    """Dispatch rate of each subscription."""
    schema_compatibility: str = DEFAULT
    """Value of `quire.serving.policy.strategy.Strategy`."""
    schema_auto_update: bool = True
    schema_enforced: bool = False
    producers_max: int = 0
    consumers_max: int = 0
    consumers_per_subscription_max: int = 0
    subscriptions_max: int = 0
    unacked_messages_max: int = UNACKED_MESSAGES_MAX
    """Maximum number of unacknowledged messages of a consumer of a shared subscription."""
    subscription_unacked_max: int = SUBSCRIPTION_UNACKED_MESSAGES_MAX
    """Maximum number of unacknowledged messages of all consumers of a shared subscription together."""
    subscription_types: tuple[str, ...] = SUBSCRIPTION_TYPES
    auto_subscription_creation: bool = True
    subscribe_rate: SubscribeRate = SubscribeRate()
    subscription_rates: dict[str, DispatchRate] = field(default_factory=dict)
    """Dispatch rates by subscription, each instead of `subscription_dispatch_rate`."""
    encryption_required: bool = False
    archive_lag_ms: int = 0
    """Time for which bookies keep a segment after it was archived."""
    deduplication_snapshot_s: int = 0
    """Maximum time between two deduplication snapshots while messages arrive."""
    iceberg: IcebergPolicy = IcebergPolicy()
    """Applied by `quire spark follow-iceberg`, not by brokers."""

    @property
    def quotas(self) -> tuple[BacklogQuota, ...]:
        """Backlog quotas that have a limit."""
        both = (self.backlog_quota, self.age_quota)
        return tuple(one for one in both if one.limit_bytes >= 0 or one.limit_ms >= 0)


_NAMES: Final = tuple(field.name for field in fields(TopicPolicies))
"""Names of all fields, computed once, because `fields` takes a third of a millisecond, as much as the rest of a load.
"""


def bounded(limit: int, most: int) -> int:
    """Return a policy's limit (0: none), capped at the server's limit `most`."""
    return min(limit, most) if limit else most


def defaults_of(settings: BrokerSettings, limits: Limits) -> TopicPolicies:
    """Return the policies of a topic without policies, in a namespace without policies."""
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
        subscription_unacked_max=limits.unacked_messages_per_subscription,
        archive_lag_ms=settings.archive_lag_ms,
    )


def resolve(
    default: TopicPolicies, namespace: Policies = NO_POLICIES, topic: Policies = NO_POLICIES
) -> TopicPolicies:
    """Merge the levels: for each field, use the first level at which it is set."""
    levels: tuple[Any, ...] = (topic, namespace, default)
    chosen: dict[str, Any] = {}
    for name in _NAMES:
        said = (getattr(level, name) for level in levels)
        chosen[name] = next(value for value in said if value is not None)
    return TopicPolicies(**chosen)
