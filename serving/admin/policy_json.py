"""The JSON of policies: what REST takes and shows, one row each; see `policies` for where they are kept,
and `namespace_json` for those that a namespace is made with.

Each policy is one row of `POLICIES`: the path's last word in a namespace's path and in a topic's, its name in Pulsar's
JSON of a whole namespace, the field of `Policies` that it is, and its shape. A shape is declared once and serves both
ways: a single `Value`, or a struct with Pulsar's names, units and bounds whose fields have the names of the record that
is kept; `Unit` says how many of ours one of Pulsar's is. What does not fit its shape is refused with what the shape
says of itself, a struct's docstring, and with what is wrong. The two backlog quotas share a word, and the query says
which is meant, as Pulsar's tools do it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, get_type_hints
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct, ValidationError, field
from msgspec.structs import asdict, replace

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
    Storage,
)
from quire.runtime.errors import ConfigurationError
from quire.runtime.limits import MESSAGE_BYTES_MAX
from quire.serving.admin.requests import INT64_MAX, number
from quire.serving.policy.strategy import UNDEFINED, Strategy

MINUTE_MS: Final = 60_000
QUORUM_MAX: Final = 100
INT64_MIN: Final = -INT64_MAX - 1
SECONDS_MAX: Final = 1 << 32
"""Longer times and larger sizes than anybody means; what is kept of them fits 64 bits in ms and in bytes."""

TEXT_CHARS_MAX: Final = 1024
INT32_MAX: Final = (1 << 31) - 1


# -- shapes --------------------------------------------------------------------------------------------


class Unit(NamedTuple):
    """How many of ours one of Pulsar's is, of a number of which -1 means no limit."""

    ours: int = 1


def _unquoted(value: Any) -> Any:
    """Some tools send numbers in quotes."""
    return number(value) if isinstance(value, str) else value


def _converted(value: Any, kind: Any, says: str) -> Any:
    try:
        return msgspec.convert(value, kind)
    except ValidationError as error:
        raise ConfigurationError(f"{says}: {error}") from None


@dataclass(frozen=True)
class Value:
    """The shape of a policy that is a single value; it `says` what it must be."""

    kind: Any
    says: str
    unit: int = 1

    def parse(self, value: Any) -> Any:
        """What is kept. Raises `ConfigurationError`."""
        found = _converted(_unquoted(value), self.kind, f"the request's body must be {self.says}")
        return found * self.unit if self.unit > 1 else found

    def show(self, kept: Any) -> Any:
        return kept // self.unit if self.unit > 1 else kept


def _number(of: str, most: int, unit: int = 1) -> Value:
    return Value(Annotated[int, Meta(ge=0, le=most)], f"a number of {of}, 0 (off) to {most}", unit)


class Shape(Struct, frozen=True, kw_only=True):
    """The shape of a policy that is an object: `record` is kept, with `unlimited` for -1.

    One of `needs` at least must be given.
    """

    record: ClassVar[type[Record]]
    needs: ClassVar[frozenset[str]] = frozenset()
    unlimited: ClassVar[int] = -1

    @classmethod
    def units(cls) -> dict[str, int]:
        hints = get_type_hints(cls, include_extras=True)
        marks = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
        return {name: one.ours for name, some in marks.items() for one in some if isinstance(one, Unit)}

    @classmethod
    def parse(cls, value: Any) -> Any:
        """What is kept. Raises `ConfigurationError`."""
        says = " ".join(str(cls.__doc__).split()).rstrip(".")
        if isinstance(value, dict):  # null is not said
            value = {name: _unquoted(one) for name, one in value.items() if one is not None}
        found: Shape = _converted(value, cls, says)
        if cls.needs and not cls.needs & value.keys():
            raise ConfigurationError(says)
        found.check()
        return found.kept()

    def check(self) -> None:
        """What fits by itself may contradict something else. Raises `ConfigurationError`."""

    def kept(self) -> Any:
        values = asdict(self)
        for name, ours in self.units().items():
            values[name] = self.unlimited if values[name] < 0 else values[name] * ours
        return self.record(**{name: values[name] for name in self.record.__struct_fields__})

    @classmethod
    def show(cls, kept: Any) -> dict[str, Any]:
        values = asdict(kept)
        for name, ours in cls.units().items():
            values[name] = -1 if values[name] == cls.unlimited else values[name] // ours
        shown: dict[str, Any] = msgspec.to_builtins(cls(**values))
        return shown


