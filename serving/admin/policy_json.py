"""JSON of policies: one row for each policy, used for input and output.

`policies` serves them, and `namespace_json` parses those in the body that creates a namespace. Each policy is one row
of `POLICIES`: the last word of its path for a namespace and for a topic, its name in Pulsar's JSON of a whole
namespace, its field of `Policies`, and its shape (`policy_shapes`). The two backlog quotas have the same path word, and
the query selects one, as in Pulsar's tools.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, NamedTuple
from urllib.parse import urlsplit

from msgspec import Meta, field
from msgspec.structs import replace

from quire.metadata.records import (
    BacklogQuota,
    DelayedDeliveryPolicy,
    DispatchRate,
    IcebergPolicy,
    InactiveTopicPolicy,
    PersistencePolicy,
    Policies,
    PublishRate,
    RetentionPolicy,
    Storage,
    SubscribeRate,
)
from quire.runtime.errors import ConfigurationError
from quire.runtime.limits import MESSAGE_BYTES_MAX
from quire.serving.admin.policy_shapes import Number, NumberOrNull, Shape, Unit, Value, number_of
from quire.serving.admin.values import INT64_MAX, PARTITIONS_MAX
from quire.serving.policy.resolved import LIMITS, SUBSCRIPTION_TYPES, SubscriptionType
from quire.serving.policy.strategy import DEFAULT, UNDEFINED, Strategy

__all__ = ["AUTO_UPDATE", "POLICIES", "QUOTAS", "Number", "PolicyJson", "Shape", "Value"]

MINUTE_MS: Final = 60_000
QUORUM_MAX: Final = 100
INT64_MIN: Final = -INT64_MAX - 1
SECONDS_MAX: Final = 1 << 32
"""Limit of times and sizes, far above useful values, so that the stored value in ms or bytes fits 64 bits."""

TEXT_CHARS_MAX: Final = 1024
INT32_MAX: Final = (1 << 31) - 1


# -- objects -------------------------------------------------------------------------------------------

Rate = Annotated[int, Meta(ge=-1, le=INT64_MAX), Unit()]


class Retention(Shape, frozen=True):
    """Retention needs retentionTimeInMinutes and retentionSizeInMB: -1 (unlimited), 0 (none) or a number."""

    record = RetentionPolicy
    is_whole = True
    retention_ms: Annotated[int, Meta(ge=-1, le=SECONDS_MAX), Unit(MINUTE_MS)] = field(
        name="retentionTimeInMinutes", default=0
    )
    retention_bytes: Annotated[int, Meta(ge=-1, le=SECONDS_MAX), Unit(1 << 20)] = field(
        name="retentionSizeInMB", default=0
    )

    def check(self) -> None:
        if (self.retention_ms == 0) != (self.retention_bytes == 0):
            raise ConfigurationError(
                f"retention of {self.retention_ms} minutes and {self.retention_bytes} MB is invalid: both must be "
                "0 (keep no acknowledged messages), or neither (-1: no limit)"
            )


class Persistence(Shape, frozen=True):
    """Persistence needs bookkeeperEnsemble and bookkeeperWriteQuorum (the number of copies) and bookkeeperAckQuorum.

    Or a storage, bookies or objects; or both.
    """

    record = PersistencePolicy
    ensemble: int | None = field(name="bookkeeperEnsemble", default=None)
    write_quorum: int = field(name="bookkeeperWriteQuorum", default=0)
    ack_quorum: int = field(name="bookkeeperAckQuorum", default=0)
    storage: Storage | None = None

    def check(self) -> None:
        ensemble, write, ack = self.ensemble, self.write_quorum, self.ack_quorum
        if self.storage is not None and not (ensemble or write or ack):
            return  # the number of copies is that of the broker's settings
        if ensemble not in (None, write):
            raise ConfigurationError(
                f"ensemble {ensemble} and write quorum {write} must be equal, because Quire does not stripe a "
                "ledger: set both to the number of copies"
            )
        if not QUORUM_MAX >= write >= ack >= 1:
            raise ConfigurationError(
                f"write quorum {write} must be at most {QUORUM_MAX} and at least ack quorum {ack}, "
                "which must be at least 1"
            )

    @classmethod
    def show(cls, kept: PersistencePolicy) -> dict[str, Any]:
        shown = {
            **super().show(kept),
            "bookkeeperEnsemble": kept.write_quorum,
            "managedLedgerMaxMarkDeleteRate": 0.0,
        }
        if kept.storage is None:
            del shown["storage"]
        return shown


class Quota(Shape, frozen=True):
    """A backlog quota needs limitSize in bytes or limitTime in seconds, -1 for no limit.

    Its policy is producer_request_hold, producer_exception or consumer_backlog_eviction.
    """

    record = BacklogQuota
    needs = frozenset({"limitSize", "limitTime"})
    limit: Annotated[int, Meta(ge=INT64_MIN)] = -1
    limit_bytes: Annotated[int, Meta(ge=INT64_MIN, le=INT64_MAX), Unit()] = field(
        name="limitSize", default=-1
    )
    limit_ms: Annotated[int, Meta(ge=INT64_MIN, le=SECONDS_MAX), Unit(1000)] = field(
        name="limitTime", default=-1
    )
    action: Literal["producer_request_hold", "producer_exception", "consumer_backlog_eviction"] = field(
        name="policy", default="producer_request_hold"
    )

    @classmethod
    def parse(cls, value: Any) -> Any:
        """Return the quota; `limit` is the older name of `limitSize`, and a missing time means unlimited."""
        if isinstance(value, dict) and value.get("limitSize") is None:
            value = {**value, "limitSize": value.get("limit")}
        quota: BacklogQuota = super().parse(value)
        return quota if quota.limit_ms else replace(quota, limit_ms=-1)

    @classmethod
    def show(cls, kept: BacklogQuota) -> dict[str, Any]:
        return {**super().show(kept), "limit": kept.limit_bytes}


class InactiveTopics(Shape, frozen=True):
    """Inactive topics have an inactiveTopicDeleteMode, delete_when_no_subscriptions or
    delete_when_subscriptions_caught_up, and maxInactiveDurationSeconds of at least 1."""

    record = InactiveTopicPolicy
    mode: Literal["delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"] = field(
        name="inactiveTopicDeleteMode", default="delete_when_no_subscriptions"
    )
    inactive_ms_max: Annotated[int, Meta(ge=1, le=SECONDS_MAX), Unit(1000)] = field(
        name="maxInactiveDurationSeconds", default=60
    )
    enabled: bool = field(name="deleteWhileInactive", default=True)


class DelayedDelivery(Shape, frozen=True):
    """Delayed delivery has a tickTime of 1 to 60000 ms, and maxDeliveryDelayInMillis, 0 for no limit."""

    record = DelayedDeliveryPolicy
    active: bool = True
    tick_ms: Annotated[int, Meta(ge=1, le=60_000)] = field(name="tickTime", default=20)
    delay_ms_max: Annotated[int, Meta(ge=0, le=INT64_MAX >> 1)] = field(
        name="maxDeliveryDelayInMillis", default=0
    )


class PublishRates(Shape, frozen=True):
    """A publish rate needs publishThrottlingRateInMsg or publishThrottlingRateInByte, per second; -1: no limit."""

    record = PublishRate
    needs = frozenset({"publishThrottlingRateInMsg", "publishThrottlingRateInByte"})
    unlimited = 0
    messages_per_s: Rate = field(name="publishThrottlingRateInMsg", default=-1)
    bytes_per_s: Rate = field(name="publishThrottlingRateInByte", default=-1)


class DispatchRates(Shape, frozen=True):
    """A dispatch rate needs dispatchThrottlingRateInMsg or dispatchThrottlingRateInByte, per ratePeriodInSecond of 1 to
    86400; -1: no limit."""

    record = DispatchRate
    needs = frozenset({"dispatchThrottlingRateInMsg", "dispatchThrottlingRateInByte"})
    unlimited = 0
    messages: Rate = field(name="dispatchThrottlingRateInMsg", default=-1)
    bytes: Rate = field(name="dispatchThrottlingRateInByte", default=-1)
    period_s: Annotated[int, Meta(ge=1, le=86_400)] = field(name="ratePeriodInSecond", default=1)
    relative: bool = field(name="relativeToPublishRate", default=False)

    def check(self) -> None:
        if self.relative:
            raise ConfigurationError(
                "relativeToPublishRate is not supported: set an absolute dispatch rate, and this to false"
            )


class SubscribeRates(Shape, frozen=True):
    """A subscribe rate needs subscribeThrottlingRatePerConsumer, per ratePeriodInSecond of 1 to 86400; -1: no limit."""

    record = SubscribeRate
    needs = frozenset({"subscribeThrottlingRatePerConsumer"})
    unlimited = 0
    subscriptions: Rate = field(name="subscribeThrottlingRatePerConsumer", default=-1)
    period_s: Annotated[int, Meta(ge=1, le=86_400)] = field(name="ratePeriodInSecond", default=30)


class AutoTopics(NamedTuple):
    """`auto_topic_creation` and `auto_topic_partitions` of `Policies`, which are one policy in Pulsar's tools."""

    allowed: bool
    partitions: int | None