# -- objects -------------------------------------------------------------------------------------------

Rate = Annotated[int, Meta(ge=-1, le=INT64_MAX), Unit()]


class Retention(Shape, frozen=True):
    """Retention is -1 (for ever), 0 (not at all) or a number of minutes and MB."""

    record = RetentionPolicy
    retention_ms: Annotated[int, Meta(ge=-1, le=SECONDS_MAX), Unit(MINUTE_MS)] = field(
        name="retentionTimeInMinutes", default=0
    )
    retention_bytes: Annotated[int, Meta(ge=-1, le=SECONDS_MAX), Unit(1 << 20)] = field(
        name="retentionSizeInMB", default=0
    )

    def check(self) -> None:
        if (self.retention_ms == 0) != (self.retention_bytes == 0):
            raise ConfigurationError(
                f"retention of {self.retention_ms} minutes and {self.retention_bytes} MB contradicts itself: both are "
                "0 (keep nothing that is acknowledged), or neither is (-1: no limit)"
            )


class Persistence(Shape, frozen=True):
    """Persistence is a number of copies, bookkeeperEnsemble and bookkeeperWriteQuorum, and a bookkeeperAckQuorum;
    or a storage, bookies or objects; or both."""

    record = PersistencePolicy
    ensemble: int | None = field(name="bookkeeperEnsemble", default=None)
    write_quorum: int = field(name="bookkeeperWriteQuorum", default=0)
    ack_quorum: int = field(name="bookkeeperAckQuorum", default=0)
    storage: Storage | None = None

    def check(self) -> None:
        ensemble, write, ack = self.ensemble, self.write_quorum, self.ack_quorum
        if self.storage is not None and not (ensemble or write or ack):
            return  # as many copies as the broker's settings say
        if ensemble not in (None, write):
            raise ConfigurationError(
                f"ensemble {ensemble} and write quorum {write} must be equal, for Quire does not stripe a "
                "ledger: give both the number of copies"
            )
        if not QUORUM_MAX >= write >= ack >= 1:
            raise ConfigurationError(
                f"write quorum {write} must be {QUORUM_MAX} at most and at least ack quorum {ack}, and that at least 1"
            )

    @classmethod
    def show(cls, kept: PersistencePolicy) -> dict[str, Any]:
        shown = {**super().show(kept), "bookkeeperEnsemble": kept.write_quorum}
        if kept.storage is None:
            del shown["storage"]
        return shown


class Quota(Shape, frozen=True):
    """A backlog quota needs limitSize in bytes or limitTime in seconds, -1 for no limit; its policy is
    producer_request_hold, producer_exception or consumer_backlog_eviction."""

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
        """What is kept; `limit` is the older name of `limitSize`, and no time is no limit of it."""
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
                "relativeToPublishRate is not there: give the dispatch rate as a number of its own, and false for this"
            )


class AutoCreation(Shape, frozen=True):
    """Whether topics are made by their use: field allowAutoTopicCreation must be true or false."""

    allowed: bool = field(name="allowAutoTopicCreation")

    def kept(self) -> bool:
        return self.allowed

    @classmethod
    def show(cls, kept: bool) -> dict[str, Any]:
        return {"allowAutoTopicCreation": kept}


Text = Annotated[str, Meta(max_length=TEXT_CHARS_MAX)]