class AutoCreation(Shape, frozen=True):
    """Automatic topic creation needs allowAutoTopicCreation, true or false.

    TopicType is non-partitioned or partitioned, and a partitioned one has defaultNumPartitions of 1 to 10000.
    """

    allowed: bool = field(name="allowAutoTopicCreation")
    type: Literal["partitioned", "non-partitioned"] = field(name="topicType", default="non-partitioned")
    partitions: Annotated[int, Meta(ge=1, le=PARTITIONS_MAX)] | None = field(
        name="defaultNumPartitions", default=None
    )

    def check(self) -> None:
        if (self.type == "partitioned") != (self.partitions is not None):
            raise ConfigurationError(
                "defaultNumPartitions is required for topicType partitioned, and not allowed otherwise"
            )

    def kept(self) -> AutoTopics:
        return AutoTopics(self.allowed, self.partitions)

    @classmethod
    def show(cls, kept: AutoTopics) -> dict[str, Any]:
        shown: dict[str, Any] = {"allowAutoTopicCreation": kept.allowed}
        if kept.partitions is not None:
            return {**shown, "topicType": "partitioned", "defaultNumPartitions": kept.partitions}
        return {**shown, "topicType": "non-partitioned"} if kept.allowed else shown


class AutoSubscription(Shape, frozen=True):
    """Automatic subscription creation needs allowAutoSubscriptionCreation, true or false."""

    allowed: bool = field(name="allowAutoSubscriptionCreation")

    def kept(self) -> bool:
        return self.allowed

    @classmethod
    def show(cls, kept: bool) -> dict[str, Any]:
        return {"allowAutoSubscriptionCreation": kept}


Text = Annotated[str, Meta(max_length=TEXT_CHARS_MAX)]
_ICEBERG_NAMESPACE: Final = re.compile(r"[\w-]+(\.[\w-]+)*")


class Iceberg(Shape, frozen=True):
    """An Iceberg table needs a catalog: the URL of a REST catalog or of a database, or an absolute directory.

    It may have a warehouse, a namespace and a table. An empty object disables it, also if the namespace enables it.
    """

    record = IcebergPolicy
    catalog: Text = ""
    warehouse: Text = ""
    namespace: Text = ""
    table: Text = ""

    def check(self) -> None:
        if self == Iceberg():
            return
        if not self.catalog.startswith("/") and "://" not in self.catalog:
            raise ConfigurationError(
                f"the catalog {self.catalog!r} must be a URL, such as https://catalog:8181 or postgresql://…, "
                "or an absolute directory"
            )
        if "@" in urlsplit(self.catalog).netloc:
            raise ConfigurationError(
                "credentials in a catalog's URL would be visible to other users: omit them, and pass the password to "
                "`quire spark follow-iceberg`"
            )
        if self.namespace and not _ICEBERG_NAMESPACE.fullmatch(self.namespace):
            raise ConfigurationError(
                f"invalid namespace {self.namespace!r}: use letters, digits, - and _, and dots between names"
            )
        if self.table and not re.fullmatch(r"[\w.-]+", self.table):
            raise ConfigurationError(f"invalid table {self.table!r}: use letters, digits, - and _")
        if "." in self.table:
            raise ConfigurationError(
                f"the table {self.table!r} contains a dot: set the part before it as the namespace"
            )