class Iceberg(Shape, frozen=True):
    """A table that is kept fresh needs a catalog, the URL of a REST catalog or of a database or an absolute directory,
    and may have a warehouse, a namespace and a table. With nothing in it none is kept, whatever the namespace says."""

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
                f"the catalog {self.catalog!r} is no URL, such as https://catalog:8181 or postgresql://…, and no "
                "absolute directory"
            )
        if "@" in urlsplit(self.catalog).netloc:
            raise ConfigurationError(
                "credentials in a catalog's URL would be shown to everybody: leave them out, and give the password to "
                "`quire spark follow-iceberg`"
            )
        if "." in self.table:
            raise ConfigurationError(
                f"the table {self.table!r} has a dot: what is before it is the namespace"
            )


@dataclass(frozen=True)
class Strategies(Value):
    """`UNDEFINED` leaves it to the level above."""

    def parse(self, value: Any) -> Any:
        return None if value == UNDEFINED else super().parse(value)


# -- rows ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PolicyJson:
    word: str
    """In a namespace's path; empty: a namespace has no such policy."""
    field: str
    shape: Value | type[Shape]
    topic_word: str = ""
    """In a topic's path; empty: a topic has no such policy."""
    name: str = ""
    """In Pulsar's JSON of a namespace's policies."""
    is_by_cluster: bool = False
    """There it is a map, with one value for each cluster."""
    is_limit: bool = False
    """It keeps tenants apart, so who administers one tenant does not change it: that needs a superuser."""
    unset: Any = None
    """What a namespace's GET says when nothing is prescribed; None: nothing, 204."""

    @property
    def kind(self) -> Any:
        """The type of its JSON."""
        return self.shape.kind if isinstance(self.shape, Value) else self.shape


BOOL: Final = Value(bool, "true or false")
SECONDS: Final = _number("seconds", SECONDS_MAX, 1000)
MINUTES: Final = _number("minutes", SECONDS_MAX, MINUTE_MS)
BYTES: Final = _number("bytes", INT64_MAX >> 1)
_STRATEGIES: Final = (*map(str, Strategy), UNDEFINED)
STRATEGY: Final = Strategies(
    Literal[_STRATEGIES], f"one of {', '.join(Strategy)}, or {UNDEFINED} for the level above"
)


def _limit(word: str, field: str, of: str, topic_word: str = "", unset: int | None = None) -> PolicyJson:
    name = re.sub("([A-Z])", r"_\1", word).lower()
    return PolicyJson(word, field, _number(of, INT32_MAX), topic_word, name, is_limit=True, unset=unset)