@dataclass(frozen=True)
class Strategies(Value):
    """Shape of the schema compatibility strategy; `UNDEFINED` unsets it, so that the level above applies."""

    def parse(self, value: Any) -> Any:
        return None if value == UNDEFINED else super().parse(value)


AUTO_UPDATE_NAMES: Final = {
    Strategy.ALWAYS_INCOMPATIBLE: "AutoUpdateDisabled",
    Strategy.BACKWARD: "Backward",
    Strategy.FORWARD: "Forward",
    Strategy.FULL: "Full",
    Strategy.ALWAYS_COMPATIBLE: "AlwaysCompatible",
    Strategy.BACKWARD_TRANSITIVE: "BackwardTransitive",
    Strategy.FORWARD_TRANSITIVE: "ForwardTransitive",
    Strategy.FULL_TRANSITIVE: "FullTransitive",
}


@dataclass(frozen=True)
class AutoUpdateStrategies(Value):
    """Shape of the schema compatibility strategy with the names of Pulsar's older policy."""

    def parse(self, value: Any) -> Any:
        name = super().parse(value)
        return next(str(strategy) for strategy, one in AUTO_UPDATE_NAMES.items() if one == name)

    def show(self, kept: Any) -> Any:
        return AUTO_UPDATE_NAMES[Strategy(kept)]


@dataclass(frozen=True)
class SubscriptionTypes(Value):
    """Shape of the allowed subscription types; an empty list unsets them, so that the level above applies."""

    def parse(self, value: Any) -> Any:
        allowed = super().parse(value)
        return tuple(one for one in SUBSCRIPTION_TYPES if one in allowed) or None

    def show(self, kept: Any) -> Any:
        return list(kept)


# -- rows ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PolicyJson:
    word: str
    """Last path segment for a namespace; empty if namespaces have no such policy."""
    field: str
    shape: Value | type[Shape]
    topic_word: str = ""
    """Last path segment for a topic; empty if topics have no such policy."""
    name: str = ""
    """Name in Pulsar's JSON of a namespace's policies."""
    is_by_cluster: bool = False
    """True if that JSON contains a map with one value for each cluster."""
    unset: Any = None
    """Answer of a namespace's GET if the policy is not set; None: no content, 204."""
    topic_unset: Any = None
    """The same of a topic's GET."""

    @property
    def is_limit(self) -> bool:
        """True if only a superuser may change the policy."""
        return self.field in LIMITS

    @property
    def kind(self) -> Any:
        """Type of the policy's JSON."""
        return self.shape.kind if isinstance(self.shape, Value) else self.shape

    def of(self, policies: Any) -> Any:
        """Return the policy's value in `Policies` or `TopicPolicies`; None if it is not set."""
        return getattr(policies, self.field, None)

    def put(self, policies: Policies, value: Any) -> Policies:
        """Return `policies` with this value; None unsets the policy."""
        return replace(policies, **{self.field: value})


class AutoCreationJson(PolicyJson):
    """Policy that is stored in two fields of `Policies`."""

    def of(self, policies: Any) -> AutoTopics | None:
        allowed = super().of(policies)
        return None if allowed is None else AutoTopics(allowed, policies.auto_topic_partitions)

    def put(self, policies: Policies, value: AutoTopics | None) -> Policies:
        allowed, partitions = value or (None, None)
        return replace(policies, auto_topic_creation=allowed, auto_topic_partitions=partitions)


BOOL: Final = Value(bool, "true or false")
TTL: Final = number_of("seconds", SECONDS_MAX, 1000, "message TTL")
EXPIRATION: Final = number_of("minutes", SECONDS_MAX, MINUTE_MS, "subscription expiration time")
BYTES: Final = number_of("bytes", INT64_MAX >> 1)
SNAPSHOT_INTERVAL: Final = NumberOrNull(
    Annotated[int, Meta(ge=0, le=SECONDS_MAX)],
    f"a number of seconds, 0 (off) to {SECONDS_MAX}, or null to unset it",
)
_STRATEGIES: Final = (*map(str, Strategy), UNDEFINED)
STRATEGY: Final = Strategies(
    Literal[_STRATEGIES], f"one of {', '.join(Strategy)}, or {UNDEFINED} to use that of the level above"
)

TYPES: Final = SubscriptionTypes(
    list[SubscriptionType],
    f"a list of subscription types among {', '.join(SUBSCRIPTION_TYPES)}; an empty list unsets them",
)


def _limit(word: str, field: str, of: str, topic_word: str = "", unset: int | None = None) -> PolicyJson:
    name = re.sub("([A-Z])", r"_\1", word).lower()
    return PolicyJson(word, field, number_of(of, INT32_MAX), topic_word, name, unset=unset)


# fmt: off
POLICIES: Final = (
    PolicyJson("deduplication", "deduplication", BOOL, "deduplicationEnabled", "deduplicationEnabled"),
    PolicyJson("persistence", "persistence", Persistence, "persistence", "persistence"),
    PolicyJson("retention", "retention", Retention, "retention", "retention_policies"),
    PolicyJson("messageTTL", "message_ttl_ms", TTL, "messageTTL", "message_ttl_in_seconds"),
    PolicyJson("inactiveTopicPolicies", "inactive_topics", InactiveTopics, "inactiveTopicPolicies",
               "inactive_topic_policies"),
    PolicyJson("delayedDelivery", "delayed_delivery", DelayedDelivery, "delayedDelivery",
               "delayed_delivery_policies"),
    PolicyJson("subscriptionExpirationTime", "subscription_expiration_ms", EXPIRATION,
               name="subscription_expiration_time_minutes"),
    PolicyJson("maxMessageSize", "message_bytes_max", number_of("bytes", MESSAGE_BYTES_MAX), "maxMessageSize"),
    PolicyJson("publishRate", "publish_rate", PublishRates, "publishRate", "publishMaxMessageRate", True),
    PolicyJson("dispatchRate", "dispatch_rate", DispatchRates, "dispatchRate", "topicDispatchRate", True),
    PolicyJson("subscriptionDispatchRate", "subscription_dispatch_rate", DispatchRates,
               "subscriptionDispatchRate", "subscriptionDispatchRate", True),
    PolicyJson("compactionThreshold", "compaction_threshold_bytes", BYTES, "compactionThreshold",
               "compaction_threshold"),
    PolicyJson("schemaCompatibilityStrategy", "schema_compatibility", STRATEGY, "schemaCompatibilityStrategy",
               "schema_compatibility_strategy", unset=UNDEFINED),
    PolicyJson("isAllowAutoUpdateSchema", "schema_auto_update", BOOL, name="is_allow_auto_update_schema",
               unset=True),
    PolicyJson("schemaValidationEnforced", "schema_enforced", BOOL, "schemaValidationEnforced",
               "schema_validation_enforced", unset=False, topic_unset=False),
    PolicyJson("iceberg", "iceberg", Iceberg, "iceberg"),
    _limit("maxTopicsPerNamespace", "topics_max", "topics", unset=0),
    _limit("maxProducersPerTopic", "producers_max", "producers", "maxProducers"),
    _limit("maxConsumersPerTopic", "consumers_max", "consumers", "maxConsumers"),
    _limit("maxConsumersPerSubscription", "consumers_per_subscription_max", "consumers", "maxConsumersPerSubscription"),
    _limit("maxSubscriptionsPerTopic", "subscriptions_max", "subscriptions", "maxSubscriptionsPerTopic"),
    PolicyJson("maxUnackedMessagesPerConsumer", "unacked_messages_max", number_of("messages", INT32_MAX),
               "maxUnackedMessagesOnConsumer", "max_unacked_messages_per_consumer"),
    PolicyJson("maxUnackedMessagesPerSubscription", "subscription_unacked_max", number_of("messages", INT32_MAX),
               "maxUnackedMessagesOnSubscription", "max_unacked_messages_per_subscription"),
    PolicyJson("subscriptionTypesEnabled", "subscription_types", TYPES, "subscriptionTypesEnabled",
               "subscription_types_enabled", unset=[], topic_unset=[]),
    PolicyJson("autoSubscriptionCreation", "auto_subscription_creation", AutoSubscription,
               "autoSubscriptionCreation", "autoSubscriptionCreationOverride"),
    PolicyJson("subscribeRate", "subscribe_rate", SubscribeRates, "subscribeRate", "clusterSubscribeRate", True),
    PolicyJson("deduplicationSnapshotInterval", "deduplication_snapshot_s", SNAPSHOT_INTERVAL,
               "deduplicationSnapshotInterval", "deduplicationSnapshotIntervalSeconds"),
    PolicyJson("offloadDeletionLagMs", "archive_lag_ms", number_of("milliseconds", SECONDS_MAX * 1000),
               name="offload_deletion_lag_ms"),
    PolicyJson("encryptionRequired", "encryption_required", BOOL, name="encryption_required", unset=False),
    AutoCreationJson("autoTopicCreation", "auto_topic_creation", AutoCreation, name="autoTopicCreationOverride"),
)
# fmt: on
_AUTO_UPDATE_NAMES: Final = tuple(AUTO_UPDATE_NAMES.values())
AUTO_UPDATE: Final = PolicyJson(
    "schemaAutoUpdateCompatibilityStrategy",
    "schema_compatibility",
    AutoUpdateStrategies(Literal[_AUTO_UPDATE_NAMES], f"one of {', '.join(_AUTO_UPDATE_NAMES)}"),
    name="schema_auto_update_compatibility_strategy",
    unset=AUTO_UPDATE_NAMES[DEFAULT],
)
"""Older name of schemaCompatibilityStrategy: both set the same policy."""