# fmt: off
POLICIES: Final = (
    PolicyJson("deduplication", "deduplication", BOOL, "deduplicationEnabled", "deduplicationEnabled"),
    PolicyJson("persistence", "persistence", Persistence, "persistence", "persistence"),
    PolicyJson("retention", "retention", Retention, "retention", "retention_policies"),
    PolicyJson("messageTTL", "message_ttl_ms", SECONDS, "messageTTL", "message_ttl_in_seconds"),
    PolicyJson("inactiveTopicPolicies", "inactive_topics", InactiveTopics, "inactiveTopicPolicies",
               "inactive_topic_policies"),
    PolicyJson("delayedDelivery", "delayed_delivery", DelayedDelivery, "delayedDelivery",
               "delayed_delivery_policies"),
    PolicyJson("subscriptionExpirationTime", "subscription_expiration_ms", MINUTES,
               name="subscription_expiration_time_minutes"),
    PolicyJson("maxMessageSize", "message_bytes_max", _number("bytes", MESSAGE_BYTES_MAX), "maxMessageSize"),
    PolicyJson("publishRate", "publish_rate", PublishRates, "publishRate", "publishMaxMessageRate", True),
    PolicyJson("dispatchRate", "dispatch_rate", DispatchRates, "dispatchRate", "topicDispatchRate", True),
    PolicyJson("subscriptionDispatchRate", "subscription_dispatch_rate", DispatchRates,
               "subscriptionDispatchRate", "subscriptionDispatchRate", True),
    PolicyJson("compactionThreshold", "compaction_threshold_bytes", BYTES, "compactionThreshold",
               "compaction_threshold"),
    PolicyJson("schemaCompatibilityStrategy", "schema_compatibility", STRATEGY, "schemaCompatibilityStrategy",
               "schema_compatibility_strategy"),
    PolicyJson("isAllowAutoUpdateSchema", "schema_auto_update", BOOL, name="is_allow_auto_update_schema",
               unset=True),
    PolicyJson("schemaValidationEnforced", "schema_enforced", BOOL, "schemaValidationEnforced",
               "schema_validation_enforced", unset=False),
    PolicyJson("iceberg", "iceberg", Iceberg, "iceberg"),
    _limit("maxTopicsPerNamespace", "topics_max", "topics", unset=0),
    _limit("maxProducersPerTopic", "producers_max", "producers", "maxProducers"),
    _limit("maxConsumersPerTopic", "consumers_max", "consumers", "maxConsumers"),
    _limit("maxConsumersPerSubscription", "consumers_per_subscription_max", "consumers", "maxConsumersPerSubscription"),
    _limit("maxSubscriptionsPerTopic", "subscriptions_max", "subscriptions", "maxSubscriptionsPerTopic"),
    PolicyJson("maxUnackedMessagesPerConsumer", "unacked_messages_max", _number("messages", INT32_MAX),
               "maxUnackedMessagesOnConsumer", "max_unacked_messages_per_consumer"),
    PolicyJson("autoTopicCreation", "auto_topic_creation", AutoCreation, name="autoTopicCreationOverride"),
)
# fmt: on
QUOTAS: Final = {
    "destination_storage": PolicyJson("backlogQuota", "backlog_quota", Quota, "backlogQuota"),
    "message_age": PolicyJson("backlogQuota", "age_quota", Quota, "backlogQuota"),
}
"""By the type that Pulsar's tools name in the query."""


def has_limits(prescribed: Policies) -> bool:
    """Whether it says anything that needs a superuser."""
    return any(getattr(prescribed, policy.field) is not None for policy in POLICIES if policy.is_limit)


def shown(prescribed: Policies, cluster: str) -> dict[str, Any]:
    """All that a namespace prescribes, by the words of their paths and by Pulsar's names."""
    found: dict[str, Any] = {"replication_clusters": [cluster]}
    for policy in POLICIES:
        value = getattr(prescribed, policy.field)
        if value is not None and policy.word:
            found[policy.word] = shape = policy.shape.show(value)
            if policy.name and policy.name != policy.word:
                found[policy.name] = {cluster: shape} if policy.is_by_cluster else shape
    quotas = quotas_shown(prescribed)
    return {**found, "backlogQuota": quotas, "backlog_quota_map": quotas} if quotas else found


def topic_policies_shown(policies: Any) -> dict[str, Any]:
    """Of a topic, `Policies` or what holds, by the last words of their paths; what is not prescribed is null."""
    return _by_words({policy.topic_word: policy for policy in POLICIES}, policies)


def namespace_policies_shown(policies: Any) -> dict[str, Any]:
    """Of a namespace, as `topic_policies_shown`; null as well what means nothing to a topic, where that is asked."""
    return _by_words({policy.word: policy for policy in POLICIES}, policies)


def _by_words(words: Mapping[str, PolicyJson], policies: Any) -> dict[str, Any]:
    found = {
        word: None if (value := getattr(policies, policy.field, None)) is None else policy.shape.show(value)
        for word, policy in words.items()
        if word
    }
    return {**found, "backlogQuota": quotas_shown(policies)}


def quotas_shown(prescribed: Any) -> dict[str, Any] | None:
    """Both quotas by their types, None when there is none."""
    quotas = {
        kind: policy.shape.show(getattr(prescribed, policy.field))
        for kind, policy in QUOTAS.items()
        if getattr(prescribed, policy.field) is not None
    }
    return quotas or None