QUOTAS: Final = {
    "destination_storage": PolicyJson("backlogQuota", "backlog_quota", Quota, "backlogQuota"),
    "message_age": PolicyJson("backlogQuota", "age_quota", Quota, "backlogQuota"),
}
"""Rows of backlog quotas, by the type that Pulsar's tools send in the query."""


def shown(prescribed: Policies, cluster: str) -> dict[str, Any]:
    """Return a namespace's own policies, keyed by the last path segment and by Pulsar's names."""
    found: dict[str, Any] = {"replication_clusters": [cluster]}
    for policy in POLICIES:
        value = policy.of(prescribed)
        if value is not None and policy.word:
            found[policy.word] = shape = policy.shape.show(value)
            if policy.name and policy.name != policy.word:
                found[policy.name] = {cluster: shape} if policy.is_by_cluster else shape
    if prescribed.properties:
        found["properties"] = prescribed.properties
    quotas = quotas_shown(prescribed)
    return {**found, "backlogQuota": quotas, "backlog_quota_map": quotas} if quotas else found


def topic_policies_shown(policies: Any) -> dict[str, Any]:
    """Return a topic's own or effective policies, keyed by the last path segment; unset ones are null."""
    return _by_words({policy.topic_word: policy for policy in POLICIES}, policies)


def namespace_policies_shown(policies: Any) -> dict[str, Any]:
    """Return a namespace's policies as `topic_policies_shown` does for a topic."""
    return _by_words({policy.word: policy for policy in POLICIES}, policies)


def _by_words(words: Mapping[str, PolicyJson], policies: Any) -> dict[str, Any]:
    found = {
        word: None if (value := policy.of(policies)) is None else policy.shape.show(value)
        for word, policy in words.items()
        if word
    }
    return {**found, "backlogQuota": quotas_shown(policies)}


def quotas_shown(prescribed: Any) -> dict[str, Any] | None:
    """Return both quotas by type, or None if neither is set."""
    quotas = {
        kind: policy.shape.show(policy.of(prescribed))
        for kind, policy in QUOTAS.items()
        if policy.of(prescribed) is not None
    }
    return quotas or None
